"""Contents of control group files: what the kernel writes is read, and anything else is one error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cgroups.formats import byte_limit, counter, counters, moved, number, stalled

PARSERS: list[Callable[[bytes], object]] = [number, byte_limit, counters, stalled, moved]
NUMBERS = st.integers(0, 2**63)


@given(NUMBERS)
def test_numbers(value: int) -> None:
    assert number(b"%d\n" % value) == value
    assert byte_limit(b"%d\n" % value) == (value if value < 2**62 else None)


@given(st.dictionaries(st.from_regex(rb"\A[a-z_]{1,30}\Z"), NUMBERS))
def test_counters(counts: dict[bytes, int]) -> None:
    parsed = counters(b"".join(b"%s %d\n" % line for line in counts.items()))
    assert {name: counter(parsed, name) for name in parsed} == counts


@given(NUMBERS, NUMBERS)
def test_pressure_is_that_of_some_task(some: int, full: int) -> None:
    lines = ((b"some", some), (b"full", full))
    text = b"".join(b"%s avg10=1.50 avg60=0.00 avg300=0.00 total=%d\n" % line for line in lines)
    assert stalled(text) == some / 1e6


@given(st.lists(st.tuples(NUMBERS, NUMBERS)))
def test_traffic_is_that_of_the_busiest_device(devices: list[tuple[int, int]]) -> None:
    text = b"".join(b"8:%d rbytes=%d wbytes=%d rios=1 wios=2\n" % (at, *both) for at, both in enumerate(devices))
    assert moved(text) == tuple(max(column, default=0) for column in zip(*devices, strict=True)) if devices else (0, 0)


@given(st.binary())
def test_anything_else_is_a_value_error(text: bytes) -> None:
    for parse in PARSERS:
        try:
            parse(text)
        except ValueError as error:
            assert str(error).startswith("expected ")  # noqa: PT017 - most contents are malformed, some are not


@pytest.mark.parametrize("text", [b"", b"-1", b"+1", b"1_000", b"1.5", b"1 2", "\u0663".encode()])
def test_numbers_are_digits(text: bytes) -> None:
    with pytest.raises(ValueError, match="expected a number"):
        number(text)


def test_missing_counter_is_named() -> None:
    with pytest.raises(ValueError, match="oom_kill is missing"):
        counter({}, b"oom_kill")
