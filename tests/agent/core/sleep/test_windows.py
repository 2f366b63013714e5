"""Windows in which a VM is kept awake: their syntax, and the times that they contain."""

from __future__ import annotations

import pytest

from agent.core.sleep.windows import LocalTime, parse_window, window_now

OFFICE = "Mon-Fri 07:00-20:00 Europe/Berlin"
NIGHT = "Fri,Sun 22:00-06:00 UTC"


def at(day: int, hour: int, minute: int = 0) -> LocalTime:
    return LocalTime(day, hour * 60 + minute)


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        (at(0, 7), True),
        (at(0, 6, 59), False),
        (at(4, 19, 59), True),
        (at(4, 20), False),
        (at(5, 12), False),
    ],
)
def test_window_holds_on_its_days(when: LocalTime, holds: bool) -> None:
    assert parse_window(OFFICE).contains(when) is holds


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        (at(4, 22), True),
        (at(5, 5, 59), True),
        (at(5, 6), False),
        (at(5, 22), False),
        (at(6, 3), False),
        (at(0, 3), True),
        (at(4, 3), False),
    ],
)
def test_window_past_midnight_belongs_to_its_first_day(when: LocalTime, holds: bool) -> None:
    assert parse_window(NIGHT).contains(when) is holds


def test_days_may_go_past_sunday() -> None:
    assert parse_window("Sat-Mon,Wed 00:00-24:00 UTC").days == {5, 6, 0, 2}
    assert parse_window("Sat-Mon,Wed 00:00-24:00 UTC").contains(at(6, 23, 59))


def test_first_window_that_holds_is_named() -> None:
    clocks = {"Europe/Berlin": at(4, 20), "UTC": at(4, 22)}
    assert window_now([OFFICE, NIGHT], clocks.__getitem__) == NIGHT
    assert window_now([OFFICE], clocks.__getitem__) is None
    assert window_now([], clocks.__getitem__) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Mo-Fr 07:00-20:00 UTC", "expected days, times and a time zone like 'Mon-Fri 07:00-20:00 UTC', got"),
        ("Mon 07:00-20:00", "expected days, times and a time zone"),
        ("Mon 7:00-20:00 UTC", "expected days, times and a time zone"),
        ("Mon 07:00-20:00 ../UTC", "expected days, times and a time zone"),
        ("Mon 07:00-24:01 UTC", "expected times from 00:00 to 24:00, got"),
        ("Mon 07:60-20:00 UTC", "expected times from 00:00 to 24:00, got"),
        ("Mon 24:00-20:00 UTC", "expected a start before 24:00 and a different end, got"),
        ("Mon 07:00-07:00 UTC", "expected a start before 24:00 and a different end, got"),
        (",".join(["Mon"] * 8) + " 07:00-20:00 UTC", "expected days"),
    ],
)
def test_bad_window_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        parse_window(text)
