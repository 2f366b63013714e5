"""Slots follow the clock on the wall, on days of 23, 24 and 25 hours."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from scheduler_plugin.groups.core.tortoise.slots import Slot, SlotLayout

BERLIN = ZoneInfo("Europe/Berlin")
SPRING = datetime(2026, 3, 29, 0, 30, tzinfo=UTC)  # 01:30 in Berlin; an hour later it is 03:30
AUTUMN = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)  # 02:30 in Berlin; an hour later it is 02:30 again


def hours(begin: datetime, count: int) -> list[int]:
    layout = SlotLayout(1, "daily", BERLIN)
    return [layout.slot_at(begin + timedelta(hours=hour)).start for hour in range(count)]


def test_a_day_of_23_hours_skips_a_slot() -> None:
    assert hours(SPRING, 3) == [1, 3, 4]


def test_long_day_repeats_one_slot() -> None:
    assert hours(AUTUMN, 3) == [2, 2, 3]


@pytest.mark.parametrize("range_hours", [1, 2, 3, 4, 6, 8, 12, 24])
def test_slots_cover_every_hour_of_the_week_once(range_hours: int) -> None:
    layout = SlotLayout(range_hours, "weekly", BERLIN)
    begin = datetime(2026, 5, 4, tzinfo=BERLIN)
    found = [layout.slot_at(begin + timedelta(hours=hour)) for hour in range(7 * 24)]
    assert {slot: found.count(slot) for slot in layout.slots()} == dict.fromkeys(layout.slots(), range_hours)


@pytest.mark.parametrize("range_hours", [0, -1, 5, 48])
def test_slot_hours_must_divide_day(range_hours: int) -> None:
    with pytest.raises(ValueError, match=rf"expected 1, 2, 3, 4, 6, 8, 12 or 24 hours, got {range_hours}"):
        SlotLayout(range_hours, "daily", BERLIN)


@pytest.mark.parametrize(
    ("range_hours", "last", "now", "again"),
    [
        (1, "2026-05-04T12:59+02:00", "2026-05-05T12:00+02:00", True),
        (1, "2026-05-04T12:00+02:00", "2026-05-04T12:59+02:00", False),
        (1, "2026-03-28T12:59+01:00", "2026-03-29T12:00+02:00", True),  # only 22 hours have passed
        (1, "2026-10-25T02:30+02:00", "2026-10-25T02:30+01:00", False),  # the same hour, the second time
        (1, "2026-10-24T12:00+02:00", "2026-10-25T12:00+01:00", True),
        (12, "2026-05-04T11:59+02:00", "2026-05-05T00:00+02:00", True),
        (24, "2026-05-04T23:59+02:00", "2026-05-05T00:00+02:00", True),
        (24, "2026-05-04T00:00+02:00", "2026-05-04T23:59+02:00", False),
        (1, "2026-05-06T12:00+02:00", "2026-05-05T12:00+02:00", False),  # the clock was set back
    ],
)
def test_a_slot_comes_again_on_another_day(range_hours: int, last: str, now: str, again: bool) -> None:
    layout = SlotLayout(range_hours, "daily", BERLIN)
    assert layout.recurs(datetime.fromisoformat(last), datetime.fromisoformat(now)) is again


def test_slot_without_weekday_is_daily() -> None:
    assert Slot(3, 4).overlaps(Slot(3, 4, "Sunday"))
    assert not Slot(3, 4, "Monday").overlaps(Slot(3, 4, "Sunday"))
