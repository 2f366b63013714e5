"""How low a VM may go, and what counts as proof."""

from __future__ import annotations

from agent.core.guard import WindowGuard
from agent.core.policy import ShrinkPolicy
from protocol.units import Bytes, Instant, MilliCpu, Resources, Seconds

GIB = 1024**3


def need(cpu: int, gib: int) -> Resources:
    return Resources(MilliCpu(cpu), Bytes(gib * GIB))


def guard_after(*needs: tuple[float, Resources | None]) -> WindowGuard:
    guard = WindowGuard.begin(ShrinkPolicy(window=Seconds(10.0), max_gap=Seconds(4.0)))
    for at, wanted in needs:
        guard.observe(wanted, need(4000, 16), Instant(at))
    return guard


STEADY = [(float(at), need(500, 2)) for at in range(0, 12, 2)]


def test_without_a_full_window_nothing_is_proven() -> None:
    guard = guard_after(*STEADY[:3])
    assert guard.floor(Instant(5.0)) is None
    assert guard.explain(Instant(5.0)) == "no proof yet: 5 s of 10 s seen without a gap"
    assert guard_after().explain(Instant(5.0)) == "no proof yet: 0 s of 10 s seen without a gap"


def test_a_full_window_proves_its_greatest_need_of_each_resource() -> None:
    guard = guard_after((0.0, need(2000, 1)), (0.5, need(500, 3)), *STEADY[1:], (11.0, need(250, 1)))
    assert guard.floor(Instant(11.0)) == need(500, 3)
    assert guard.explain(Instant(11.0)) == "at most 500m cpu and 3.00 GiB were needed in 10 s"


def test_a_gap_is_a_new_beginning() -> None:
    guard = guard_after(*STEADY, (20.0, need(250, 1)))
    assert guard.floor(Instant(20.5)) is None


def test_a_need_that_cannot_be_told_is_a_gap_when_it_lasts() -> None:
    guard = guard_after(*STEADY, (11.0, None))
    assert guard.floor(Instant(11.0)) == need(500, 2)
    assert guard.floor(Instant(14.5)) is None
