"""The cost of denials: each amount for as long as it was lacking, decaying with time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.units import ZERO, Instant, Resources
from scheduler_plugin.ledger.accounts.denials import (
    HALF_LIFE,
    MAX_PAST,
    NO_DENIALS,
    PAST_SHARE,
    DenialCost,
    vcpus_worth,
)
from tests.scheduler_plugin.ledger.fleet import amount


def after(*lacked: tuple[Resources, float]) -> DenialCost:
    """One denial of these amounts, each for that many seconds."""
    cost, before, now = NO_DENIALS, ZERO, 100.0
    for amounts, seconds in (*lacked, (ZERO, 0.0)):
        cost, before, now = cost.changed(before, amounts, Instant(now)), amounts, now + seconds
    return cost


@pytest.mark.parametrize(
    ("lacked", "cost"),
    [
        ([(amount(1), 80.0)], 80.0),
        ([(amount(0.25), 80.0)], 80.0),
        ([(amount(2), 10.0), (amount(1, 12), 20.0)], 80.0),
        ([(amount(1), 80.0), (amount(20), 0.0)], 80.0),
        ([(amount(6), 10.0), (amount(1), 20.0)], 80.0),
        ([(amount(8), 3600.0)], MAX_PAST / PAST_SHARE),
    ],
)
def test_denial_costs_amount_times_length(lacked: list[tuple[Resources, float]], cost: float) -> None:
    ended = after(*lacked)
    assert (ended.past, ended.present) == (PAST_SHARE * cost, 0.0)
    assert ended.counted(Instant(ended.ended_at + HALF_LIFE)) == PAST_SHARE * cost / 2


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 600)), min_size=1, max_size=20))
def test_present_cost_is_the_integral(changes: list[tuple[int, int]]) -> None:
    cost, before, now = NO_DENIALS, ZERO, 0
    for lacking, seconds in changes:
        cost, before = cost.changed(before, amount(lacking), Instant(float(now))), amount(lacking)
        now += seconds
    ended = cost.changed(before, ZERO, Instant(float(now)))
    whole = sum(vcpus_worth(amount(lacking)) * seconds for lacking, seconds in changes)
    assert ended.past == pytest.approx(min(MAX_PAST, PAST_SHARE * whole))
