"""A group that scales itself by its load, played over minutes: noise moves nothing, and what lasts is followed soon."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.units import Instant, MilliCpu, Seconds
from scheduler_plugin.groups.core.replicas.scaling import AgentCpuCount, GroupScaling, LoadWindow, ScalingMemory, decide
from scheduler_plugin.groups.core.workload import ReplicaBounds
from tests.examples import examples
from tests.scheduler_plugin.groups.core.replicas.group_story import replica

LOOK, WINDOW, DOWN = 5, 30, 60
MOST = 2.0
SCALING = GroupScaling(
    ReplicaBounds(1, 4), MilliCpu.cores(MOST), 0.7, Seconds(30.0), Seconds(float(DOWN)), Seconds(float(WINDOW))
)


def played(need: Callable[[int], float], current: int, seconds: int, restart: int = -1) -> list[int]:
    """The replica count at each step, while all replicas share a ``need`` of this many CPUs at each second.

    At ``restart`` another process takes over, and the loads that the first one recorded are lost.
    """
    counts, memory, used = [current], ScalingMemory(), dict.fromkeys(range(4), 0.0)
    windows: dict[int, LoadWindow] = {}
    for now in range(seconds + 1):
        if now == restart:
            windows = {}
        if now % LOOK == 0:
            windows = {
                each: windows.get(each, LoadWindow(SCALING.window)).after(
                    AgentCpuCount(Seconds(used[each]), Seconds(float(now))), Instant(float(now))
                )
                for each in range(counts[-1])
            }
            means = {each: window.mean(Instant(float(now))) for each, window in windows.items()}
            found = decide(
                SCALING, counts[-1], [replica(each, busy_cores=mean) for each, mean in means.items()], memory, now
            )
            counts, memory = [*counts, found.replicas], found.memory
        for each in range(counts[-1]):
            used[each] += min(MOST, need(now) / counts[-1])
    return counts


def turns(counts: list[int]) -> list[int]:
    """By how many it grew, each time."""
    return [after - before for before, after in pairwise(counts) if after != before]


def noisy(noise: list[float]) -> list[float]:
    """The same, without a sum."""
    mean = sum(noise) / len(noise)
    return [each - mean for each in noise]


@settings(max_examples=examples(10, 100))
@given(
    need=st.floats(1.0, 8.0),
    noise=st.lists(st.floats(-1.0, 1.0), min_size=LOOK, max_size=LOOK).map(noisy),
    current=st.integers(1, 4),
    restart=st.integers(-1, 200),
)
def test_noisy_constant_need_settles(need: float, noise: list[float], current: int, restart: int) -> None:
    counts = played(lambda now: max(0.0, need + noise[now % LOOK]), current, 480, restart)
    assert len({turn > 0 for turn in turns(counts)}) <= 1
    assert turns(counts[-30:]) == []


@settings(max_examples=examples(10, 100))
@given(
    base=st.floats(0.0, 0.7),
    peak=st.floats(0.0, 8.0),
    every=st.integers(30, 90),
    length=st.integers(1, 4),
    current=st.integers(1, 4),
)
def test_brief_load_changes_nothing(base: float, peak: float, every: int, length: int, current: int) -> None:
    counts = played(lambda now: base + (peak if now % every < length else 0.0), current, 240)
    assert all(turn < 0 for turn in turns(counts))
    assert counts[-1] == 1


@settings(max_examples=examples(10, 100))
@given(before=st.floats(0.0, 1.2), at=st.integers(60, 64))
def test_lasting_load_adds_replica(before: float, at: int) -> None:
    counts = played(lambda now: before if now < at else 4.0, 1, at + WINDOW)
    assert counts[-1] > 1


def test_restart_never_adds_two_replicas() -> None:
    def need(now: int) -> float:
        return 0.2 if now < 60 else 2.0

    whole, interrupted = (played(need, 1, 120, restart) for restart in (-1, 75))
    assert (turns(whole), turns(interrupted)) == ([1], [1])
    assert whole.index(2) < interrupted.index(2)
