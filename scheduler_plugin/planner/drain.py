"""Which VMs leave a node in one look, and where they go (S4.8).

Rules that hold here:

- First the whole set that would relieve the node is chosen, in order, without what cannot help; then whatever turned
  out not to be needed is left out; of the rest as many move as may move at once.
- A VM that has no place to go is passed over for the next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from protocol.messages import ObjectName
from protocol.units import Instant, Resources
from scheduler_plugin.ledger import ClaimState, Ledger, Move
from scheduler_plugin.planner.plan import MigrationPolicy, Need, Now, Stuck
from scheduler_plugin.planner.targets import Targets, Traffic
from scheduler_plugin.planner.victims import Order, Victim, victim_of


class DrainPlan:
    """The moves of one look, node after node."""

    def __init__(self, ledger: Ledger, policy: MigrationPolicy, now: Now, order: Order) -> None:
        self.moves: list[Move] = []
        self._ledger, self._policy, self._now, self._order = ledger, policy, now, order

    def relieve(
        self, need: Need, traffic: Traffic, targets: Targets, resting: Mapping[ObjectName, Instant]
    ) -> Stuck | None:
        """Chooses the VMs that leave the node of ``need`` now, or says why none can.

        VMs in ``resting`` are left alone until the given time.
        """
        node = need.book.name
        allowed = traffic.may_leave(node, self._policy)
        if not allowed:
            return None
        victims, others = self._victims(need, resting)
        housed = filter(targets.has_place, victims)
        chosen = housed if need.excess is None else enough(victims, need.excess, targets.has_place)
        moved = 0
        for victim in chosen:
            target = targets.take(node, victim)
            if target is not None:
                self.moves.append(Move(victim.vm, victim.claim.pod.uid, node, target, need.reason))
                moved += 1
            if moved == allowed:
                break
        if moved:
            return None
        is_housed = any(targets.has_place(victim) for victim in victims)
        hindrances = {} if is_housed else targets.hindrances(victims)
        return Stuck(node, _why(len(victims), others, hindrances, is_housed=is_housed))

    def _victims(self, need: Need, resting: Mapping[ObjectName, Instant]) -> tuple[list[Victim], Counter[str]]:
        """The VMs that may move, in order, and why the other ones may not."""
        found: list[Victim] = []
        others: Counter[str] = Counter()
        for arrived, claim in enumerate(need.book.claims.values()):
            if claim.vm is None or claim.state is ClaimState.INCOMING:
                continue
            victim = victim_of(self._ledger, claim, arrived, opt_in=self._policy.opt_in)
            if isinstance(victim, str):
                others[victim] += 1
            elif self._rests(victim.vm, need, resting):
                others["resting after a migration"] += 1
            else:
                found.append(victim)
        found.sort(key=lambda victim: (self._order(victim, need.excess), victim.vm))
        return found, others

    def _rests(self, vm: ObjectName, need: Need, resting: Mapping[ObjectName, Instant]) -> bool:
        until = self._policy.rest.until(self._ledger.migrations_of(vm), drains=need.excess is None)
        return until > self._now.wall or resting.get(vm, self._now.monotonic) > self._now.monotonic


def enough(victims: list[Victim], excess: Resources, has_place: Callable[[Victim], bool]) -> list[Victim]:
    """The first of ``victims`` with a place that relieve ``excess`` together, or all that help where it is not enough.

    Whether one has a place is asked as late as it can be: it may mean to look at every node.
    """
    chosen, left = [], excess
    for victim in victims:
        if not left.any:
            break
        if helps(victim, left) and has_place(victim):
            chosen.append(victim)
            left = left.minus_or_zero(victim.size)
    relieved = Resources.sum(victim.size for victim in chosen)
    for victim in list(chosen):
        if not left.any and excess.within(relieved - victim.size):
            chosen.remove(victim)
            relieved = relieved - victim.size
    return chosen


def helps(victim: Victim, excess: Resources) -> bool:
    """Whether the VM has anything of what the node has too much of."""
    return excess.at_most(victim.size).any


def _why(movable: int, others: Mapping[str, int], hindrances: Mapping[str, int], *, is_housed: bool) -> str:
    if movable and not is_housed:
        reasons = "".join(f"; {reason} ({count} nodes)" for reason, count in sorted(hindrances.items()))
        return f"no node has room below its watermark for any of {movable} VMs that may move{reasons}"
    if movable:
        return f"none of {movable} VMs that may move would relieve it"
    kept = ", ".join(f"{count} {why}" for why, count in sorted(others.items()))
    return f"no VM may move: {kept}" if kept else "no VM is on it"
