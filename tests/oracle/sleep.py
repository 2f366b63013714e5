"""VMs that fall asleep and wake: the controller starts a guest by the permit on its object."""

from __future__ import annotations

from protocol.guest.sleep import ASLEEP, SLEEPING, WAKING, SleepState
from protocol.units import ZERO
from tests.oracle.fleet import Machine
from tests.oracle.stage import Stage
from tests.scheduler_plugin.fake_cluster import VMS

_STATES = {ASLEEP: SleepState.ASLEEP, WAKING: SleepState.WAKING, "Running": SleepState.AWAKE}


class Sleep(Stage):
    """The controller's part, a step at a time."""

    def fall_asleep(self) -> None:
        """Only a VM with our agents can sleep; the original's agents do not support it."""
        machines = [machine for machine in self._in("Running") if self._may_sleep(machine)]
        if machines:
            machine = self.chance.choice(machines)
            self.note(f"{machine.name} falls asleep")
            machine.own, machine.slept = ZERO, self.fleet.size(machine)
            self.enter(machine, ASLEEP)

    def _may_sleep(self, machine: Machine) -> bool:
        is_ours = all(agent.numbers for agent in machine.agents)
        return is_ours and self.fleet.is_enabled(machine) and not self.is_moving(machine.name)

    def wake(self) -> None:
        """A frame that needs a sleeping guest arrives."""
        for machine in self._in(ASLEEP):
            self.note(f"{machine.name} is to wake")
            self.enter(machine, WAKING)
            return

    def start_guest(self) -> None:
        """The first of those that may start does."""
        for machine in self._in(WAKING):
            if self.start_guest_of(machine):
                return

    def start_guest_of(self, machine: Machine) -> bool:
        """Start the guest if the stored permit covers it, or if it has no agent. Return True if it was started.

        No program has to answer for a permit that a person has written there.
        """
        size, stored = self.fleet.wakes_with(machine), self.fleet.stored(machine) or ZERO
        # Its memory is on its way.
        if self.is_moving(machine.name, "Running"):
            return False
        if self.fleet.is_enabled(machine):
            if machine.is_tainted or not size.within(stored):
                return False
        else:
            self.judge.outsider(self.fleet.node(machine))
        self.note(f"{machine.name} wakes with {size}, stored is {stored}")
        self.enter(machine, "Running")
        machine.own = size.at_most(stored)
        self.require(self.judge.look(self.ledger))
        return True

    def enter(self, machine: Machine, phase: str) -> None:
        """Set the VM's phase in its object."""
        obj, size = self._copied(machine), self.fleet.wakes_with(machine)
        asleep, slept = phase in SLEEPING, machine.slept
        sizes = (None, None) if asleep else (size.cpu.quantity(), size.mem.quantity())
        report = {"state": _STATES[phase], "cpus": slept.cpu.quantity(), "memory": slept.mem.quantity()}
        obj["status"] |= {"phase": phase, "cpus": sizes[0], "memorySize": sizes[1], "sleep": report}
        self.api.put(VMS, obj)

    def _in(self, phase: str) -> list[Machine]:
        machines = [machine for machine in self.fleet.machines.values() if not machine.is_pod]
        return [machine for machine in machines if self.fleet.phase(machine) == phase and self.fleet.node(machine)]
