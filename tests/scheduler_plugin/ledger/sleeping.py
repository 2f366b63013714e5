"""VMs that fall asleep and wake in the fleet of the tests: their objects, and their agents' requests."""

from __future__ import annotations

from msgspec import structs

from protocol.guest.sleep import ASLEEP, WAKING
from protocol.units import ZERO, Instant, Resources
from scheduler_plugin.ledger.events import VmSeen
from scheduler_plugin.ledger.facts import RUNNING, NodeFacts, PodFacts, VmFacts
from scheduler_plugin.ledger.outcomes import PermitDecision
from tests.scheduler_plugin.ledger.fleet import LATER, Fleet, name, vm, vm_pod


def sleeper(of: str, size: Resources, phase: str = ASLEEP, permit: Resources | None = ZERO) -> VmFacts:
    """A VM asleep in its pod ``NAME-pod``, with ``permit`` stored."""
    slept = vm(of, ZERO, permit=permit, pod=name(f"{of}-pod"))
    return structs.replace(slept, phase=phase, wakes_with=size)


class SleepingFleet(Fleet):
    """A fleet whose controller puts VMs to sleep and wakes them."""

    def _becomes(self, of: str, now: Instant, **changes: object) -> None:
        old = self.vms[name(of)]
        new = structs.replace(old, version=old.version + 1, **changes)
        self.vms[old.name] = new
        self.apply(VmSeen(new), now)

    def falls_asleep(self, of: str, *, now: Instant = LATER) -> None:
        size = self.vms[name(of)].use
        self._becomes(of, now, phase=ASLEEP, use=ZERO, actual=None, wakes_with=size)

    def wakes(self, of: str, *, now: Instant = LATER) -> None:
        """Something must reach the guest: the controller waits for a stored permit."""
        self._becomes(of, now, phase=WAKING)

    def is_woken(self, of: str, *, reads: bool = False, now: Instant = LATER) -> bool:
        """The controller starts the guest if the stored permit covers it. Returns True if it did. ``reads``: its memory
        is still being read.
        """
        facts = self.vms[name(of)]
        if facts.wakes_with is None or facts.permit is None or not facts.wakes_with.within(facts.permit):
            return False
        has = facts.wakes_with
        self._becomes(of, now, phase=RUNNING, use=has, actual=has, wakes_with=None, is_waking=reads)
        return True

    def runs(self, of: str, *, now: Instant = LATER) -> None:
        """The guest has its memory."""
        self._becomes(of, now, is_waking=False)

    def asks_to_wake(self, of: str, *, number: int | None = None, now: Instant = LATER) -> PermitDecision:
        """The agent asks for what its VM wakes with, and the permit is stored."""
        size = self.vms[name(of)].wakes_with
        assert size is not None
        decision = self.ask(of, size, number=number, now=now)
        self.store(decision)
        return decision

    def gives_up(self, of: str, *, number: int | None = None, now: Instant = LATER) -> None:
        """The agent of a sleeping VM gives up its permit, and that is stored."""
        self.grant(of, ZERO, number=number, now=now)


def sleeping_fleet(node: NodeFacts, *vms: VmFacts, beside: tuple[PodFacts, ...] = ()) -> SleepingFleet:
    """All ``vms`` in their pods on ``node``."""
    pods = [vm_pod(facts.name.name, node.name) for facts in vms]
    return SleepingFleet(node, *vms, *pods, *beside)
