"""Migrations of VMs, ordered by this scheduler or found in the API server (S4.9).

A migration is active from its order until it has ended or is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from protocol.messages import ObjectName
from protocol.units import Instant, Seconds
from scheduler_plugin.ledger.facts import MigrationFacts, MigrationPhase, PodFacts

START_TIMEOUT: Final = Seconds(60.0)
"""How long a migration counts without a node for its target pod: as long as its room is reserved and its source is
expected to become free.
"""

MAX_GONE: Final = 2_000
"""Maximum number of UIDs of deleted migrations to remember."""


class MoveCause(Enum):
    """Cause of a move."""

    WATERMARK = "watermark"
    DENIED_VM = "denied_vm"
    DEFERRED_POD = "deferred_pod"
    DRAIN = "drain"
    GROWTH = "growth"


@dataclass(frozen=True, slots=True)
class Move:
    """An order to move a VM from node ``source`` to ``target``. ``uid`` is the UID of its pod.

    ``reason`` describes ``cause`` in words.
    """

    vm: ObjectName
    uid: str
    source: str
    target: str
    reason: str
    cause: MoveCause = MoveCause.WATERMARK


def reservation_uid(migration: ObjectName | None) -> str:
    """The claim UID of a migration before its target pod is placed; no pod has such a UID."""
    return f"reservation of {migration}"


class Creation(Enum):
    """State of an object that no watch has shown."""

    ORDERED = "ordered"  # its creation is in flight, or was not tried yet
    UNSURE = "unsure"  # its creation has an unknown outcome
    DONE = "created"  # the API server has it


@dataclass(frozen=True, slots=True)
class WaitingTarget:
    """A target pod without a node; ``refusal`` is kube-scheduler's reason, empty if none yet."""

    uid: str
    refusal: str


@dataclass(slots=True, eq=False)
class Migration:
    """One migration."""

    name: ObjectName
    vm: ObjectName
    since: Instant  # when it was first known
    target: str | None = None  # node chosen for the VM
    reason: str = ""
    source: str | None = None  # node that the VM leaves
    creation: Creation = Creation.DONE
    facts: MigrationFacts | None = None  # None until it is observed
    source_pod: ObjectName | None = None
    target_pod: ObjectName | None = None
    placed_on: str | None = None  # node of its target pod
    problem: str | None = None  # why nothing is reserved on ``target`` although it should be
    waiting_target: WaitingTarget | None = None  # its target pod while that has no node
    over_since: Instant | None = None  # when it was first seen to be over
    cause: MoveCause | None = None  # None if a user or a previous process ordered it
    is_overdue: bool = False  # older than ``START_TIMEOUT``
    is_stalled: bool = False  # overdue, and its target pod has no node: it does not count until that pod has one

    @property
    def reservation_uid(self) -> str:
        """UID of the claim on ``target`` before the target pod is placed."""
        return reservation_uid(self.name)

    @property
    def phase(self) -> MigrationPhase:
        """Phase of the migration; PENDING if not seen."""
        return MigrationPhase.PENDING if self.facts is None else self.facts.phase

    @property
    def is_active(self) -> bool:
        """True until the migration has ended."""
        return self.facts is None or not self.facts.phase.is_over

    @property
    def arrived_unseen(self) -> bool:
        """True if the VM has moved, and its target pod has not been seen on a node yet."""
        return self.phase is MigrationPhase.SUCCEEDED and self.placed_on is None

    @property
    def is_terminating(self) -> bool:
        """True if it is being cancelled."""
        return self.facts is not None and self.facts.is_terminating

    @property
    def is_ours(self) -> bool:
        """True if our scheduler created it."""
        # An unseen migration is known only because we ordered it.
        return self.facts is None or self.facts.is_ours

    @property
    def has_started(self) -> bool:
        """True if its controller has started it."""
        return self.phase is not MigrationPhase.PENDING or self.target_pod is not None or self.placed_on is not None

    @property
    def destination(self) -> str | None:
        """The node that the VM moves to, if known."""
        return self.placed_on or self.target

    def learn(self, facts: MigrationFacts, now: Instant) -> None:
        """Store newer facts; older ones are ignored."""
        if self.facts is not None and facts.version < self.facts.version:
            return
        self.facts, self.creation = facts, Creation.DONE
        if facts.phase.is_over and self.over_since is None:
            self.over_since = now
        self.target = facts.target
        # A status may lose its pods; what it said before stays true.
        self.source_pod = facts.source_pod or self.source_pod
        self.target_pod = facts.target_pod or self.target_pod


def current_migration(migrations: Iterable[Migration]) -> Migration | None:
    """The migration of a VM that runs now or next: a started one, or else the oldest.

    There may be any number; a VM moves by one at a time.
    """
    active = [migration for migration in migrations if migration.is_active and not migration.is_terminating]
    return next((migration for migration in active if migration.has_started), active[0] if active else None)


class Migrations:
    """All migrations, by name and by VM; ``dirty`` are the VMs whose claims ``settle`` must update."""

    def __init__(self) -> None:
        self.named: dict[ObjectName, Migration] = {}
        self._of_vm: dict[ObjectName, list[Migration]] = {}
        self.dirty: dict[ObjectName, None] = {}
        self._deleted_uids: dict[str, None] = {}
        self._waiting: dict[ObjectName, WaitingTarget] = {}

    def of(self, vm: ObjectName) -> list[Migration]:
        """The VM's migrations, oldest first."""
        return self._of_vm.get(vm, [])

    def active(self, vm: ObjectName) -> Migration | None:
        """The VM's first migration that has not ended."""
        return next((migration for migration in self.of(vm) if migration.is_active), None)

    def forget_versions(self) -> None:
        """Accept facts of any version, including deleted migrations."""
        self._deleted_uids.clear()
        for migration in self.named.values():
            if migration.facts is not None:
                migration.facts = replace(migration.facts, version=0)

    def is_gone(self, uid: str) -> bool:
        """Return True if the migration was deleted."""
        return uid in self._deleted_uids

    def add(self, migration: Migration) -> None:
        """Add a migration with a new name."""
        self.named[migration.name] = migration
        self._of_vm.setdefault(migration.vm, []).append(migration)
        migration.waiting_target = self._waiting.get(migration.name)
        self.mark_dirty(migration.vm)

    def drop(self, name: ObjectName) -> None:
        """Remove a migration that is gone or was never created."""
        migration = self.named.pop(name)
        if migration.facts is not None:
            # A late event must not restore it.
            self._deleted_uids[migration.facts.uid] = None
            if len(self._deleted_uids) > MAX_GONE:
                del self._deleted_uids[next(iter(self._deleted_uids))]
        left = self._of_vm[migration.vm]
        left.remove(migration)
        if not left:
            del self._of_vm[migration.vm]
        self.dirty[migration.vm] = None

    def target_gone(self, uid: str) -> None:
        """Remove a pod that is gone, if it was a waiting target."""
        for migration in [name for name, waiting in self._waiting.items() if waiting.uid == uid]:
            self.set_waiting_target(migration, None)

    def set_waiting_target(self, migration: ObjectName, pod: PodFacts | None) -> None:
        """Record the target pod while it has no node, else None; its migration may not have been seen yet."""
        waiting = None if pod is None else WaitingTarget(pod.uid, pod.unschedulable)
        if waiting is None:
            self._waiting.pop(migration, None)
        else:
            self._waiting[migration] = waiting
        # The migration may be seen after its target pod; then ``add`` takes the pod from ``_waiting``.
        existing = self.named.get(migration)
        if existing is not None:
            existing.waiting_target = waiting

    def moved_from(self, vm: ObjectName | None) -> Set[ObjectName | None]:
        """The pods that the VM has left for good by a migration."""
        moves = () if vm is None else self.of(vm)
        return {migration.source_pod for migration in moves if migration.phase is MigrationPhase.SUCCEEDED}

    def pods_of(self, vm: ObjectName) -> Set[ObjectName | None]:
        """The pods that the VM's migrations name."""
        return {pod for migration in self.of(vm) for pod in (migration.source_pod, migration.target_pod)}

    def expire(self, now: Instant) -> None:
        """Mark migrations as overdue that have not started within ``START_TIMEOUT``."""
        for migration in self.named.values():
            # Only once: each VM named here is checked again.
            if migration.is_active and not migration.is_overdue and now - migration.since >= START_TIMEOUT:
                migration.is_overdue = True
                self.dirty[migration.vm] = None

    def mark_dirty(self, vm: ObjectName | None) -> None:
        """Mark a changed VM for ``settle``, if it has migrations."""
        # Most VMs never migrate, and ``settle`` runs after each event.
        if vm in self._of_vm and vm is not None:
            self.dirty[vm] = None

    def mark_dirty_bound_for(self, node: str) -> None:
        """Mark VMs moving to a changed node, where room may now be reserved, or no longer."""
        for migration in self.named.values():
            if migration.target == node:
                self.dirty[migration.vm] = None
