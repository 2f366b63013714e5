"""The VMs that leave a node in one look, and where they go (S4.8).

Rules that hold here:

- First the whole set that would relieve the node is chosen (``cost``); of it as many move as may move at once.
- A VM that has no place to go is passed over for the next one.
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
from scheduler_plugin.planner.plan import MigrationPolicy, RoomNeed, Stuck
from scheduler_plugin.planner.targets import Targets, Traffic
from scheduler_plugin.planner.victims import Now, Victim, victim_of
from scheduler_plugin.texts import explanations

LeftAlone = Callable[[ObjectName], str | None]
"""Why a VM should not be moved just now, whatever its migrations say; None if it may be."""


class DrainPlan:
    """The moves of one look, node after node."""

    def __init__(self, ledger: Ledger, policy: MigrationPolicy, now: Now, select: Selection) -> None:
        self.moves: list[Move] = []
        self._ledger, self._policy, self._now, self._select = ledger, policy, now, select

    def relieve(self, need: RoomNeed, traffic: Traffic, targets: Targets, left_alone: LeftAlone) -> Stuck | None:
        """Chooses the VMs that leave the node of ``need`` now, or says why none can."""
        node = need.book.name
        allowed = traffic.may_leave(node, self._policy)
        # Moves under way relieve the node; that is no news, unless they are not ours and may never end.
        if not allowed:
            why = traffic.why_full()
            return None if why is None else Stuck(node, why)
        share = need.kept_on_targets
        targets.keep(share)
        victims, others = self._victims(need, left_alone, targets)
        moved = 0
        for victim in self._select(victims, need.freedom(targets.slack), targets.has_place):
            # ``has_place`` held before the moves of this look; an earlier one may have taken the place.
            target = targets.take(node, victim)
            if target is not None:
                self.moves.append(_move(need, victim, target))
                moved += 1
            if moved == allowed:
                break
        if moved:
            return None
        is_housed = any(targets.has_place(victim) for victim in victims)
        hindrances = {} if is_housed else targets.hindrances(victims)
        mark = f"{float(1 - share):.0%} of its watermark" if share else "its watermark"
        return Stuck(node, explanations.unrelieved(len(victims), others, hindrances, None if is_housed else mark))

    def _victims(self, need: RoomNeed, left_alone: LeftAlone, targets: Targets) -> tuple[list[Victim], Counter[str]]:
        """The VMs that may move, by name, and why the other ones may not."""
        movable: list[Victim] = []
        others: Counter[str] = Counter()
        for arrived, claim in enumerate(need.book.claims.values()):
            # Ordinary pods stay, and room kept for a VM that arrives has no pod yet.
            if not claim.runs_vm or claim.state is ClaimState.INCOMING:
                continue
            victim = victim_of(self._ledger, claim, arrived, self._now, opt_in=self._policy.opt_in)
            if isinstance(victim, str):
                others[victim] += 1
                continue
            why = explanations.RESTING if self._rests(victim.vm, need) else left_alone(victim.vm)
            if claim.sleeps and need.excess is not None and not claim.unmet.any:
                why = explanations.SLEEPS
            if why is None:
                movable.append(victim)
            else:
                others[why] += 1
        movable.sort(key=lambda victim: victim.vm)
        helpful = _helpful(need, movable, targets)
        if len(helpful) < len(movable):
            others[explanations.BESIDE] = len(movable) - len(helpful)
        return helpful, others

    def _rests(self, vm: ObjectName, need: RoomNeed) -> bool:
        rests_until = self._policy.rest.until(self._ledger.migrations_of(vm), self._now, drains=need.excess is None)
        return rests_until > self._now.wall


def _helpful(need: RoomNeed, victims: list[Victim], targets: Targets) -> list[Victim]:
    """The VMs of ``victims`` whose leaving can give the node's VMs what they want."""
    # A cordoned node is to be emptied, so every VM that leaves helps.
    if need.excess is None:
        return victims
    if need.is_of_waking:
        return [victim for victim in victims if victim.claim.sleeps]
    total = need.book.room.total
    claims = [claim for claim in need.book.claims.values() if claim.vm is not None]
    has_all = [claim for claim in claims if any(claim.reserved.each(total, ge))]
    too_large = [claim for claim in claims if claim in has_all or not (claim.reserved + claim.unmet).within(total)]
    themselves = [victim for victim in victims if victim.claim in too_large]
    # A VM that wants more than its whole node moves to a larger one. If there is none, its neighbours go, so that it
    # gets as much as its node has. Nobody leaves for a VM that has all of it already.
    return themselves if has_all or any(map(targets.has_place, themselves)) else victims


def _move(need: RoomNeed, victim: Victim, target: str) -> Move:
    because = need.reason if need.excess is None else f"{need.reason}; {costs(victim)}"
    return Move(victim.vm, victim.claim.pod.uid, need.book.name, target, because, need.cause)
