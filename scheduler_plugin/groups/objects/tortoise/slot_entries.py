"""Slots of a memory as a Tortoise's status has them: ``{from, to, weekday, timezone, value, updatedAt}``."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Final
from zoneinfo import ZoneInfo

import msgspec

from protocol.kubernetes.objects import Json, JsonObject
from scheduler_plugin.groups.core.tortoise.slots import WEEKDAYS, Remembered, Slot, SlotLayout, SlotMemory

MOST_SLOTS: Final = 168
"""Every hour of a week."""

_MOST: Final = 2**53
"""Larger numbers are no longer exact in every reader of JSON."""


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    from_: int = msgspec.field(name="from")
    to: int
    timezone: str
    value: Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
    updatedAt: Annotated[datetime, msgspec.Meta(tz=True)]  # noqa: N815 - the name in the API
    weekday: str | None = None

    @property
    def slot(self) -> Slot:
        return Slot(self.from_, self.to, self.weekday)

    @property
    def at(self) -> datetime:
        return self.updatedAt.astimezone(UTC)


def write_slots(memory: SlotMemory) -> list[Json]:
    """Encode the known values, in the order of the slots."""
    zone = memory.layout.zone.key
    entries = [
        _Entry(slot.start, slot.end, zone, remembered.value, remembered.at.replace(microsecond=0), slot.weekday)
        for slot, remembered in memory
    ]
    written: list[Json] = msgspec.to_builtins(entries)
    return written


def read_slots(entries: Iterable[JsonObject], otherwise: SlotLayout) -> SlotMemory:
    """The memory that ``write_slots`` wrote; an empty one in the layout ``otherwise`` if there is none."""
    # Whatever someone wrote into the status, read at most one week of hours.
    parsed = _read(list(entries)[:MOST_SLOTS])
    # The first readable entry defines the layout, so that a memory survives a change of the configuration.
    layout = next((candidate for entry in parsed if (candidate := _layout(entry)) is not None), otherwise)
    slots = frozenset(layout.slots())
    named = [(entry.slot, entry) for entry in parsed if entry.timezone == layout.zone.key]
    return SlotMemory(layout, {slot: Remembered(entry.value, entry.at) for slot, entry in named if slot in slots})


def _read(found: list[JsonObject]) -> list[_Entry]:
    """The entries that can be read."""
    try:
        # All at once is much faster; a bad entry makes it fail.
        return msgspec.convert(found, list[_Entry])
    except ValueError:
        return [entry for raw in found if (entry := _one(raw)) is not None]


def _one(found: JsonObject) -> _Entry | None:
    try:
        return msgspec.convert(found, _Entry)
    except ValueError:
        # Skipped; it is learned again when its slot comes.
        return None


def _layout(entry: _Entry) -> SlotLayout | None:
    if entry.weekday is not None and entry.weekday not in WEEKDAYS:
        return None
    try:
        return SlotLayout(entry.to - entry.from_, "weekly" if entry.weekday else "daily", ZoneInfo(entry.timezone))
    except (ValueError, KeyError, OSError):
        return None
