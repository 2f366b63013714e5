"""What the slots of the past needed: a number for each, which only a slot that comes again may lower (S3.2).

Rules that hold here:

- A memory has at most one entry for each slot: 168.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction
from math import floor

from scheduler_plugin.groups.core.tortoise.slots import Slot, SlotLayout


@dataclass(frozen=True, slots=True)
class Remembered:
    """The number of one slot, and when it was last learned."""

    value: int
    at: datetime


@dataclass(frozen=True, slots=True)
class SlotMemory:
    """The numbers of one layout's slots."""

    layout: SlotLayout
    values: Mapping[Slot, Remembered] = field(default_factory=dict)

    def learned(self, value: int, decay: Fraction, now: datetime) -> SlotMemory:
        """The memory after ``value`` (>= 0) was seen; ``decay`` (0..1) of what a slot held counts when it comes again.

        >>> from datetime import UTC
        >>> from zoneinfo import ZoneInfo
        >>> noon = datetime(2026, 5, 4, 12, tzinfo=UTC)
        >>> memory = SlotMemory(SlotLayout(1, "daily", ZoneInfo("UTC"))).learned(100, Fraction("0.95"), noon)
        >>> [memory.learned(7, Fraction("0.95"), noon.replace(day=day)).at(noon) for day in (4, 5)]
        [100, 95]
        """
        slot = self.layout.slot_at(now)
        previous = self.values.get(slot)
        if previous is None:
            return self._with(slot, value, now)
        again = self.layout.comes_again(previous.at, now)
        # Within one occurrence of a slot its number only rises; when it comes again, it starts from a little less.
        highest = max(value, floor(previous.value * decay) if again else previous.value)
        # A date in the future comes from a clock that has since been set back: it would keep the slot from fading until
        # then. Otherwise the memory stays the same, so that not every look writes a status.
        return self._with(slot, highest, now) if again or highest != previous.value or previous.at > now else self

    def at(self, now: datetime) -> int | None:
        """Need in the slot of ``now``; the maximum of all slots if it never came; None if nothing is known.

        A slot may never have come: the hour that is skipped in spring, or one in which nothing was running.
        """
        previous = self.values.get(self.layout.slot_at(now))
        return previous.value if previous is not None else self.most

    def exactly_at(self, now: datetime) -> int:
        """Need in the slot of ``now`` itself; 0 if it never came."""
        previous = self.values.get(self.layout.slot_at(now))
        return 0 if previous is None else previous.value

    @property
    def most(self) -> int | None:
        """The greatest number of all slots; None if nothing is known."""
        return max((remembered.value for remembered in self.values.values()), default=None)

    def laid_out(self, layout: SlotLayout) -> SlotMemory:
        """The same memory in another layout: each slot takes the maximum of those that it overlaps.

        Nothing is taken over from another time zone.
        """
        if layout == self.layout:
            return self
        # The hours of another zone mean other times, so nothing can be taken over.
        if layout.zone != self.layout.zone:
            return SlotMemory(layout)
        values = {
            slot: max(those, key=lambda remembered: remembered.value)
            for slot in layout.slots()
            if (those := self._over(slot))
        }
        return SlotMemory(layout, values)

    def __iter__(self) -> Iterator[tuple[Slot, Remembered]]:
        """The known needs, in the order of the slots."""
        return ((slot, self.values[slot]) for slot in self.layout.slots() if slot in self.values)

    def _with(self, slot: Slot, value: int, now: datetime) -> SlotMemory:
        return SlotMemory(self.layout, {**self.values, slot: Remembered(value, now)})

    def _over(self, other: Slot) -> list[Remembered]:
        return [remembered for slot, remembered in self.values.items() if _overlap(slot, other)]


def _overlap(one: Slot, other: Slot) -> bool:
    same_day = one.weekday is None or other.weekday is None or one.weekday == other.weekday
    return same_day and one.start < other.end and other.start < one.end
