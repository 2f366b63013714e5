"""For any number of writes without a response, sizes that may still land are between the minimum and maximum (B.10)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from protocol.units import ZERO, Instant, Resources
from scheduler_plugin.ledger.accounts.pod_requests import MERGE_WINDOW, SETTLE, PodRequests
from scheduler_plugin.ledger.facts import RunnerRequests
from tests.scheduler_plugin.ledger.fleet import amount

SIZES = st.builds(amount, st.integers(1, 9), st.integers(1, 9))
WRITES = st.lists(st.tuples(SIZES, st.sampled_from([0.0, 0.25, 1.0, 4.0, 11.0]), st.booleans()), max_size=30)
POD = RunnerRequests(amount(5), amount(5), version="1")
MANY = SETTLE / MERGE_WINDOW + 2


@given(WRITES)
def test_possible_writes_count_until_impossible(
    writes: list[tuple[Resources, float, bool]],
) -> None:
    requests, now = PodRequests(), Instant(100.0)
    open_writes: list[tuple[Resources, Instant]] = []
    for size, pause, is_refused in writes:
        now = Instant(now + pause)
        requests.settle(now)
        requests.send(size, POD, now)
        open_writes.append((size, now))
        if is_refused:
            requests.refused(size, POD.requested, "", now, is_of_size=True)
            open_writes.pop()
        between(requests, [each for each, at in open_writes if now - at < SETTLE])
        lately = [each for each, at in open_writes if now - at < SETTLE + MERGE_WINDOW]
        assert minimum_of(lately).within(requests.secured(POD))
        assert requests.largest_in_flight.within(Resources.most(lately))
        assert len(requests.may_land) <= MANY
    requests.settle(Instant(now + SETTLE))
    assert (requests.may_land, requests.secured(POD), requests.largest_in_flight) == ((), amount(5), ZERO)


def minimum_of(sizes: Iterable[Resources]) -> Resources:
    """The minimum for the pod's present requests with these sizes."""
    return reduce(Resources.at_most, sizes, POD.requested)


def between(requests: PodRequests, sizes: list[Resources]) -> None:
    assert requests.secured(POD).within(minimum_of(sizes))
    assert Resources.most(sizes).within(requests.largest_in_flight)


def test_unanswered_writes_are_bounded() -> None:
    requests = PodRequests()
    for each in range(1000):
        requests.send(amount(1 + each % 7), POD, Instant(100.0 + each / 100))
    assert len(requests.may_land) <= MANY
    assert (requests.secured(POD), requests.largest_in_flight) == (amount(1), amount(7))
    requests.observe(RunnerRequests(amount(5), amount(5), version="2"))
    assert requests.may_land == ()
