"""Durations as people write them; everything else is refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.durations import LONGEST, DurationError, format_duration, parse_duration
from protocol.units import Seconds


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (0, 0.0),
        (90, 90.0),
        (1.5, 1.5),
        ("90", 90.0),
        ("1.5", 1.5),
        (".5s", 0.5),
        ("90s", 90.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        ("250ms", 0.25),
        ("2us", 2e-6),
        ("2\u00b5s", 2e-6),
        ("2\u03bcs", 2e-6),
        ("5m5m", 600.0),
        ("5ns", 5e-9),
        ("1d", 86_400.0),
        ("1d2h3m4s5ms", 93_784.005),
        ("0", 0.0),
    ],
)
def test_durations_use_go_units(given: object, seconds: float) -> None:
    assert parse_duration(given) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    "given",
    [
        "",
        " 30s",
        "30s\n",
        "1h 30m",
        "s",
        "soon",
        "5 m",
        "5w",
        "1h30",
        "-",
        "٣s",
        "1e3",
        "0x5",
        "inf",
        "nan",
        True,
        None,
        [],
        {},
        "1" * 65,
        "1s;",
    ],
)
def test_what_is_no_duration_is_refused_by_name(given: object) -> None:
    with pytest.raises(DurationError, match=r'^expected seconds or a duration such as "90s", "5m" or "1h30m", got '):
        parse_duration(given)


@pytest.mark.parametrize("given", [-1, -0.5, LONGEST + 1, "99999d", 10**400])
def test_what_is_negative_or_beyond_reason_is_refused(given: object) -> None:
    with pytest.raises(DurationError, match=r"^expected a duration of zero to ten years, got "):
        parse_duration(given)


@pytest.mark.parametrize("given", [float("nan"), float("inf"), "-5s"])
def test_what_is_no_number_is_refused(given: object) -> None:
    with pytest.raises(DurationError):
        parse_duration(given)


@given(st.integers(0, int(LONGEST) * 1000))
def test_a_duration_that_is_written_is_read_again(milliseconds: int) -> None:
    span = Seconds(milliseconds / 1000)
    assert parse_duration(format_duration(span)) == pytest.approx(span, abs=1e-6)


@given(st.text(max_size=80) | st.floats() | st.integers())
def test_anything_is_a_duration_or_a_duration_error(given: object) -> None:
    try:
        assert 0 <= parse_duration(given) <= LONGEST
    except DurationError as error:
        assert str(error).startswith("expected ")  # noqa: PT017 - either outcome is right
