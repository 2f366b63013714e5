"""The phases in the status of NeonVM's objects (pure)."""

from __future__ import annotations

from typing import Final

from deploy.neonvm.objects.vm_spec import FINALIZER, finalizers_of
from protocol.kubernetes.objects import Json, text

PENDING: Final = "Pending"
RUNNING: Final = "Running"
SCALING: Final = "Scaling"
PRE_MIGRATING: Final = "PreMigrating"
MIGRATING: Final = "Migrating"
SUCCEEDED: Final = "Succeeded"
FAILED: Final = "Failed"
# A migration without a phase has not been admitted, and is not under way.
UNFINISHED: Final = frozenset({PENDING, RUNNING})
"""The phases of a migration that is under way."""
ENDED: Final = frozenset({SUCCEEDED, FAILED})


def is_under_way(migration: Json) -> bool:
    """Return True if the migration has begun and not ended."""
    return text(migration, "status", "phase") in UNFINISHED


def has_remains(migration: Json) -> bool:
    """Return True if the migration has failed and its target may be left over."""
    # The source of one that has succeeded has given its guest away: it blocks nothing while its node is silent.
    return text(migration, "status", "phase") == FAILED and is_held(migration)


def is_held(migration: Json) -> bool:
    """Return True if the migration still carries the runtime's finalizer."""
    # The finalizer is removed once the move has left nothing behind.
    return FINALIZER in finalizers_of(migration)
