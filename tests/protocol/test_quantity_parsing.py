"""Kubernetes quantities are read exactly, and everything else is refused by name."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protocol.units import Bytes, MilliCpu, QuantityError, parse_quantity

SUFFIXES = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}

numbers = st.decimals(min_value=0, max_value=10**9, places=9).map(lambda number: number.normalize())


@given(numbers, st.sampled_from(sorted(SUFFIXES)))
@example(Decimal(250), "m")
@example(Decimal(1), "Gi")
def test_every_suffix_is_exact_and_amounts_round_up(number: Decimal, suffix: str) -> None:
    text, exact = f"{number:f}{suffix}", Fraction(number) * SUFFIXES[suffix]
    assert parse_quantity(text) == exact
    assert MilliCpu.parse(text).value == ceil(exact * 1000)
    assert Bytes.parse(text).value == ceil(exact)


@given(st.integers(0, 10**20), st.sampled_from(sorted(SUFFIXES)))
def test_fast_parser_matches_exact_one(number: int, suffix: str) -> None:
    text = f"{number}{suffix}"
    assert MilliCpu.parse(text).value == ceil(parse_quantity(text) * 1000)
    assert Bytes.parse(text).value == ceil(parse_quantity(text))


@pytest.mark.parametrize(
    ("quantity", "value"),
    [
        (2, 2),
        (0.25, Fraction(1, 4)),
        ("+1", 1),
        ("-1", -1),
        (-1, -1),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("1e-3", Fraction(1, 1000)),
        (" 1Gi ", 2**30),
        (1e22, 10**22),
    ],
)
def test_numbers_signs_points_and_exponents_are_read(quantity: str | float, value: Fraction | int) -> None:
    assert parse_quantity(quantity) == value


@pytest.mark.parametrize(
    "quantity",
    [
        "",
        " ",
        ".",
        "-",
        "m",
        "Gi",
        "1 Gi",
        "1gi",
        "1K",
        "1i",
        "1mi",
        "1e3Gi",
        "1_000",
        "٣",
        "0x10",
        "nan",
        "inf",
        "1,5",
    ],
)
def test_what_is_no_quantity_is_refused_by_name(quantity: str) -> None:
    with pytest.raises(QuantityError) as refused:
        parse_quantity(quantity)
    assert str(refused.value) == f'expected a quantity such as 2, "250m" or "1Gi", got {quantity.strip()!r}'


@pytest.mark.parametrize("quantity", [True, None, [], {}, float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_or_text_is_refused(quantity: object) -> None:
    for read in (parse_quantity, MilliCpu.parse, Bytes.parse):
        with pytest.raises(QuantityError, match=r"^expected a quantity such as 2"):
            read(quantity)  # type: ignore[arg-type]  # the point of the test


@pytest.mark.parametrize("quantity", [10**30, -(10**30), "1e31", "1e999999999", "1e-999999999", 1e300, 1e-40])
def test_sizes_beyond_reason_are_refused_without_work(quantity: str | float) -> None:
    for read in (parse_quantity, MilliCpu.parse, Bytes.parse):
        with pytest.raises(QuantityError, match=r"^expected a quantity of reasonable size"):
            read(quantity)


def test_endless_digits_are_refused_and_not_repeated() -> None:
    with pytest.raises(QuantityError) as refused:
        parse_quantity("9" * 10_000)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("quantity", ["-1", -1, -0.5, "-1m"])
def test_an_amount_below_zero_is_refused(quantity: str | float) -> None:
    for read in (MilliCpu.parse, Bytes.parse):
        with pytest.raises(QuantityError) as refused:
            read(quantity)
        assert str(refused.value) == f"expected a quantity of zero or more, got {quantity!r}"


@given(st.text(max_size=80) | st.integers() | st.floats())
def test_any_text_is_amount_or_error(quantity: str | float) -> None:
    for read in (MilliCpu.parse, Bytes.parse):
        try:
            assert read(quantity).value >= 0
        except QuantityError as error:
            assert str(error).startswith("expected ")  # noqa: PT017 - either outcome is right
