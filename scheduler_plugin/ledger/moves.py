"""Migrations of VMs: ordered by us, or found in the API (S4.9).

A migration is active from the moment that it is ordered until it has ended or is gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from protocol.messages import ObjectName
from protocol.units import Instant, Seconds
from scheduler_plugin.ledger.facts import MigrationFacts, MigrationPhase, PodFacts

BEGINS_WITHIN: Final = Seconds(60.0)
"""How long a migration counts whose target pod has no node: room is reserved for the VM, and its old room is expected
to become free."""

REMEMBERED_GONE: Final = 2_000
"""How many UIDs of deleted migrations are remembered."""


class MoveCause(Enum):
    """Cause of a move."""

    WATERMARK = "watermark"
    DENIED_VM = "denied_vm"
    DEFERRED_POD = "deferred_pod"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class Move:
    """A VM is to leave node ``source`` for node ``target``. ``uid`` is that of the pod that runs it.

    ``cause`` is what it is for, ``reason`` says so to people.
    """

    vm: ObjectName
    uid: str
    source: str
    target: str
    reason: str
    cause: MoveCause = MoveCause.WATERMARK


def reservation_uid(migration: ObjectName | None) -> str:
    """The UID under which room is claimed for a migration before its target pod is placed; no pod's UID is like it."""
    return f"reservation of {migration}"


class Creation(Enum):
    """Certainty that the object exists while it has not been seen."""

    ORDERED = "ordered"  # its creation has not been answered, or not been tried
    UNSURE = "unsure"  # the outcome of its creation is unknown
    DONE = "created"  # the API has it


@dataclass(frozen=True, slots=True)
class WaitingTarget:
    """A target pod without a node; ``refusal`` is why kube-scheduler finds none, empty while it has not said."""

    uid: str
    refusal: str


@dataclass(slots=True, eq=False)
class Migration:
    """One migration. ``facts`` is None until the API has shown it, ``since`` is when it was first heard of.

    ``source`` is the node that the VM leaves, ``target`` the node that was chosen for it, ``placed_on`` the node that
    its target pod was placed on. ``problem`` says why nothing is reserved on ``target`` although it should be.
    ``waiting_target`` is its target pod while that has no node. ``over_since`` is when it was first seen to be over.
    ``cause`` is what this scheduler ordered it for; None if a person or a scheduler before a restart did.
    ``is_overdue``: it was first heard of longer than ``BEGINS_WITHIN`` ago. ``is_stalled``: it is overdue and its
    target pod has no node: it counts no more until it has.
    """

    name: ObjectName
    vm: ObjectName
    since: Instant
    target: str | None = None
    reason: str = ""
    source: str | None = None
    creation: Creation = Creation.DONE
    facts: MigrationFacts | None = None
    source_pod: ObjectName | None = None
    target_pod: ObjectName | None = None
    placed_on: str | None = None
    problem: str | None = None
    waiting_target: WaitingTarget | None = None
    over_since: Instant | None = None
    cause: MoveCause | None = None
    is_overdue: bool = False
    is_stalled: bool = False

    @property
    def reservation_uid(self) -> str:
        """The UID under which the room on ``target`` is claimed before the target pod is placed."""
        return reservation_uid(self.name)

    @property
    def phase(self) -> MigrationPhase:
        """Phase of the move; one that has not been seen is PENDING."""
        return MigrationPhase.PENDING if self.facts is None else self.facts.phase

    @property
    def is_active(self) -> bool:
        """True if the VM is on its way, or about to be."""
        return self.facts is None or not self.facts.phase.is_over

    @property
    def arrives_unseen(self) -> bool:
        """True if the VM has moved, and its target pod has not been seen on a node yet."""
        return self.phase is MigrationPhase.SUCCEEDED and self.placed_on is None

    @property
    def is_leaving(self) -> bool:
        """True if it is being cancelled."""
        return self.facts is not None and self.facts.is_leaving

    @property
    def is_ours(self) -> bool:
        """True if a scheduler of ours made it."""
        # One that was never seen is known only because we have ordered it.
        return self.facts is None or self.facts.is_ours

    @property
    def has_begun(self) -> bool:
        """True if its controller is at work on it."""
        return self.phase is not MigrationPhase.PENDING or self.target_pod is not None or self.placed_on is not None

    @property
    def goal(self) -> str | None:
        """The node that the VM moves to, as far as is known."""
        return self.placed_on or self.target

    def learn(self, facts: MigrationFacts, now: Instant) -> None:
        """Takes newer facts; older ones than those known change nothing."""
        if self.facts is not None and facts.version < self.facts.version:
            return
        self.facts, self.creation = facts, Creation.DONE
        if facts.phase.is_over and self.over_since is None:
            self.over_since = now
        self.target = facts.target
        # A status may lose its pods again; what it once said of them stays true.
        self.source_pod = facts.source_pod or self.source_pod
        self.target_pod = facts.target_pod or self.target_pod


def carried_out(migrations: Iterable[Migration]) -> Migration | None:
    """Of a VM's migrations the one that is carried out now or next: one that has begun, or else the oldest.

    People may make any number; a VM moves by one at a time.
    """
    active = [migration for migration in migrations if migration.is_active and not migration.is_leaving]
    return next((migration for migration in active if migration.has_begun), active[0] if active else None)


class Migrations:
    """All migrations, by name and by VM; ``disturbed`` are VMs whose claims ``settle`` has yet to bring up to date."""

    def __init__(self) -> None:
        self.named: dict[ObjectName, Migration] = {}
        self._of_vm: dict[ObjectName, list[Migration]] = {}
        self.disturbed: dict[ObjectName, None] = {}
        self._gone: dict[str, None] = {}
        self._waiting: dict[ObjectName, WaitingTarget] = {}

    def of(self, vm: ObjectName) -> list[Migration]:
        """The VM's migrations, oldest first."""
        return self._of_vm.get(vm, [])

    def active(self, vm: ObjectName) -> Migration | None:
        """The VM's first migration that has not ended."""
        return next((migration for migration in self.of(vm) if migration.is_active), None)

    def forget_versions(self) -> None:
        """Facts of any version count as news from now on, and what is gone may come back."""
        self._gone.clear()
        for migration in self.named.values():
            if migration.facts is not None:
                migration.facts = replace(migration.facts, version=0)

    def is_gone(self, uid: str) -> bool:
        """Return True if the migration was deleted."""
        return uid in self._gone

    def add(self, migration: Migration) -> None:
        """A migration of a name that is not taken."""
        self.named[migration.name] = migration
        self._of_vm.setdefault(migration.vm, []).append(migration)
        migration.waiting_target = self._waiting.get(migration.name)
        self.disturb(migration.vm)

    def drop(self, name: ObjectName) -> None:
        """A migration that is known is gone, or never came to be."""
        migration = self.named.pop(name)
        if migration.facts is not None:
            # A late event must not bring it back.
            self._gone[migration.facts.uid] = None
            if len(self._gone) > REMEMBERED_GONE:
                del self._gone[next(iter(self._gone))]
        left = self._of_vm[migration.vm]
        left.remove(migration)
        if not left:
            del self._of_vm[migration.vm]
        self.disturbed[migration.vm] = None

    def target_waits(self, migration: ObjectName, pod: PodFacts) -> None:
        """The target pod is there and has no node; the migration itself may not have been seen yet."""
        self._set_waiting(migration, WaitingTarget(pod.uid, pod.unschedulable))

    def target_placed(self, migration: ObjectName) -> None:
        """The target pod has a node."""
        self._set_waiting(migration, None)

    def target_gone(self, uid: str) -> None:
        """A pod is gone; it may have been a target that was waiting."""
        for migration in [name for name, waiting in self._waiting.items() if waiting.uid == uid]:
            self._set_waiting(migration, None)

    def _set_waiting(self, migration: ObjectName, waiting: WaitingTarget | None) -> None:
        if waiting is None:
            self._waiting.pop(migration, None)
        else:
            self._waiting[migration] = waiting
        # The migration may be seen later than its target pod; ``add`` then takes the pod from ``_waiting``.
        existing = self.named.get(migration)
        if existing is not None:
            existing.waiting_target = waiting

    def has_moved_from(self, pod: PodFacts, runs_elsewhere: bool) -> bool:
        """Return True if the pod, which its VM's status does not name, is one that the VM was in, and not one to come.

        ``runs_elsewhere``: the status names another pod, which is there.
        """
        moved = [] if pod.vm is None else self.of(pod.vm)
        # A pod that is being deleted may be the VM's only one.
        return (pod.is_leaving and runs_elsewhere) or any(
            migration.phase is MigrationPhase.SUCCEEDED and migration.source_pod == pod.name for migration in moved
        )

    def lapse(self, now: Instant) -> None:
        """Time has passed: migrations that have not begun within ``BEGINS_WITHIN`` may no longer count."""
        for migration in self.named.values():
            # Only the first time: each VM named here is looked at again.
            if migration.is_active and not migration.is_overdue and now - migration.since >= BEGINS_WITHIN:
                migration.is_overdue = True
                self.disturbed[migration.vm] = None

    def disturb(self, vm: ObjectName | None) -> None:
        """Something about the VM has changed; only one that has migrations matters."""
        # Most VMs never migrate; ``settle`` must not look at each of them after each event.
        if vm in self._of_vm and vm is not None:
            self.disturbed[vm] = None

    def disturb_bound_for(self, node: str) -> None:
        """Something about a node has changed: room there may be reserved, or no longer."""
        for migration in self.named.values():
            if migration.target == node:
                self.disturbed[migration.vm] = None
