"""The planner: decides which migrations to order or cancel now (S4.8, S4.9).

Rules that hold here:

- ``plan`` decides; nothing is carried out here. Each plan is complete: it repeats what still holds. The planner
  remembers only how long something has held and what was refused lately; forgetting that (a restart) only delays.
- A node is relieved of the part of its pressure that has lasted for ``settle``, and sooner of what VMs were denied or
  pods that wait ask for (``RoomNeed.due``, B.14, B.17). A cordoned node is emptied by the same rules.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial
from typing import Final

from protocol.messages import ObjectName
from protocol.ranking.config import RankingConfig
from protocol.ranking.node_score import Draw
from protocol.units import Instant, Resources, Seconds
from scheduler_plugin.constraints.judge import NOTHING_KNOWN, ConstraintContext
from scheduler_plugin.ledger.facts import MigrationPhase
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.ledger.moves import Migration, Move
from scheduler_plugin.planner.cost import Selection, least_cost
from scheduler_plugin.planner.drain import DrainPlan
from scheduler_plugin.planner.places import Places
from scheduler_plugin.planner.plan import (
    GRACE,
    SETTLES_SOON,
    Cancel,
    LastingExcess,
    MigrationPolicy,
    MovePlan,
    RoomNeed,
    Stuck,
    seen_of,
)
from scheduler_plugin.planner.refused_orders import RefusedOrders
from scheduler_plugin.planner.refused_targets import RefusedTargets
from scheduler_plugin.planner.targets import Choice, Targets, Traffic
from scheduler_plugin.planner.unplaced import UnplacedTargets
from scheduler_plugin.planner.victims import Now
from scheduler_plugin.texts import explanations

Look = Generator[None, None, MovePlan]
"""A plan that is made step by step."""


def completed(look: Look) -> MovePlan:
    """The plan, made in one go."""
    while True:
        try:
            next(look)
        except StopIteration as done:
            plan: MovePlan = done.value
            return plan


CALLED_OFF: Final = Seconds(300.0)
"""How long a VM is left alone at most after its move was called off: unlike one that has moved, it cost nothing."""

AT_ONCE: Final = 100
"""How many nodes one look relieves at most: in a cluster that is full everywhere they take turns."""

IN_STEP: Final = 50
"""How many nodes one step asks whether VMs should leave: a few milliseconds, even if all of them deny VMs."""


class Planner:
    """Plans moves from looks at the ledger. ``select`` chooses the VMs that go."""

    def __init__(self, select: Selection = least_cost) -> None:
        self._select = select
        self._needs: dict[str, RoomNeed] = {}
        self._needless_since: dict[ObjectName, Instant] = {}
        self._stuck: dict[str, Stuck] = {}
        self._active: dict[ObjectName, ObjectName] = {}
        self._resting: dict[ObjectName, Instant] = {}
        self._misled: set[ObjectName] = set()
        self._unplaced = UnplacedTargets()
        self.refused = RefusedTargets()
        self.refused_orders = RefusedOrders()

    def plan(  # noqa: PLR0913 - everything that the plan depends on
        self,
        ledger: Ledger,
        policy: MigrationPolicy,
        ranking: RankingConfig,
        now: Now,
        draw: Draw,
        *,
        surroundings: ConstraintContext = NOTHING_KNOWN,
    ) -> Look:
        """The plan, found in steps. Cheap if no node is under pressure. ``draw`` separates equals.

        Each step relieves one node, or asks ``IN_STEP`` nodes whether VMs should leave. The ledger may change between
        steps: every move is checked again when its room is reserved. Only one plan is made at a time.
        """
        self._notice_vanished(ledger, policy, now.monotonic)
        self._learn_from_failures(ledger, policy, now.monotonic)
        self._needs = {need.book.name: need for need in self._present_needs(ledger, policy, now.monotonic)}
        self.refused_orders.forget_old(now.monotonic, policy.rest)
        batch = yield from self._batch(policy, now.monotonic)
        moves: tuple[Move, ...] = ()
        if batch:
            drain = DrainPlan(ledger, policy, now, self._select)
            traffic = Traffic.of(ledger, policy)
            places = Places(ledger, surroundings, self.refused, now.monotonic)
            targets = Targets(ledger, traffic, policy, places, Choice(ranking, draw))
            for need in batch:
                yield
                self._stuck.pop(need.book.name, None)
                stuck = drain.relieve(need, traffic, targets, partial(self._left_alone, now.monotonic))
                if stuck is not None:
                    self._stuck[need.book.name] = stuck
            moves = tuple(drain.moves)
        cancels = tuple(self._cancels(ledger, policy, now.monotonic, is_current=surroundings.is_current))
        forget = _forgotten(ledger, policy, now)
        return MovePlan(moves, tuple(self._stuck.values()), cancels, forget)

    @property
    def unrelieved_since(self) -> Instant | None:
        """The time since when a node refuses requests without enough VMs leaving it; None if none does."""
        return min((need.denied_since for need in self._needs.values() if need.denied_since is not None), default=None)

    def _batch(self, policy: MigrationPolicy, now: Instant) -> Generator[None, None, list[RoomNeed]]:
        """The nodes to relieve in this look, the most urgent first: of many, those that were not found stuck lately."""
        if not self._needs:
            self._stuck = {}
            return []
        due: dict[str, RoomNeed] = {}
        for number, (name, need) in enumerate(self._needs.items(), start=1):
            # Looked at even if no VM may be moved: what has lasted counts once VMs may.
            left = need.due(policy, now)
            if left is not None and policy.enabled:
                due[name] = left
            if number % IN_STEP == 0:
                yield
        self._stuck = {name: stuck for name, stuck in self._stuck.items() if name in due}
        if len(due) > AT_ONCE:
            # A node found stuck in this or an earlier look waits behind those that may still be relieved.
            turns = {name: turn for turn, name in enumerate(self._stuck, start=1)}
            first = sorted(due, key=lambda name: (turns.get(name, 0), due[name].urgency))[:AT_ONCE]
            due = {name: due[name] for name in first}
        return sorted(due.values(), key=lambda need: need.urgency)

    def _notice_vanished(self, ledger: Ledger, policy: MigrationPolicy, now: Instant) -> None:
        """A migration that is deleted before it has ended is not wanted: its VM is left alone for a while.

        One that was never made, or could not go where it should, says nothing about its VM.
        """
        if not (ledger.migrations or self._active or self._resting or self._misled):
            return
        active = {
            name: migration
            for name, migration in ledger.migrations.items()
            if migration.is_active and migration.facts is not None
        }
        # Those in ``_misled`` had a wrong target, which says nothing about their VM.
        unwanted = [self._active[name] for name in self._active.keys() - ledger.migrations.keys() - self._misled]
        unwanted += [
            migration.vm for name, migration in active.items() if migration.is_leaving and name not in self._misled
        ]
        self._resting |= dict.fromkeys(unwanted, Instant(now + min(policy.rest.cooldown, CALLED_OFF)))
        self._resting = {vm: until for vm, until in self._resting.items() if until > now}
        self._active = {name: migration.vm for name, migration in active.items()}
        self._misled &= ledger.migrations.keys()

    def _left_alone(self, now: Instant, vm: ObjectName) -> str | None:
        """The reason why the VM should not be moved just now, by what is remembered."""
        return explanations.RESTING if self._resting.get(vm, now) > now else self.refused_orders.why_not(vm, now)

    def _present_needs(self, ledger: Ledger, policy: MigrationPolicy, now: Instant) -> Iterator[RoomNeed]:
        for name in ledger.strained:
            book, previous = ledger.nodes[name], self._needs.get(name)
            drains = not book.room.is_open and policy.drain_cordoned
            lasting = None if drains else _lasting(previous, policy)
            is_same = previous is not None and previous.lasting is lasting
            # A node may stay strained for hours without any change; its need is derived once.
            if previous is not None and is_same and previous.is_of(book, drains=drains):
                yield previous
                continue
            pressure = book.pressure
            if not drains and not pressure.too_much:
                continue
            # What leaves may be enough for those that are denied, and yet too little for the watermark.
            is_denied = not pressure.capacity.within(pressure.slack + pressure.migrating)
            denied_before = None if previous is None else previous.denied_since
            yield RoomNeed(
                book,
                seen=seen_of(book),
                excess=None if drains else pressure.excess,
                # A cordon is no pressure that lasts, nor has anything lasted through a span that has just been set.
                since=previous.since if previous is not None and is_same else now,
                denied_since=(now if denied_before is None else denied_before) if is_denied else None,
                lasting=lasting,
            )

    def _learn(self, ledger: Ledger, migration: Migration, why: str, policy: MigrationPolicy, now: Instant) -> None:
        self.refused.note(ledger, (migration.vm, migration.target or ""), why, now, policy.rest)

    def _learn_from_failures(self, ledger: Ledger, policy: MigrationPolicy, now: Instant) -> None:
        """Learn from failed migrations: one without a place was refused, even if its controller ended it first."""
        self.refused.forget_old(now, policy.rest)
        for migration in self._unplaced.newly_failed(ledger.migrations.values()):
            if migration.name not in self._misled:
                self._learn(ledger, migration, explanations.FOUND_NO_NODE, policy, now)

    def _cancels(self, ledger: Ledger, policy: MigrationPolicy, now: Instant, *, is_current: bool) -> Iterator[Cancel]:
        ours = [
            migration
            for migration in ledger.migrations.values()
            if migration.is_active and migration.is_ours and not migration.is_leaving
        ]
        if not ours:
            self._needless_since.clear()
            return
        needless = _needless(ledger, policy, ours)
        self._needless_since = {migration.name: self._needless_since.get(migration.name, now) for migration in needless}
        for migration in ours:
            # It must have been needless for a while, or orders and cancellations would alternate.
            since = self._needless_since.get(migration.name)
            refusal = self._unplaced.gives_up(migration, policy, now, is_current=is_current)
            if refusal is not None and migration.target is not None:
                if migration.name not in self._misled:
                    self._learn(ledger, migration, refusal, policy, now)
                # Its end must not make the VM rest: the target was wrong, not the VM.
                self._misled.add(migration.name)
                yield Cancel(migration.name, explanations.NOT_PLACED.format(node=migration.target, why=refusal))
            # It cannot go on, so it is cancelled at once.
            elif migration.problem is not None and not migration.is_stalled:
                self._misled.add(migration.name)
                yield Cancel(migration.name, explanations.CANNOT_GO.format(why=migration.problem))
            elif now - migration.since >= policy.timeout + GRACE:
                yield Cancel(migration.name, explanations.TIMED_OUT.format(span=policy.timeout))
            elif since is not None and now - since >= min(policy.settle, SETTLES_SOON):
                yield Cancel(migration.name, explanations.NOT_NEEDED.format(node=migration.source))


def _lasting(previous: RoomNeed | None, policy: MigrationPolicy) -> LastingExcess | None:
    lasting = None if previous is None else previous.lasting
    if lasting is not None and lasting.span == policy.settle:
        return lasting
    return LastingExcess(policy.settle) if policy.settle > 0 else None


def _needless(ledger: Ledger, policy: MigrationPolicy, ours: list[Migration]) -> list[Migration]:
    """Of those that have not begun, the ones without which their node is relieved as well; the newest go first."""
    relieved: dict[str, Resources] = {}
    needless = []
    for migration in reversed(ours):
        uid = None if migration.source_pod is None else ledger.uid_of(migration.source_pod)
        claim = None if uid is None else ledger.claims.get(uid)
        # One that has begun is finished: it is paid for.
        if claim is None or migration.phase is not MigrationPhase.PENDING or migration.placed_on is not None:
            continue
        book = ledger.nodes[claim.node]
        if not book.room.is_open and policy.drain_cordoned:
            continue
        size = claim.reserved + claim.unmet
        left = relieved.get(claim.node, book.migrating).minus_or_zero(size)
        if book.pressure.due.within(left):
            relieved[claim.node] = left
            needless.append(migration)
    return needless


def _forgotten(ledger: Ledger, policy: MigrationPolicy, now: Now) -> tuple[ObjectName, ...]:
    """Our objects that are no longer needed."""
    if not ledger.migrations:
        return ()
    over = {migration.vm: None for migration in ledger.migrations.values() if not migration.is_active}
    rest = policy.rest
    names = [
        name
        for vm in over
        # An hour of moves is looked at every second, and next to none of them has become old.
        if rest.may_forget(migrations := ledger.migrations_of(vm), now)
        for name in rest.forgotten(migrations, now)
    ]
    candidates = [ledger.migrations[name] for name in names]
    return tuple(migration.name for migration in candidates if migration.is_ours and not migration.is_leaving)
