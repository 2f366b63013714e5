"""The trial of less memory for a pod: what leads to consent or refusal, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.monitor.shrink_trial import USAGE_AGE, PodView, ShrinkTrial, TrialVerdict
from protocol.units import Bytes, Instant

MIB = 1024**2
TARGET = Bytes(512 * MIB)
START = PodView(
    at=Instant(100.0),
    pod_used=Bytes(1000 * MIB),
    pod_limit=Bytes(1024 * MIB),
    used=Bytes(990 * MIB),
    limit=Bytes(1024 * MIB),
    refaulted=7e9,
    stall=50.0,
)
BELOW = replace(START, pod_used=Bytes(480 * MIB), used=Bytes(470 * MIB))


def after(view: PodView, seconds: float, reread: float = 0.0, stall: float = 0.0) -> PodView:
    """The view some seconds after the start, with rises of its counters since then."""
    return replace(view, at=Instant(START.at + seconds), refaulted=7e9 + reread, stall=50.0 + stall)


def tried(first: PodView = START, *, margin: float = 0.05, reclaims: bool = True) -> ShrinkTrial:
    return ShrinkTrial(TARGET, first, margin, reclaims=reclaims)


def play(trial: ShrinkTrial, *views: PodView) -> list[TrialVerdict | None]:
    return [trial.judge(view) for view in views]


def test_pod_that_stays_below_agrees() -> None:
    """For as long as the kubelet's usage figure may be old, from the time at which it came below."""
    verdicts = play(tried(), after(START, 1), after(BELOW, 5), after(BELOW, 24.9), after(BELOW, 25))
    assert verdicts == [None, None, None, TrialVerdict(True, "the pod stayed below that for 20 s")]


def test_pod_that_stays_above_refuses() -> None:
    """It gets some time to be reclaimed, and starts again whenever it rises."""
    refused = TrialVerdict(False, "the pod still uses 1000 MiB, its container 990 MiB of it, page cache included")
    assert play(tried(), after(START, 1), after(START, 9.9), after(START, 10)) == [None, None, refused]
    assert play(tried(), after(BELOW, 1), after(START, 5), after(BELOW, 6), after(BELOW, 25.9)) == [None] * 4
    assert play(tried(), after(BELOW, 1), after(START, 15)) == [None, refused]


def test_trial_without_reclaimer_needs_pod_below_target() -> None:
    trial = tried(reclaims=False)
    assert [verdict is None for verdict in play(trial, after(BELOW, 0), after(START, 1))] == [True, False]
    assert play(tried(reclaims=False), after(BELOW, 0), after(BELOW, 20))[1] is not None


@pytest.mark.parametrize(
    ("view", "reason"),
    [
        # 1000 MiB go to 486: a quarter of what is taken may be read again.
        (after(BELOW, 1, reread=129 * MIB), "refaulted 129 MiB after 513 MiB were reclaimed"),
        (after(BELOW, 1, stall=0.1), "its tasks stall on memory"),
        (after(BELOW, 0.5, stall=0.1), "its tasks stall on memory"),
        (replace(after(BELOW, 1), limit=Bytes(2048 * MIB)), "its memory limit changed during the trial"),
        (after(BELOW, 1, reread=128 * MIB, stall=0.09), None),
        (replace(after(BELOW, 1), refaulted=None, stall=None), None),
        # Of another boot of the container.
        (replace(after(BELOW, 1), refaulted=0.0, stall=0.0), None),
    ],
)
def test_harm(view: PodView, reason: str | None) -> None:
    assert tried().judge(view) == (None if reason is None else TrialVerdict(False, reason))


def test_a_little_rereading_is_no_harm() -> None:
    """Even after a small shrink: a database rereads some pages all the time."""
    first = replace(START, pod_used=Bytes(500 * MIB), used=Bytes(490 * MIB))
    assert play(tried(first), after(BELOW, 1, reread=16 * MIB)) == [None]
    assert play(tried(first), after(BELOW, 1, reread=17 * MIB)) != [None]


def test_waiting_counts_since_the_last_view() -> None:
    """A second of stalls spread over a minute does not count."""
    views = [after(BELOW, seconds, stall=seconds * 0.05) for seconds in range(1, 20)]
    assert play(tried(), *views) == [None] * 19


@pytest.mark.parametrize(
    ("others", "others_limit", "size", "agrees"),
    [
        (Bytes(0), Bytes(0), TARGET.scaled(0.85), True),
        # What ended containers left behind counts as the pod's, and must go.
        (Bytes(90 * MIB), Bytes(0), TARGET.scaled(0.85), False),
        # What the other containers may have stays theirs.
        (Bytes(90 * MIB), Bytes(100 * MIB), TARGET.scaled(0.85) + Bytes(90 * MIB), True),
        # Without a limit of its own, nothing limits the pod.
        (Bytes(90 * MIB), None, TARGET.scaled(0.85) + Bytes(90 * MIB), True),
    ],
)
def test_other_containers(others: Bytes, others_limit: Bytes | None, size: Bytes, agrees: bool) -> None:
    """The kubelet compares the container with its limit, and the pod with the sum of all limits."""
    limit = Bytes(1024 * MIB)
    pod_limit = None if others_limit is None else limit + others_limit
    first = replace(START, pod_used=Bytes(990 * MIB) + others, pod_limit=pod_limit)
    trial = tried(first, margin=0.15)
    assert trial.size == size
    view = replace(first, used=Bytes(500 * MIB), pod_used=Bytes(500 * MIB) + others)
    play(trial, after(view, 1))
    verdict = trial.judge(after(view, 21))
    assert verdict is not None
    assert verdict.ok == agrees


def test_container_without_a_limit() -> None:
    """It gets its first limit with the shrink, and the limit is in force once it is reported."""
    first = replace(START, limit=None)
    trial = tried(first)
    assert trial.size == TARGET.scaled(0.95) + Bytes(10 * MIB)
    assert not trial.is_in_force(first)
    assert trial.is_in_force(replace(first, limit=TARGET))
    assert not trial.is_in_force(replace(first, limit=TARGET + Bytes(1)))


@given(
    st.lists(
        st.tuples(st.floats(0.1, 5.0), st.integers(0, 2000), st.floats(0, 0.3), st.integers(0, 64)),
        min_size=1,
        max_size=60,
    )
)
def test_yes_means_below_and_unharmed(steps: list[tuple[float, int, float, int]]) -> None:
    """The trial succeeds only after usage has stayed below the limit for the maximum age of the kubelet's figure."""
    trial, at, stall, reread, above_at = tried(), 0.0, 0.0, 0, 0.0
    for span, used, waited, again in steps:
        at, stall, reread = at + span, stall + waited, reread + again * MIB
        view = replace(START, pod_used=Bytes(used * MIB), used=Bytes(used * MIB))
        if used > 512:
            above_at = at
        verdict = trial.judge(after(view, at, reread, stall))
        if verdict is not None:
            assert not verdict.ok or (at - above_at >= USAGE_AGE - 1e-6 and reread <= 129 * MIB)
            return
        assert at <= 40.0 + 5.0, "it ends in time"
