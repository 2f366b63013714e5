"""One verdict for filter and bind, and a score that fills nodes to their watermark (S4.10, S2.8b)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.units import Resources
from scheduler_plugin.placement import (
    CORDONED,
    CPU_TOO_SMALL,
    FITS,
    MEM_TOO_SMALL,
    NO_FREE_CPU,
    NO_FREE_MEM,
    UNKNOWN_NODE,
    Filtered,
    Room,
    Verdict,
    filter_nodes,
    score,
    shortage,
    verdict,
)
from tests.scheduler_plugin.ledger.fleet import amount


def room(reserved: Resources, *, total: float = 10, watermark: float = 8, is_open: bool = True) -> Room:
    whole = amount(total)
    return Room("n1", whole, reserved, whole.minus_or_zero(reserved), amount(watermark), is_open)


@pytest.mark.parametrize(
    ("where", "claim", "expected"),
    [
        (room(amount(6)), amount(4), FITS),
        (room(amount(6)), amount(0), FITS),
        (room(amount(6, 2)), amount(4.001, 8), NO_FREE_CPU),
        (room(amount(6, 2)), amount(4, 9), NO_FREE_MEM),
        (room(amount(0)), amount(11, 1), CPU_TOO_SMALL),
        (room(amount(0)), amount(1, 11), MEM_TOO_SMALL),
        (room(amount(12)), amount(1), NO_FREE_CPU),
        (room(amount(0), is_open=False), amount(1), CORDONED),
        (None, amount(1), UNKNOWN_NODE),
    ],
)
def test_verdict(where: Room | None, claim: Resources, expected: Verdict) -> None:
    assert verdict(where, claim) is expected


def test_filter_keeps_the_order_and_tells_what_may_change_from_what_never_will() -> None:
    rooms = {"full": room(amount(9)), "small": room(amount(0), total=1), "b": room(amount(0)), "a": room(amount(1))}
    assert filter_nodes(rooms, ["b", "full", "nobody", "small", "a"], amount(4)) == Filtered(
        fits=["b", "a"],
        refused={"full": "not enough free cpu", "nobody": "the scheduler does not know the node yet"},
        never={"small": "the node has less cpu than the pod needs"},
    )


def test_a_shortage_says_the_numbers() -> None:
    assert (
        shortage(room(amount(9, 2)), amount(4)) == "pod needs 4 cpu, 4Gi; node n1 has 1 cpu, 8Gi free of 10 cpu, 10Gi"
    )


@pytest.mark.parametrize(
    ("reserved", "expected"),
    [
        (amount(0), 6),
        (amount(3), 8),
        (amount(7), 10),
        (amount(8), 5),
        (amount(9), 1),
        (amount(9.5), 0),
        (amount(7, 8), 5),
        (amount(8, 7), 5),
    ],
)
def test_a_node_is_best_when_filled_to_its_watermark(reserved: Resources, expected: int) -> None:
    assert score(room(reserved), amount(1)) == expected


def test_unknown_and_closed_nodes_score_nothing() -> None:
    assert score(None, amount(1)) == 0
    assert score(room(amount(0), is_open=False), amount(1)) == 0


def test_a_watermark_at_the_total_leaves_a_full_node_the_best() -> None:
    assert score(room(amount(9), watermark=10), amount(1)) == 10


def test_a_node_without_any_room_is_worth_nothing_to_anybody() -> None:
    assert score(room(amount(0), total=0, watermark=0), amount(0)) == 5


PARTS = st.integers(0, 12)


@given(reserved=st.tuples(PARTS, PARTS), claim=st.tuples(PARTS, PARTS), watermark=st.integers(0, 10))
def test_a_score_is_given_exactly_where_the_pod_fits(
    reserved: tuple[int, int], claim: tuple[int, int], watermark: int
) -> None:
    where = room(amount(*reserved), watermark=watermark)
    fits = verdict(where, amount(*claim)) is FITS
    assert (1 <= score(where, amount(*claim)) <= 10) is fits
