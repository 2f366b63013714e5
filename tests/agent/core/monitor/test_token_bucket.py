"""A peer may send a burst of bounded size, and a bounded rate in the long run."""

from __future__ import annotations

from agent.core.monitor.token_bucket import TokenBucket
from protocol.units import Instant


def test_token_bucket_bursts_then_refills() -> None:
    bucket = TokenBucket(3.0, 2.0, Instant(0.0))
    taken = [bucket.take(1.0, Instant(at)) for at in (9.0, 9.0, 9.0, 9.5, 9.75)]
    assert taken == [True, True, True, True, False]


def test_what_was_not_there_is_owed() -> None:
    bucket = TokenBucket(3.0, 2.0, Instant(0.0))
    assert [bucket.take(tokens, Instant(at)) for tokens, at in ((10.0, 0.0), (1.0, 3.0), (1.0, 5.0))] == [
        False,
        False,
        True,
    ]
