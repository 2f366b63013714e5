"""Decides which migrations to order or cancel (S4.8, S4.9).

Rules:

- ``plan`` only decides. Each plan is complete and repeats what still holds. The planner remembers only durations and
  recent refusals, so a restart only delays.
- The planner relieves a node of pressure that has lasted for ``settle``, and of denials and deferred resizes sooner
  (``RoomNeed.due``, B.14, B.17). It drains a cordoned node by the same rules.
- While the cluster has room, it also moves one VM from a node where another could not grow to its bound, if that is
  enough and a node is half empty.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from protocol.messages import ObjectName
from protocol.ranking.config import RankingConfig
from protocol.ranking.node_score import Draw
from protocol.units import Instant, Resources, Seconds
from scheduler_plugin.constraints.checker import EMPTY_CONTEXT, ConstraintContext
from scheduler_plugin.constraints.cost import CostLimit
from scheduler_plugin.ledger.facts import PRE_MIGRATING, MigrationPhase
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.ledger.moves import Migration, Move, MoveCause
from scheduler_plugin.planner.cost import Selection, least_cost
from scheduler_plugin.planner.drain import DrainPlan
from scheduler_plugin.planner.eligible_nodes import EligibleNodes
from scheduler_plugin.planner.headroom import MAX_RESERVED_SHARE, Headroom
from scheduler_plugin.planner.plan import (
    GRACE,
    SHORT_SETTLE,
    Cancel,
    LastingExcess,
    MigrationPolicy,
    MovePlan,
    RoomNeed,
    StuckNode,
    need_inputs,
)
from scheduler_plugin.planner.refused_orders import RefusedOrders
from scheduler_plugin.planner.refused_targets import RefusedTargets
from scheduler_plugin.planner.targets import ActiveMigrations, TargetRule, Targets
from scheduler_plugin.planner.unplaced import UnplacedTargets
from scheduler_plugin.planner.victims import PlanningTime, has_lost_source
from scheduler_plugin.texts import explanations

PlanSteps = Generator[None, None, MovePlan]
"""A plan that is computed in steps."""


def run_steps(steps: PlanSteps) -> MovePlan:
    """Run all steps and return the plan."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            plan: MovePlan = done.value
            return plan


CANCEL_COOLDOWN: Final = Seconds(300.0)
"""Maximum cooldown of a VM after a cancelled migration, which cost nothing, unlike a finished one."""

NODES_PER_ROUND: Final = 100
"""Maximum number of nodes to relieve per round; in a full cluster nodes take turns."""

NODES_PER_STEP: Final = 50
"""Number of nodes checked per step: a few milliseconds, even if all deny VMs."""


class Planner:
    """Plans moves from the ledger. ``select`` chooses the VMs that leave."""

    def __init__(self, select: Selection = least_cost) -> None:
        self._select = select
        self._needs: dict[str, RoomNeed] = {}
        self._unneeded_since: dict[ObjectName, Instant] = {}
        self._stuck: dict[str, StuckNode] = {}
        self._active: dict[ObjectName, ObjectName] = {}
        self._cooling_down: dict[ObjectName, Instant] = {}
        self._wrongly_targeted: set[ObjectName] = set()
        self._unplaced = UnplacedTargets()
        self._headroom = Headroom()
        self._growth_share = 1.0
        self._cost_limit = CostLimit()
        self.refused = RefusedTargets()
        self.refused_orders = RefusedOrders()

    def plan(  # noqa: PLR0913 - everything that the plan depends on
        self,
        ledger: Ledger,
        policy: MigrationPolicy,
        ranking: RankingConfig,
        now: PlanningTime,
        draw: Draw,
        *,
        constraint_context: ConstraintContext = EMPTY_CONTEXT,
    ) -> PlanSteps:
        """Compute the plan in steps. Cheap if no node is under pressure. ``draw`` breaks ties.

        Each step relieves one node, or checks ``NODES_PER_STEP`` nodes. The ledger may change between steps, so each
        move is checked again when its room is reserved. Run only one plan at a time.
        """
        self._note_deleted(ledger, policy, now.monotonic)
        self._learn_from_failures(ledger, policy, now.monotonic)
        needs = [*self._present_needs(ledger, policy, now.monotonic)]
        if self._headroom.has_lasted(ledger.rooms, now.monotonic) and policy.makes_room_to_grow:
            needs += self._growth_needs(ledger, ranking, now.monotonic)
        self._needs = {need.account.name: need for need in needs}
        self.refused_orders.forget_old(now.monotonic, policy.delays)
        batch = yield from self._batch(policy, now.monotonic)
        moves: tuple[Move, ...] = ()
        if batch:
            drain = DrainPlan(ledger, policy, now, self._select)
            active = ActiveMigrations.of(ledger, policy)
            self._cost_limit.start_round()
            eligible = EligibleNodes(ledger, constraint_context, self.refused, self._cost_limit, now.monotonic)
            targets = Targets(ledger, active, policy, eligible, TargetRule(ranking, draw))
            for need in batch:
                yield
                self._stuck.pop(need.account.name, None)
                stuck = drain.relieve(need, active, targets, partial(self._cooldown_reason, now.monotonic))
                if stuck is not None:
                    self._note_stuck(need, stuck, now.monotonic)
            moves = tuple(drain.moves)
        cancels = tuple(self._cancels(ledger, policy, now.monotonic, is_current=constraint_context.is_current))
        forget = tuple(self._deletable(ledger, policy, now))
        return MovePlan(moves, tuple(self._stuck.values()), cancels, forget)

    def _note_stuck(self, need: RoomNeed, stuck: StuckNode, now: Instant) -> None:
        name = need.account.name
        if need.is_for_growth:
            # No VM is denied, so this is only explained. It is tried again later, and other nodes come first.
            self._needs[name] = replace(self._needs[name], since=now, obstacle=stuck.why)
        else:
            self._stuck[name] = stuck

    def growth_obstacle(self, node: str, policy: MigrationPolicy, now: Instant) -> str:
        """The reason why no VM leaves a node so that another can grow there."""
        if not policy.makes_room_to_grow:
            return explanations.NO_MOVES_FOR_GROWTH
        if not self._headroom.was_lasting(now):
            return explanations.CLUSTER_WAS_FULL.format(share=float(MAX_RESERVED_SHARE))
        need = self._needs.get(node)
        if need is not None and not need.is_for_growth:
            return explanations.PRESSURE_FIRST
        obstacle = "" if need is None else need.obstacle
        return obstacle or explanations.GROWTH_SETTLES.format(span=policy.settle)

    def lacks_headroom(self, now: Instant) -> bool:
        """Return True if, at the last plan, the cluster had had no headroom for long."""
        return self._headroom.is_lacking(now)

    @property
    def unrelieved_since(self) -> Instant | None:
        """Since when a node denies requests without enough VMs leaving; None if none does."""
        return min((need.denied_since for need in self._needs.values() if need.denied_since is not None), default=None)

    def _batch(self, policy: MigrationPolicy, now: Instant) -> Generator[None, None, list[RoomNeed]]:
        """The nodes to relieve in this round, most urgent first; nodes stuck in an earlier round come last."""
        if not self._needs:
            self._stuck = {}
            return []
        due: dict[str, RoomNeed] = {}
        for number, (name, need) in enumerate(self._needs.items(), start=1):
            # Even if no VM may move now: durations count once VMs may.
            left = need.due(policy, now)
            if left is not None and policy.enabled:
                due[name] = left
            if number % NODES_PER_STEP == 0:
                yield
        self._stuck = {name: stuck for name, stuck in self._stuck.items() if name in due}
        if len(due) > NODES_PER_ROUND:
            # Stuck nodes come after those that may still be relieved.
            turns = {name: turn for turn, name in enumerate(self._stuck, start=1)}
            order = {name: (need.is_for_growth, turns.get(name, 0), need.urgency) for name, need in due.items()}
            first = sorted(due, key=order.__getitem__)[:NODES_PER_ROUND]
            due = {name: due[name] for name in first}
        return sorted(due.values(), key=lambda need: need.urgency)

    def _note_deleted(self, ledger: Ledger, policy: MigrationPolicy, now: Instant) -> None:
        """Start the cooldown of VMs whose migrations were deleted before their end.

        Not after migrations that were never created or had a wrong target.
        """
        if not (ledger.migrations or self._active or self._cooling_down or self._wrongly_targeted):
            return
        active = {
            name: migration
            for name, migration in ledger.migrations.items()
            if migration.is_active and migration.facts is not None
        }
        # Those in ``_wrongly_targeted`` had a wrong target.
        unwanted = [
            self._active[name] for name in self._active.keys() - ledger.migrations.keys() - self._wrongly_targeted
        ]
        unwanted += [
            migration.vm
            for name, migration in active.items()
            if migration.is_terminating and name not in self._wrongly_targeted
        ]
        self._cooling_down |= dict.fromkeys(unwanted, Instant(now + min(policy.delays.cooldown, CANCEL_COOLDOWN)))
        self._cooling_down = {vm: until for vm, until in self._cooling_down.items() if until > now}
        self._active = {name: migration.vm for name, migration in active.items()}
        self._wrongly_targeted &= ledger.migrations.keys()

    def _cooldown_reason(self, now: Instant, vm: ObjectName) -> str | None:
        """The reason from earlier rounds not to move the VM now."""
        return (
            explanations.COOLDOWN
            if self._cooling_down.get(vm, now) > now
            else self.refused_orders.refusal_reason(vm, now)
        )

    def _present_needs(self, ledger: Ledger, policy: MigrationPolicy, now: Instant) -> Iterator[RoomNeed]:
        for name in ledger.strained:
            account, previous = ledger.nodes[name], self._previous(name, is_for_growth=False)
            drains = not account.room.is_open and policy.drain_cordoned
            lasting = None if drains else _lasting(previous, policy)
            is_same = previous is not None and previous.lasting is lasting
            # A node may stay strained for hours without a change; reuse its need.
            if previous is not None and is_same and previous.is_current_for(account, drains=drains):
                yield previous
                continue
            pressure = account.pressure
            if not drains and not pressure.has_excess:
                continue
            # Enough may be leaving for denied VMs, but not for the watermark.
            is_denied = not pressure.capacity.within(pressure.slack + pressure.migrating)
            denied_before = None if previous is None else previous.denied_since
            yield RoomNeed(
                account,
                inputs=need_inputs(account),
                excess=None if drains else pressure.excess,
                # A cordon has no lasting pressure, and nothing has lasted through a new span.
                since=previous.since if previous is not None and is_same else now,
                denied_since=(now if denied_before is None else denied_before) if is_denied else None,
                lasting=lasting,
            )

    def _growth_needs(self, ledger: Ledger, ranking: RankingConfig, now: Instant) -> Iterator[RoomNeed]:
        """Needs of nodes where nothing is denied, but a VM could not grow to its bound."""
        share = ranking.score.growth
        is_changed, self._growth_share = share != self._growth_share, share
        for name in ledger.crowded - ledger.strained:
            account, previous = ledger.nodes[name], self._previous(name, is_for_growth=True)
            if previous is not None and not is_changed and previous.is_current_for(account, drains=False):
                yield previous
                continue
            excess = account.lacking_for_growth(share).minus_or_zero(account.migrating)
            if excess.any:
                since, obstacle = (now, "") if previous is None else (previous.since, previous.obstacle)
                inputs = need_inputs(account)
                yield RoomNeed(account, inputs, excess, since, denied_since=None, is_for_growth=True, obstacle=obstacle)

    def _previous(self, name: str, *, is_for_growth: bool) -> RoomNeed | None:
        previous = self._needs.get(name)
        return None if previous is None or previous.is_for_growth is not is_for_growth else previous

    def _learn(self, ledger: Ledger, migration: Migration, why: str, policy: MigrationPolicy, now: Instant) -> None:
        self.refused.note(ledger, (migration.vm, migration.target or ""), why, now, policy.delays)

    def _learn_from_failures(self, ledger: Ledger, policy: MigrationPolicy, now: Instant) -> None:
        """Record refused targets of failed migrations; one without a target node was refused, even if cancelled."""
        self.refused.forget_old(now, policy.delays)
        for migration in self._unplaced.newly_failed(ledger.migrations.values()):
            if migration.name not in self._wrongly_targeted:
                self._learn(ledger, migration, explanations.FOUND_NO_NODE, policy, now)

    def _cancels(self, ledger: Ledger, policy: MigrationPolicy, now: Instant, *, is_current: bool) -> Iterator[Cancel]:
        ours = [
            migration
            for migration in ledger.migrations.values()
            if migration.is_active and migration.is_ours and not migration.is_terminating
        ]
        if not ours:
            self._unneeded_since.clear()
            return
        unneeded = _unneeded(ledger, policy, ours)
        self._unneeded_since = {migration.name: self._unneeded_since.get(migration.name, now) for migration in unneeded}
        for migration in ours:
            # Only after a while, or orders and cancellations would alternate.
            since = self._unneeded_since.get(migration.name)
            refusal = self._unplaced.cancel_reason(migration, policy, now, is_current=is_current)
            if refusal is not None and migration.target is not None:
                if migration.name not in self._wrongly_targeted:
                    self._learn(ledger, migration, refusal, policy, now)
                # The target was wrong, so the VM need not rest.
                self._wrongly_targeted.add(migration.name)
                yield Cancel(migration.name, explanations.NOT_PLACED.format(node=migration.target, why=refusal))
            # It cannot go on: cancel immediately.
            elif migration.problem is not None and not migration.is_stalled:
                self._wrongly_targeted.add(migration.name)
                yield Cancel(migration.name, explanations.CANNOT_GO.format(why=migration.problem))
            elif has_lost_source(ledger, migration, now):
                yield Cancel(migration.name, explanations.SOURCE_LOST.format(node=migration.source))
            elif now - migration.since >= policy.timeout + GRACE:
                yield Cancel(migration.name, explanations.TIMED_OUT.format(span=policy.timeout))
            elif since is not None and now - since >= min(policy.settle, SHORT_SETTLE):
                yield Cancel(migration.name, explanations.NOT_NEEDED.format(node=migration.source))

    def _deletable(self, ledger: Ledger, policy: MigrationPolicy, now: PlanningTime) -> Iterator[ObjectName]:
        """Ended migrations of ours that are no longer needed, or that hold their VM."""
        delays = policy.delays
        over = {migration.vm: None for migration in ledger.migrations.values() if not migration.is_active}
        for vm in over:
            account, migrations = ledger.vms.get(vm), ledger.migrations_of(vm)
            if account is None or account.facts is None or account.facts.phase != PRE_MIGRATING:
                yield from (gone.name for gone in delays.deletable(migrations, now) if not gone.is_terminating)
            elif (holding := delays.holding(migrations, now)) is not None:
                # Its failure can no longer be read from the API server once it is deleted.
                rest = min(delays.cooldown, CANCEL_COOLDOWN)
                self._cooling_down[vm] = Instant(now.monotonic + rest)
                if not holding.is_terminating:
                    yield holding.name


def _lasting(previous: RoomNeed | None, policy: MigrationPolicy) -> LastingExcess | None:
    lasting = None if previous is None else previous.lasting
    if lasting is not None and lasting.span == policy.settle:
        return lasting
    return LastingExcess(policy.settle) if policy.settle > 0 else None


def _unneeded(ledger: Ledger, policy: MigrationPolicy, ours: list[Migration]) -> list[Migration]:
    """Migrations that have not started and whose node is relieved without them, newest first."""
    relieved: dict[str, Resources] = {}
    unneeded = []
    for migration in reversed(ours):
        uid = None if migration.source_pod is None else ledger.uid_of(migration.source_pod)
        claim = None if uid is None else ledger.claims.get(uid)
        # A started migration is finished: its cost is paid. One for growth relieves no pressure.
        is_pending = migration.phase is MigrationPhase.PENDING and migration.placed_on is None
        if claim is None or not is_pending or migration.cause is MoveCause.GROWTH:
            continue
        account = ledger.nodes[claim.node]
        if not account.room.is_open and policy.drain_cordoned:
            continue
        size = claim.reserved + claim.unmet
        left = relieved.get(claim.node, account.migrating).minus_or_zero(size)
        if account.pressure.due.within(left):
            relieved[claim.node] = left
            unneeded.append(migration)
    return unneeded
