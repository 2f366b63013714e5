"""Authorities and certificates follow one another so that a program that is up to date trusts all that is shown."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.rotation import Lifetime, check_interval, is_due, needs_authority, signer

YEAR = 365 * 86_400.0
AUTHORITY = 3 * YEAR


@pytest.mark.parametrize(
    ("over", "wanted"), [(0.0, False), (0.33, False), (0.34, True), (0.9, True), (1.0, True)], ids=str
)
def test_next_authority_comes_after_first_third(over: float, wanted: bool) -> None:
    assert needs_authority([Lifetime(0.0, AUTHORITY)], over * AUTHORITY) is wanted


def test_missing_authority_is_created_and_signs() -> None:
    assert needs_authority([], 0.0)
    now = 10 * AUTHORITY
    assert needs_authority([Lifetime(0.0, AUTHORITY)], now)
    assert signer([Lifetime(0.0, AUTHORITY), Lifetime(now, now + AUTHORITY)], now) == 1


def test_authority_signs_in_second_third() -> None:
    first, second = Lifetime(0.0, 9.0), Lifetime(3.0, 12.0)
    assert [signer([second, first], now) for now in (3.0, 5.9, 6.0, 8.9, 9.0)] == [1, 1, 0, 0, 0]


def test_what_is_valid_only_tomorrow_is_replaced() -> None:
    """A clock that was a month ahead created a CA and certificates that are not valid yet."""
    ahead = Lifetime(30 * 86_400.0, 30 * 86_400.0 + AUTHORITY)
    assert needs_authority([ahead], 0.0)
    assert is_due(Lifetime(30 * 86_400.0, 31 * 86_400.0), 0.0)
    now = Lifetime(0.0, AUTHORITY)
    assert not needs_authority([ahead, now], 0.0)
    assert signer([ahead, now], 0.0) == 1


def test_a_certificate_is_renewed_after_two_thirds() -> None:
    assert [is_due(Lifetime(0.0, 90.0), now) for now in (-5.0, 0.0, 59.0, 60.0, 91.0)] == [
        False,
        False,
        False,
        True,
        True,
    ]
    assert [check_interval(life) for life in (10.0, 240.0, 90 * 86_400.0)] == [1.0, 10.0, 10.0]


@given(
    step=st.floats(0.5, 8.0),
    lag=st.integers(0, 3),
    outages=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 10)), max_size=3),
)
def test_lagging_clients_trust_shown_certificates(step: float, lag: int, outages: list[tuple[int, int]]) -> None:
    """Servers and clients see what is stored up to ``lag`` steps late; the keeper is away now and then, and comes back
    before anything ends. A client that never reads again works for a third of an authority's life.
    """
    authority, certificate = 900.0, 300.0
    known: list[Lifetime] = []
    shown: tuple[Lifetime, Lifetime] | None = None
    seen: deque[tuple[frozenset[Lifetime], tuple[Lifetime, Lifetime]]] = deque(maxlen=lag + 1)
    static: deque[tuple[float, frozenset[Lifetime]]] = deque()
    away = {at + more for at, length in outages for more in range(length)}
    for turn in range(500):
        now = turn * step
        if turn not in away or shown is None:
            known = [each for each in known if each.is_valid(now)]
            if needs_authority(known, now):
                known.append(Lifetime(now, now + authority))
            if shown is None or is_due(shown[0], now):
                by = known[signer(known, now)]
                shown = Lifetime(now, min(now + certificate, by.end)), by
        seen.append((frozenset(known), shown))
        static.append((now, frozenset(known)))
        while now - static[0][0] > authority / 3 - lag * step:
            static.popleft()
        for bundle, _ in seen:
            for _, (leaf, by) in seen:
                assert by in bundle
                assert leaf.is_valid(now)
                assert by.is_valid(now)
        assert shown[1] in static[0][1]
        assert len(known) <= 3 + len(outages)
