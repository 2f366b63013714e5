"""VMs of a node that may move (S4.8); ``cost`` chooses among them.

A VM may move if our scheduler placed it, it is in phase Running and in one bound pod, and is neither migrating nor in
cooldown. Moving a sleeping VM frees nothing: it leaves only a node that is drained, or that has no room for it to wake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from operator import itemgetter
from typing import Final

from protocol.backoff import Backoff
from protocol.guest.sleep import SLEEPING
from protocol.messages import Metrics, ObjectName
from protocol.units import Instant, Resources, Seconds
from scheduler_plugin.ledger.accounts.claims import Claim, ClaimState
from scheduler_plugin.ledger.facts import RUNNING, MigrationFacts, MigrationPhase, VmFacts
from scheduler_plugin.ledger.ledger import SILENT_AFTER, Ledger
from scheduler_plugin.ledger.moves import Migration, MoveCause
from scheduler_plugin.texts import explanations

COPY_TIME: Final = Seconds(5.0)
"""Approximate duration of the copy; memory that changes during it is copied again."""

RECENT: Final = Seconds(3600.0)
"""How long a move makes the next move of the same VM more expensive."""

HELD_AFTER_FAILURE: Final = Seconds(15.0)
"""How long a VM may stay held after a failed migration; our own controller releases it immediately."""


@dataclass(frozen=True, slots=True)
class PlanningTime:
    """The present time: ``monotonic``, and ``wall`` in Unix seconds like API timestamps."""

    monotonic: Instant
    wall: float


@dataclass(frozen=True, slots=True)
class Victim:
    """A VM that may move."""

    vm: ObjectName
    claim: Claim
    load: float  # load average in vCPUs; infinite if unknown
    to_copy: int  # bytes, as far as known
    index: int  # position among the node's claims, oldest first
    recent_moves: int  # successful ones within ``RECENT``

    @property
    def size(self) -> Resources:
        """The room that its node gains and a target needs: its size plus what it was denied.

        For a sleeping VM, the size that it wakes with.
        """
        needed = self.claim.reserved + self.claim.unmet
        return needed if not self.claim.sleeps else needed.at_least(self.claim.reserved + self.claim.wake_need.missing)

    @property
    def growth(self) -> Resources:
        """The amount by which it may grow on the target."""
        return (self.claim.reserved + self.claim.growth).minus_or_zero(self.size)


@dataclass(frozen=True, slots=True)
class MoveDelays:
    """Wait of a VM between migrations: ``cooldown`` after a success, ``backoff`` after a failure.

    ``backoff`` doubles with each failure in a row, up to ``max_backoff``.
    """

    cooldown: Seconds = Seconds(3600.0)
    backoff: Seconds = Seconds(60.0)
    max_backoff: Seconds = Seconds(3600.0)

    def until(self, migrations: Sequence[Migration], now: PlanningTime, *, drains: bool) -> float:
        """Time at which the VM may move again, in Unix seconds.

        ``drains``: its node is being drained.
        """
        until, failures, before = -inf, 0, -inf
        for at, migration in _ended(migrations, now):
            if at - before > 2 * self.max_backoff:
                failures = 0  # a success resets failures, even if their objects still exist
            before = at
            if migration.phase is MigrationPhase.SUCCEEDED:
                failures = 0
                # A drain moves even a VM that has just arrived. A VM that arrived by a drain did not choose its node
                # for room, so it may move again immediately.
                is_free = drains or migration.cause is MoveCause.DRAIN
                until = -inf if is_free else at + self.cooldown
            else:
                failures += 1
                until = at + self.after(failures)
        return until

    def after(self, failures: int) -> Seconds:
        """Wait after that many failures in a row."""
        return Backoff(self.backoff, self.max_backoff, spread=0.0).delay(failures, 0.0)

    def expired(self, migrations: Sequence[Migration], now: PlanningTime) -> list[ObjectName]:
        """The VM's ended migrations that no longer affect decisions.

        A success expires after ``RECENT``, a failure with the next success or after twice the longest wait.
        """
        ended = _ended(migrations, now)
        successes = [at for at, migration in ended if migration.phase is MigrationPhase.SUCCEEDED]
        last = max(successes, default=-inf)
        return [migration.name for at, migration in ended if self._is_irrelevant(at, migration.phase, last, now.wall)]

    def deletable(self, migrations: Sequence[Migration], now: PlanningTime) -> list[Migration]:
        """The VM's ended migrations of ours to delete now.

        Empty while it has an active one: NeonVM's controller would then cancel that one too, and delete the target pod
        of the ended one, in which the VM now runs.
        """
        # Runs every second over an hour of moves, few of them old.
        if not self.may_have_expired(migrations, now) or any(migration.is_active for migration in migrations):
            return []
        names = set(self.expired(migrations, now))
        return [migration for migration in migrations if migration.is_ours and migration.name in names]

    def holding(self, migrations: Sequence[Migration], now: PlanningTime) -> Migration | None:
        """The failed migration of ours to delete now because it holds the VM, which is in phase ``PreMigrating``.

        If a target pod fails, NeonVM's controller neither resizes nor restarts the VM until its migration is deleted.
        In this phase it deletes the target pod of any deleted migration, also one in which the VM runs.
        """
        ended = _ended(migrations, now)
        last = ended[-1][1] if ended and len(ended) == len(migrations) else None
        if last is None or last.phase is MigrationPhase.SUCCEEDED or not last.is_ours or last.over_since is None:
            return None
        return last if now.monotonic - last.over_since >= HELD_AFTER_FAILURE else None

    def may_have_expired(self, migrations: Sequence[Migration], now: PlanningTime) -> bool:
        """Return False if certainly none of the VM's migrations has ``expired``; a cheap check for the usual case."""
        if len(migrations) != 1:
            return True
        facts, over_since, least = migrations[0].facts, migrations[0].over_since, min(RECENT, 2 * self.max_backoff)
        # Too recent both by its own date and since it was seen to be over.
        return (
            facts is None
            or over_since is None
            or now.monotonic - over_since >= least
            or (facts.created_at if facts.ended_at is None else facts.ended_at) + least <= now.wall
        )

    def _is_irrelevant(self, at: float, phase: MigrationPhase, last_success: float, wall: float) -> bool:
        if phase is MigrationPhase.SUCCEEDED:
            return at + max(self.cooldown, RECENT) <= wall
        # The next failure has to count this one, so keep it for twice the longest wait.
        return at < last_success or at + 2 * self.max_backoff <= wall


def _ended(migrations: Sequence[Migration], now: PlanningTime) -> list[tuple[float, Migration]]:
    """Ended migrations with their end in Unix seconds, earliest first."""
    ended = [
        (_end_of(migration, migration.facts, now), migration)
        for migration in migrations
        if migration.facts and not migration.is_active
    ]
    return sorted(ended, key=itemgetter(0))


def _end_of(migration: Migration, facts: MigrationFacts, now: PlanningTime) -> float:
    """Time of its end, or of its creation if its status has no end; never after it was first seen to be over."""
    end = facts.created_at if facts.ended_at is None else facts.ended_at
    since = migration.over_since
    # The date is from another program's clock; one in the future must not prolong the rest.
    return end if since is None else min(end, now.wall - (now.monotonic - since))


def stays_because(facts: VmFacts, *, opt_in: bool) -> str | None:
    """The reason why the scheduler never moves the VM; None if it may. ``opt_in``: only opted-in VMs move."""
    if facts.is_pod:
        return facts.stays_because
    if facts.auto_migration is False:
        return explanations.KEPT_IN_PLACE
    if opt_in and facts.auto_migration is None:
        return explanations.NOT_OPTED_IN
    return facts.stays_because


def count_recent_moves(migrations: Sequence[Migration], now: PlanningTime) -> int:
    """Number of the VM's successful migrations within ``RECENT``."""
    successes = [at for at, migration in _ended(migrations, now) if migration.phase is MigrationPhase.SUCCEEDED]
    return sum(at + RECENT > now.wall for at in successes)


def is_being_deleted(delays: MoveDelays, migrations: Sequence[Migration], now: PlanningTime) -> bool:
    """Return True while an ended migration of the VM is being deleted, or is about to be."""
    leaving = any(migration.is_terminating and not migration.is_active for migration in migrations)
    return leaving or bool(delays.deletable(migrations, now))


def victim_of(ledger: Ledger, claim: Claim, index: int, now: PlanningTime, *, opt_in: bool) -> Victim | str:
    """The VM of ``claim`` as a candidate to move, or the reason why it cannot move."""
    facts = None if claim.vm is None else claim.vm.facts
    if facts is None:
        return explanations.NOT_KNOWN
    if not ledger.schedules(claim.pod):
        return explanations.OTHER_SCHEDULER
    why = stays_because(facts, opt_in=opt_in) or _busy_reason(ledger, claim, facts)
    if why is not None:
        return why
    if is_lost(ledger, claim, now.monotonic):
        return explanations.NODE_LOST
    recent_moves = count_recent_moves(ledger.migrations_of(facts.name), now)
    return Victim(facts.name, claim, _load(claim), _to_copy(ledger, facts, claim.metrics), index, recent_moves)


def _busy_reason(ledger: Ledger, claim: Claim, facts: VmFacts) -> str | None:
    """The reason why the VM cannot move now."""
    account, moves = claim.vm, [migration for migration in ledger.migrations_of(facts.name) if migration.is_active]
    if claim.is_migrating or moves:
        return explanations.NOT_STARTED if any(migration.is_stalled for migration in moves) else explanations.MIGRATING
    is_whole = account is not None and not account.is_deleted and account.hosts == [claim]
    if claim.state is not ClaimState.BOUND or facts.pod != claim.pod.name or not is_whole:
        return explanations.NOT_IN_ONE_POD
    may_move = facts.phase == RUNNING or facts.phase in SLEEPING
    return None if may_move else explanations.IN_PHASE.format(phase=facts.phase)


def is_lost(ledger: Ledger, claim: Claim, now: Instant) -> bool:
    """Return True if nothing can be copied from the VM's node: it is not ready or gone, and the agents are silent."""
    node = ledger.nodes[claim.node].facts
    if claim.vm is None or (node is not None and explanations.NOT_READY not in node.traits.faults):
        return False
    # A migration would not end before the pod is deleted, which may take hours. If only the kubelet is down, the agents
    # still report.
    return ledger.is_silent(claim.vm, now)


def has_lost_source(ledger: Ledger, migration: Migration, now: Instant) -> bool:
    """Return True if the migration cannot end, because the node of its source pod is lost."""
    # A scheduler that has just started has not heard any agent yet.
    if now - migration.since < SILENT_AFTER:
        return False
    uid = None if migration.source_pod is None else ledger.uid_of(migration.source_pod)
    claim = None if uid is None else ledger.claims.get(uid)
    return claim is not None and is_lost(ledger, claim, now)


def _load(claim: Claim) -> float:
    if claim.sleeps:
        return 0.0
    # An unknown load may be the highest: move it last.
    return inf if claim.metrics is None else claim.metrics.load1


def _to_copy(ledger: Ledger, vm: VmFacts, metrics: Metrics | None) -> int:
    size = vm.actual or vm.wakes_with or vm.use
    used = size.mem if metrics is None or metrics.mem_used is None else metrics.mem_used
    # Newest known rate: memory changed during the copy is copied again.
    dirty_rates = [move.facts.dirty_rate for move in ledger.migrations_of(vm.name) if move.facts is not None]
    rates = [rate for rate in dirty_rates if rate is not None]
    return used.value + (int(rates[-1].value * COPY_TIME) if rates else 0)
