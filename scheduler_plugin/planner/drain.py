"""The VMs that leave a node in one planning round, and their targets (S4.8).

Rules:

- First choose the whole set that relieves the node (``cost``), then move as many of it as may move at once.
- Skip a VM without a target.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from operator import ge

from protocol.messages import ObjectName
from scheduler_plugin.ledger.accounts.claims import ClaimState
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.ledger.moves import Move
from scheduler_plugin.planner.cost import Selection, costs
from scheduler_plugin.planner.plan import MigrationPolicy, RoomNeed, StuckNode
from scheduler_plugin.planner.targets import ActiveMigrations, Targets
from scheduler_plugin.planner.victims import PlanningTime, Victim, is_being_deleted, victim_of
from scheduler_plugin.texts import explanations
from scheduler_plugin.texts.amounts import amounts_text

SkipReason = Callable[[ObjectName], str | None]
"""The reason not to move a VM now, independent of its migrations; None if it may move."""


class DrainPlan:
    """The moves of one planning round."""

    def __init__(self, ledger: Ledger, policy: MigrationPolicy, now: PlanningTime, select: Selection) -> None:
        self.moves: list[Move] = []
        self._ledger, self._policy, self._now, self._select = ledger, policy, now, select

    def relieve(
        self, need: RoomNeed, active: ActiveMigrations, targets: Targets, skip_reason: SkipReason
    ) -> StuckNode | None:
        """Choose the VMs that leave the node of ``need`` now, or return why none can."""
        node = need.account.name
        allowed = active.may_leave(node, self._policy)
        # Active moves relieve the node and need no report, unless others ordered them: those may never end.
        if not allowed:
            why = active.limit_reason()
            return None if why is None else StuckNode(node, why)
        share = need.target_reserve
        targets.restrict(share, keeps_growth=need.is_for_growth)
        mark = f"{float(1 - share):.0%} of its watermark" if share else "its watermark"
        # A quick check for growth, because many nodes of a cluster may be crowded. One VM has to free all of it.
        if need.is_for_growth and need.excess is not None and not targets.any_has_room(need.excess):
            return StuckNode(node, explanations.NO_TARGET.format(full_from=mark, need=amounts_text(need.excess)))
        victims, others = self._victims(need, skip_reason, targets)
        moved = 0
        for victim in self._select(victims, need.goal(targets.slack), targets.has_target):
            # ``has_target`` was checked before the moves of this round, which may have taken the room.
            target = targets.take(node, victim)
            if target is not None:
                self.moves.append(_move(need, victim, target))
                moved += 1
            if moved == allowed:
                break
        if moved:
            return None
        has_target = any(targets.has_target(victim) for victim in victims)
        obstacles = {} if has_target else targets.obstacles(victims)
        return StuckNode(node, explanations.unrelieved(len(victims), others, obstacles, None if has_target else mark))

    def _victims(self, need: RoomNeed, skip_reason: SkipReason, targets: Targets) -> tuple[list[Victim], Counter[str]]:
        """The VMs that may move, by name, and the reasons against the others."""
        movable: list[Victim] = []
        others: Counter[str] = Counter()
        for index, claim in enumerate(need.account.claims.values()):
            # Skip ordinary pods and reservations of arriving VMs.
            if not claim.runs_vm or claim.state is ClaimState.INCOMING:
                continue
            victim = victim_of(self._ledger, claim, index, self._now, opt_in=self._policy.opt_in)
            if isinstance(victim, str):
                others[victim] += 1
                continue
            why = self._cooldown_reason(victim.vm, need) or skip_reason(victim.vm)
            if claim.sleeps and need.excess is not None and not claim.unmet.any:
                why = explanations.SLEEPS
            if why is None:
                movable.append(victim)
            else:
                others[why] += 1
        movable.sort(key=lambda victim: victim.vm)
        helpful = _helpful(need, movable, targets)
        if len(helpful) < len(movable):
            others[explanations.LARGE_NEIGHBOUR] = len(movable) - len(helpful)
        return helpful, others

    def _cooldown_reason(self, vm: ObjectName, need: RoomNeed) -> str | None:
        delays, migrations = self._policy.delays, self._ledger.migrations_of(vm)
        if delays.until(migrations, self._now, drains=need.excess is None) > self._now.wall:
            return explanations.COOLDOWN
        # NeonVM's controller takes the deletion of an ended migration for a cancellation of the one that begins.
        return explanations.MIGRATION_BEING_DELETED if is_being_deleted(delays, migrations, self._now) else None


def _helpful(need: RoomNeed, victims: list[Victim], targets: Targets) -> list[Victim]:
    """The ``victims`` whose departure helps the node's denied VMs, or gives one room to grow."""
    # Cordoned: every VM that leaves helps.
    if need.excess is None:
        return victims
    # Growth is only a possibility: worth one move, not several.
    if need.is_for_growth:
        return [victim for victim in victims if need.excess.within(victim.size)]
    if need.only_waking:
        return [victim for victim in victims if victim.claim.sleeps]
    total = need.account.room.total
    claims = [claim for claim in need.account.claims.values() if claim.vm is not None]
    has_all = [claim for claim in claims if any(claim.reserved.each(total, ge))]
    too_large = [claim for claim in claims if claim in has_all or not (claim.reserved + claim.unmet).within(total)]
    themselves = [victim for victim in victims if victim.claim in too_large]
    # A VM that wants more than its whole node moves to a larger one. If there is none, others leave until it has the
    # whole node.
    return themselves if has_all or any(map(targets.has_target, themselves)) else victims


def _move(need: RoomNeed, victim: Victim, target: str) -> Move:
    because = need.reason if need.excess is None else f"{need.reason}; {costs(victim)}"
    return Move(victim.vm, victim.claim.pod.uid, need.account.name, target, because, need.cause)
