"""A single VM is given half of what the same hour needed before, shortly before it needs it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.floors import Floor
from protocol.units import Resources
from protocol.virtual_machine import Bounds
from scheduler_plugin.groups.core.tortoise.floor import Peaks, desired_floor, renewed
from scheduler_plugin.groups.core.tortoise.slots import SlotLayout
from scheduler_plugin.groups.core.tortoise.tortoise_memory import TortoiseMode
from tests.examples import examples

LAYOUT = SlotLayout(1, "daily", ZoneInfo("UTC"))
BOUNDS = Bounds(Resources.parse(1, "1Gi"), Resources.parse(8, "8Gi"))
MONDAY = datetime(2026, 5, 4, tzinfo=UTC)
HOUR = timedelta(hours=1)
SMALL, LARGE = Resources.parse(1, "1Gi"), Resources.parse(6, "6Gi")
HALF = Resources.parse(3, "3Gi")


def seen(*uses: Resources, peaks: Peaks | None = None, begin: datetime = MONDAY) -> Peaks:
    """The peaks after hourly observations."""
    found = peaks or Peaks.empty(LAYOUT)
    for hour, use in enumerate(uses):
        found = found.learned(use, LAYOUT, begin + hour * HOUR)
    return found


DAY = seen(*[SMALL] * 9, *[LARGE] * 8, *[SMALL] * 7)


def test_floor_rises_before_morning_load() -> None:
    at = {
        time: desired_floor(DAY, TortoiseMode.AUTO, BOUNDS, datetime.fromisoformat(f"2026-05-05T{time}Z"))
        for time in ("08:54", "08:55", "12:00", "16:59", "17:00")
    }
    assert at == {"08:54": None, "08:55": HALF, "12:00": HALF, "16:59": HALF, "17:00": None}


def test_off_and_emergency_floors() -> None:
    night = MONDAY + 26 * HOUR
    assert desired_floor(DAY, TortoiseMode.OFF, BOUNDS, MONDAY + 34 * HOUR) is None
    assert desired_floor(DAY, TortoiseMode.EMERGENCY, BOUNDS, night) == LARGE


def test_a_floor_stays_within_the_bounds() -> None:
    narrow = Bounds(SMALL, Resources.parse(2, "8Gi"))
    assert desired_floor(DAY, TortoiseMode.AUTO, narrow, MONDAY + 34 * HOUR) == Resources.parse(2, "3Gi")


def test_a_vm_that_is_new_has_no_floor() -> None:
    assert desired_floor(Peaks.empty(LAYOUT), TortoiseMode.AUTO, BOUNDS, MONDAY) is None


def test_new_layout_adopts_known_slots() -> None:
    two = SlotLayout(2, "daily", ZoneInfo("UTC"))
    peaks = DAY.learned(SMALL, two, MONDAY + 24 * HOUR)
    assert desired_floor(peaks, TortoiseMode.AUTO, BOUNDS, MONDAY + 32 * HOUR) == HALF  # eight to ten holds nine


def test_floor_is_renewed_hourly() -> None:
    first = renewed(None, HALF, MONDAY)
    assert first == Floor(HALF, (MONDAY + 2 * HOUR).timestamp())
    assert renewed(first, HALF, MONDAY + HOUR) is first
    late = MONDAY + HOUR + timedelta(seconds=1)
    assert renewed(first, HALF, late) == Floor(HALF, (late + 2 * HOUR).timestamp())
    assert renewed(first, LARGE, MONDAY) == Floor(LARGE, (MONDAY + 2 * HOUR).timestamp())
    assert renewed(first, None, MONDAY) is None


@settings(max_examples=examples(8, 50))
@given(st.integers(1, 32), st.integers(10, 60))
def test_old_peak_fades(size: int, days: int) -> None:
    peak = Resources.parse(size, "1Gi")
    wide, peaks = Bounds(Resources.parse("100m", "1Gi"), Resources.parse(32, "32Gi")), seen(peak)
    for day in range(1, days):
        now = MONDAY + timedelta(days=day)
        floor = desired_floor(peaks, TortoiseMode.AUTO, wide, now)
        peaks = peaks.learned(wide.min if floor is None else floor.at_least(wide.min), LAYOUT, now)
    assert peaks.of_slots(MONDAY).cpu.value <= max(100, size * 1000 * 0.95 ** (days - 1) + 1)
