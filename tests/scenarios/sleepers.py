"""Sleep in a scenario: people's orders, and a controller that carries out all orders, one write at a time.

Rules that hold here:

- Only a guest that is as large as its VM's spec says, and does not move, falls asleep. No guest runs in the phase
  ``Asleep``.
- Only a stored permit for all of its size wakes a guest. The phase is ``Running`` before it runs, in a write to the
  version of the object that has the permit.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from protocol.guest.sleep import ASLEEP, WAKING, SleepReport, SleepState
from protocol.units import Resources
from scheduler_plugin.ledger.invariants import overcommitted
from scheduler_plugin.ledger.ledger import Ledger
from tests.scenarios.cluster import RUNNING, Cluster, VmObject


@dataclass
class Sleepers:
    """The VM controller, as far as sleep goes; it remembers nothing but the numbers of sleeps and wakes."""

    cluster: Cluster
    random: Random
    slept: int = 0
    woken: int = 0

    def step(self) -> None:
        """Something happens to one VM: an order, its end, or a packet."""
        vm = self.random.choice([vm for vm in self.cluster.vms.values() if not vm.is_pod])
        if vm.phase == ASLEEP:
            self._report(vm, WAKING, SleepState.WAKING, "10.1.2.3:4711 opened a connection")
        elif vm.phase == WAKING:
            if vm.permit is not None and vm.use.within(vm.permit):
                self.woken += 1
                vm.status = vm.guest = vm.use
                self._report(vm, RUNNING, SleepState.AWAKE, vm.report.message)
        elif vm.order in {"", vm.report.order}:
            # Else it is left to its agent.
            if self.random.random() < 0.3:
                self.cluster.order_sleep(vm)
        elif self.random.random() < 0.1:
            self._report(vm, RUNNING, SleepState.REFUSED, "a session is in a transaction")
        elif vm.guest == vm.status == vm.use and not self._moves(vm):
            self.slept += 1
            vm.guest = vm.status = None
            self._report(vm, ASLEEP, SleepState.ASLEEP, "")

    def _report(self, vm: VmObject, phase: str, state: SleepState, message: str) -> None:
        vm.phase, vm.report = phase, SleepReport(vm.order, state, message=message)
        self.cluster.put_vm(vm)

    def _moves(self, vm: VmObject) -> bool:
        return any(
            each.facts.vm == vm.name and not each.facts.phase.is_over for each in self.cluster.migrations.values()
        )


def certainly_over(ledger: Ledger) -> list[str]:
    """The nodes that are over their total by more than the doubts of a rebuild.

    It keeps room for all that are waking, because its predecessor may have begun to write a permit for any of them.
    """
    nodes = ((name, over, ledger.nodes[name].claims.values()) for name, over in overcommitted(ledger).items())
    doubts = ((name, over, [claim.vm.uncertain_wake for claim in claims if claim.vm]) for name, over, claims in nodes)
    return [name for name, over, of_waking in doubts if not over.within(Resources.sum(of_waking))]
