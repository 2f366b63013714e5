"""Reasons and notes of the scheduler's Events, as ``kubectl describe`` shows them. Pure."""

from __future__ import annotations

from typing import Final

from protocol.units import Resources, Seconds

EventText = tuple[str, str]
"""A reason in CamelCase, and a note."""

UNKNOWN_SOURCE: Final = "an unknown node"
UNKNOWN_TARGET: Final = "a node not chosen yet"
BOUND_REACHED: Final = "it has reached its upper bound"
DELETED: Final = "its object was deleted"
NO_REASON: Final = "its controller gave no reason"
CANCELLED: Final = "cancelled: {why}"
REFUSED: Final = "kube-scheduler says: {refusal}"

PARTLY_UNREADABLE: Final = "PartlyUnreadable"
UNIT_MISFIT: Final = "ComputeUnitMisfit"
SLOTS_MISFIT: Final = "the compute unit's memory of {unit} is not a multiple of the VM's slot size of {slot}"
UNIT_TOO_LARGE: Final = "the compute unit's {what} of {unit} is larger than the VM's range of {least} to {most}"
BOUNDS_MISFIT: Final = "the VM's {what} of {least} to {most} is not a multiple of the compute unit's {unit}"


def growth_denied(wanted: Resources, permit: Resources, why: str) -> EventText:
    """A VM did not get all that its agent requested."""
    return "GrowthDenied", f"asked for {wanted}, got {permit}: {why or BOUND_REACHED}"


def permit_not_stored(permit: Resources, why: str) -> EventText:
    """An agent got an error because its permit could not be stored."""
    return "PermitNotStored", f"the permit {permit} could not be stored: {why}"


def unreadable(why: str) -> EventText:
    """An object cannot be read."""
    return "Unreadable", f"cannot be read: {why}; accounting it at its maximum"


def not_resized(why: str) -> EventText:
    """A pod that opted in is not resized, or can only shrink."""
    return "NotResized", why


def weight_unreadable(label: str, most: int, value: str, default: int) -> EventText:
    """A VM has an invalid weight and gets the default."""
    expected = f"metadata.labels[{label}]: expected a whole number from 1 to {most}"
    return "WeightUnreadable", f"{expected}, got {value}; using {default}"


def room_being_made(vm: object, source: str, target: str) -> EventText:
    """Another VM moves away to make room."""
    return "RoomBeingMade", f"VM {vm} is migrating from {source} to {target} to make room"


def migration_waits(migration: str, why: str) -> EventText:
    """kube-scheduler refuses the target pod of a migration that a user created."""
    return "MigrationWaits", f"{migration} is waiting: {why}"


def migration_started(source: str, target: str, reason: str) -> EventText:
    """A migration was seen for the first time."""
    return "MigrationStarted", f"migrating from {source} to {target}{because(reason)}"


def migration_stalled(migration: str, problem: str | None, refusal: str) -> EventText:
    """A migration has not started and no longer counts; its creator can cancel it."""
    says = f" ({REFUSED.format(refusal=refusal)})" if refusal else ""
    return "MigrationStalled", f"{migration}: {problem}{says}"


def migration_succeeded(source: str, target: str, numbers: str) -> EventText:
    """A VM runs on its target."""
    return "MigrationSucceeded", f"migrated from {source} to {target} {numbers}"


def migration_failed(source: str, target: str, why: str) -> EventText:
    """A VM stays on its source."""
    return "MigrationFailed", f"did not migrate from {source} to {target}: {why}"


def migration_numbers(total: Seconds | None, downtime: Seconds | None) -> str:
    """Duration and downtime of a migration."""
    return f"in {_ms(total)} with a downtime of {_ms(downtime)}"


def because(reason: str) -> str:
    """A reason at the end of a sentence; empty if there is none."""
    return f": {reason}" if reason else ""


def _ms(span: Seconds | None) -> str:
    return "an unknown time" if span is None else f"{round(span * 1000)} ms"
