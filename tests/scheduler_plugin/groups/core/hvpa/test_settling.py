"""Effective intervals under noise: growth never waits, and less has to have been enough for a while (S1.12)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.units import Seconds
from scheduler_plugin.groups.core.hvpa.policy import decide
from scheduler_plugin.groups.core.hvpa.spec import DirectionRules, HvpaMode, HvpaSpec, ScalingTimes, Shrinking
from scheduler_plugin.groups.core.workload import ReplicaBounds, Rule, Workload, WorkloadDecision
from tests.examples import examples
from tests.scheduler_plugin.groups.core.hvpa.stories import NOON, requests, running, sized, spec_for, wanted

LOOK = 15.0
SPEC = replace(
    spec_for(HvpaMode.EFFECTIVE_INTERVALS, sized(100), sized(4000)), replicas=ReplicaBounds(2, 2), settle=Seconds(300.0)
)


def looks(
    spec: HvpaSpec, workload: Workload, needs: Iterable[int]
) -> list[tuple[Workload, WorkloadDecision, ScalingTimes]]:
    """Reconcile every 15 s with this need of every replica; each decision takes effect before the next reconcile."""
    found, memory = [], ScalingTimes()
    for number, need in enumerate(needs):
        total = wanted(workload.replicas, sized(need * 2 // workload.replicas))
        now = NOON + timedelta(seconds=number * LOOK)
        decision, memory = decide(spec, workload, replace(total, horizontal=None), memory, now)
        workload = decision.applied(workload)
        workload = replace(workload, ready=workload.replicas)
        found.append((workload, decision, memory))
    return found


def sizes(spec: HvpaSpec, first: int, needs: Iterable[int]) -> list[int]:
    cpus = (workload.containers[0].requests.cpu for workload, _, _ in looks(spec, running(2, sized(first)), needs))
    return [0 if cpu is None else cpu.value for cpu in cpus]


def test_shrink_waits_for_whole_time() -> None:
    path = sizes(SPEC, 2000, [1000] * 22)
    assert path == [2000] * 20 + [1000] * 2


def test_shrinks_to_window_maximum() -> None:
    path = sizes(SPEC, 2000, [1000, 600, 1400, *[600] * 19])
    assert (path[19], path[20]) == (2000, 1400)
    assert path[-1] == 1400  # and waits again


def test_needed_size_restarts_the_wait() -> None:
    path = sizes(SPEC, 2000, [*[1000] * 19, 1900, *[1000] * 21])
    assert path == [2000] * 40 + [1000]


def test_growth_never_waits() -> None:
    assert sizes(SPEC, 1000, [1000, 600, 2500, 600]) == [1000, 1000, 2500, 2500]


def test_blocked_wish_says_until_when() -> None:
    _, decision, memory = looks(SPEC, running(2, sized(2000)), [1000] * 3)[-1]
    (kept,) = decision.withheld
    assert (kept.subject, kept.rule, kept.message) == ("app/cpu", Rule.DELAY, "until 12:05:00 UTC")
    assert memory.shrinking == (Shrinking("app/cpu", NOON, 1000),)


def test_a_delay_that_lasts_longer_is_said_instead() -> None:
    rules = replace(SPEC.vertical, down=DirectionRules(delay=Seconds(3600.0)))
    memory = ScalingTimes(last_down=NOON)
    spec, now = replace(SPEC, vertical=rules), NOON + timedelta(minutes=1)
    decision, _ = decide(spec, running(2, sized(2000)), wanted(None, sized(1000)), memory, now)
    assert [kept.message for kept in decision.withheld] == ["until 13:00:00 UTC"]


def test_replicas_keep_window_maximum() -> None:
    spec = replace(SPEC, replicas=ReplicaBounds(1, 10), containers=())
    memory, replicas = ScalingTimes(), []
    workload = running(6)
    for number, desired in enumerate([2, 4, *[2] * 19]):
        now = NOON + timedelta(seconds=number * LOOK)
        decision, memory = decide(spec, workload, wanted(desired, sized(0)), memory, now)
        replicas.append(decision.replicas)
    assert (replicas[:20], replicas[20]) == ([None] * 20, 4)


def test_future_memory_waits_normally() -> None:
    memory = ScalingTimes(shrinking=(Shrinking("app/cpu", NOON + timedelta(days=1), 500),))
    decision, after = decide(SPEC, running(2, sized(2000)), wanted(None, sized(1000)), memory, NOON)
    assert (requests(decision), after.shrinking) == (sized(), (Shrinking("app/cpu", NOON, 1000),))


@given(st.integers(0, 2**32))
@settings(max_examples=examples(2, 50))
def test_noise_reverses_size_once(seed: int) -> None:
    random, hour = Random(seed), int(1800 / LOOK)
    needs = [random.randrange(400, 2000) for _ in range(hour)]
    path = sizes(SPEC, 1000, needs)
    falls = [number for number in range(1, hour) if path[number] < path[number - 1]]
    assert all(later - earlier >= 300 / LOOK for earlier, later in pairwise(falls))
    assert all(size + 200 > need for size, need in zip(path, needs, strict=True))  # what is needed is there
