"""Slots of a memory as a Tortoise's status has them: ``{from, to, weekday, timezone, value, updatedAt}``.

Rules that hold here:

- Reading never fails: an entry that cannot be read is left out, and is learned anew.
- The first readable entry tells the layout, so that a memory outlives a change of the configuration. At most 168
  entries are read and written.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo

from protocol.kubernetes.objects import Json, JsonObject, text, whole
from protocol.kubernetes.timestamps import parse_timestamp, timestamp
from scheduler_plugin.groups.core.tortoise.slot_memory import Remembered, SlotMemory
from scheduler_plugin.groups.core.tortoise.slots import WEEKDAYS, Slot, SlotLayout

MOST_SLOTS: Final = 168
"""Every hour of a week."""

_MOST: Final = 2**53
"""Larger numbers are no longer exact in every reader of JSON."""


def write_slots(memory: SlotMemory) -> list[Json]:
    """What is known, in the order of the slots."""
    return [_written(memory.layout, slot, known) for slot, known in memory]


def _written(layout: SlotLayout, slot: Slot, known: Remembered) -> Json:
    day = {} if slot.weekday is None else {"weekday": slot.weekday}
    at = timestamp(known.at.timestamp())
    hours: Json = {"from": slot.start, "to": slot.end, **day, "timezone": layout.zone.key}
    return {**hours, "value": known.value, "updatedAt": at}


def read_slots(entries: Iterable[JsonObject], otherwise: SlotLayout) -> SlotMemory:
    """The memory that ``write_slots`` wrote; an empty one in the layout ``otherwise`` where there is none."""
    found = list(entries)[:MOST_SLOTS]
    layout = next((each for entry in found if (each := _layout(entry)) is not None), otherwise)
    slots = set(layout.slots())
    values = {slot: known for entry in found if (known := _known(entry, layout)) and (slot := _slot(entry)) in slots}
    return SlotMemory(layout, values)


def _layout(entry: JsonObject) -> SlotLayout | None:
    weekday = text(entry, "weekday")
    try:
        zone = ZoneInfo(text(entry, "timezone"))
        layout = SlotLayout(whole(entry, "to") - whole(entry, "from"), "weekly" if weekday else "daily", zone)
    except (ValueError, KeyError, OSError):
        return None
    return layout if not weekday or weekday in WEEKDAYS else None


def _slot(entry: JsonObject) -> Slot:
    return Slot(whole(entry, "from"), whole(entry, "to"), text(entry, "weekday") or None)


def _known(entry: JsonObject, layout: SlotLayout) -> Remembered | None:
    value, at = entry.get("value"), parse_timestamp(entry.get("updatedAt"))
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST or at is None:
        return None
    return Remembered(value, datetime.fromtimestamp(at, UTC)) if text(entry, "timezone") == layout.zone.key else None
