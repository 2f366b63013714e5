"""The writes that a term allows, and its end."""

from __future__ import annotations

import pytest

from protocol.kubernetes.api import ApiCall
from protocol.messages import ObjectName
from protocol.runtime.kubernetes.lease import Leadership, LeaseTerms
from protocol.units import Instant, Seconds
from scheduler_plugin.term import OutOfTermError, Term
from tests.fake_clock import FakeClock
from tests.scheduler_plugin.groups.program.cluster import EmbeddedCluster

CALL = ApiCall("PATCH", "/api/v1/nodes/n1", Seconds(3.0))
TERMS = LeaseTerms(ObjectName("kube-system", "scheduler"))


class Slow(FakeClock):
    """A clock that advances by ``step`` seconds at each reading."""

    step = 0.0

    def now(self) -> Instant:
        seen = super().now()
        self._offset += self.step
        return Instant(seen + self._offset)

    _offset = 0.0


async def leading_since_zero(clock: FakeClock) -> Leadership:
    """It has not seen the Lease before, and therefore takes it after its duration."""
    leadership = Leadership(EmbeddedCluster(clock).connection(), clock, TERMS, "replica-1")
    for _ in range(2):
        await leadership._turn(may_take=True)
        await clock.advance(-clock.now())
    return leadership


async def test_write_ends_with_term() -> None:
    """The Lease was won at 0 and lasts until 8."""
    clock = Slow(start=-TERMS.duration)
    term = Term(clock, await leading_since_zero(clock))
    clock._offset, clock.step = 4.5, 1.0
    with term.writing(CALL) as call:
        assert call.not_after is not None
        assert call.not_after <= 8.0


async def test_server_drops_write_at_term_end() -> None:
    clock = FakeClock(start=-TERMS.duration)
    term = Term(clock, await leading_since_zero(clock))
    found = []
    for now in (4.0, 6.5, 7.9999):
        await clock.advance(now - clock.now())
        with term.writing(CALL) as call:
            found.append((round(call.timeout, 4), call.query, call.not_after))
    assert found == [
        (3.0, {"timeout": "3000ms"}, 7.0),
        (1.5, {"timeout": "1500ms"}, 8.0),
        (0.0001, {"timeout": "1ms"}, 8.0),
    ]


@pytest.mark.parametrize("left", [0.5, 1.5])
async def test_nothing_is_sent_past_deadline(left: float) -> None:
    clock = Slow(start=-TERMS.duration)
    term = Term(clock, await leading_since_zero(clock))
    clock._offset, clock.step = 8.0 - left, 1.0
    with pytest.raises(OutOfTermError), term.writing(CALL):
        raise AssertionError("this would be sent")
