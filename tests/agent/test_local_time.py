"""Local time, also on days when clocks change."""

from __future__ import annotations

from datetime import datetime

import pytest

from agent.core.sleep.windows import LocalTime, parse_window
from agent.local_time import local_time

SUNDAY = parse_window("Sun 02:30-03:30 Europe/Berlin")


def in_window(utc: str) -> bool:
    return SUNDAY.contains(local_time(datetime.fromisoformat(f"{utc}+00:00").timestamp(), SUNDAY.zone))


def test_window_keeps_its_hours_across_daylight_saving() -> None:
    """In spring 02:30 is skipped, in autumn it comes twice; otherwise winter is an hour from UTC, and summer two."""
    assert [in_window(f"2026-03-29T{at}") for at in ("00:59", "01:00", "01:29", "01:30")] == [False, True, True, False]
    autumn = ("00:29", "00:30", "00:59", "01:00", "01:29", "01:30", "02:29", "02:30")
    assert [in_window(f"2026-10-25T{at}") for at in autumn] == [False, True, True, False, False, True, True, False]
    assert [in_window(f"2026-06-07T{at}") for at in ("00:30", "01:30")] == [True, False]
    assert [in_window(f"2026-12-06T{at}") for at in ("00:30", "01:30")] == [False, True]


def test_days_differ_around_the_world() -> None:
    wall = datetime.fromisoformat("2026-01-01T12:00:00+00:00").timestamp()
    assert local_time(wall, "Pacific/Kiritimati") == LocalTime(4, 2 * 60)
    assert local_time(wall, "Pacific/Pago_Pago") == LocalTime(3, 60)


@pytest.mark.parametrize("zone", ["Europe/Berlim", "Europe", "../UTC", "/etc/passwd", "", "tzdata.zi"])
def test_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(ValueError, match="no such time zone"):
        local_time(0.0, zone)
