"""A write without a response may land for a while; after that it is forgotten, even if its outcome is unknown."""

from __future__ import annotations

from protocol.units import Instant, Seconds
from scheduler_plugin.cluster.write import RecentWrites


def test_a_write_may_land_until_it_settles() -> None:
    writes: RecentWrites[str] = RecentWrites(Seconds(10.0))
    writes.sent("a", Instant(5.0))
    assert [writes.may_land("a", Instant(at)) for at in (5.0, 14.9, 15.0)] == [True, True, False]
    assert not writes.may_land("b", Instant(5.0))
    writes.settled("a")
    assert not writes.may_land("a", Instant(5.0))


def test_stale_entries_are_forgotten() -> None:
    writes: RecentWrites[int] = RecentWrites(Seconds(10.0))
    for number in range(100):
        writes.sent(number, Instant(float(number)))
    assert len(writes._sent_at) == 10
