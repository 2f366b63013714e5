"""The load of a replica over a window, from its agent's counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.units import Instant, Seconds
from scheduler_plugin.groups.core.replicas.scaling import AgentCpuCount, LoadWindow

SPAN = Seconds(30.0)
Look = tuple[float, float, float]
"""When it was, the CPU seconds that were used, and the seconds that were seen."""


def window(*looks: Look) -> LoadWindow:
    found = LoadWindow(SPAN)
    for at, used, seen in looks:
        found = found.after(AgentCpuCount(Seconds(used), Seconds(seen)), Instant(at))
    return found


def test_mean_is_independent_of_sampling() -> None:
    assert window((0, 100, 500), (30, 145, 530)).mean(Instant(30.0)) == 1.5
    looks = [(float(at), 100.0 + at * 1.5, 500.0 + at) for at in range(31)]
    assert window(*looks).mean(Instant(30.0)) == 1.5


def test_only_the_last_window_counts() -> None:
    found = window((0, 0, 0), (10, 20, 10), (20, 20, 20), (30, 20, 30), (45, 35, 45))
    assert [float(at) for at, _ in found.counts] == [10.0, 20.0, 30.0, 45.0]
    assert found.mean(Instant(45.0)) == pytest.approx(15 / 35)


@pytest.mark.parametrize(
    ("looks", "at"),
    [
        ([], 0.0),
        ([(0, 0, 0)], 0.0),
        ([(0, 0, 0), (29, 29, 29)], 29.0),
        ([(0, 0, 0), (20, 20, 20), (40, 2, 2)], 40.0),
        ([(0, 0, 0), (20, 20, 20), (40, 20, 19)], 40.0),
        ([(0, 0, 0), (31, 31, 31)], 31.0),
        ([(0, 0, 0), (30, 30, 30)], 61.0),
        ([(0, 0, 0), (30, 14, 14)], 30.0),
    ],
    ids=["never", "once", "short", "restarted", "restarted-busy", "gap", "silent", "not-seen"],
)
def test_uncovered_window_has_no_mean(looks: list[Look], at: float) -> None:
    assert window(*looks).mean(Instant(at)) is None


def test_missed_agent_sample_lengthens_interval() -> None:
    found = window((0, 0, 0), (15, 15, 15)).after(None, Instant(20.0))
    assert found.after(AgentCpuCount(Seconds(30.0), Seconds(30.0)), Instant(30.0)).mean(Instant(30.0)) == 1.0


# Shorter than the window by more than what rounding adds: a longer one is a gap.
@given(st.lists(st.tuples(st.floats(0.5, 29.9), st.floats(0.0, 8.0)), min_size=1, max_size=20))
def test_mean_lies_within_window(intervals: list[tuple[float, float]]) -> None:
    looks: list[Look] = [(0.0, 0.0, 0.0)]
    for length, busy in intervals:
        at, used, _ = looks[-1]
        looks.append((at + length, used + length * busy, at + length))
    now = looks[-1][0]
    mean = window(*looks).mean(Instant(now))
    inside = [busy for (_, busy), (ends, _, _) in zip(intervals, looks[1:], strict=True) if ends > now - 2 * SPAN]
    if mean is None:
        assert now < SPAN
    else:
        assert min(inside) - 1e-9 <= mean <= max(inside) + 1e-9
