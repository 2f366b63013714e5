"""The vertical recommender: percentiles of use with decay, daily peaks of memory, and a small checkpoint."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.units import Bytes, MilliCpu
from scheduler_plugin.groups.core.recommender.vertical import (
    BUCKETS,
    CHECKPOINT_WEIGHT,
    DAY,
    History,
    UsageHistogram,
    decode_history,
    encode_history,
    observed,
    ran_out_of_memory,
    recommended,
)
from scheduler_plugin.groups.core.workload import ContainerRecommendation, ResourceList, VerticalRecommendation
from tests.examples import examples

T0 = 1_767_225_600.0
MEGA = 1_000_000
PLUS_MARGIN = 1.15
EMPTY = UsageHistogram(10.0)


def used(cpu: int | None = None, memory: int | None = None) -> ResourceList:
    """So many thousandths of a vCPU and megabytes."""
    return ResourceList(None if cpu is None else MilliCpu(cpu), None if memory is None else Bytes(memory * MEGA))


def minutes(history: History, *replicas: ResourceList, count: int, begin: float = T0) -> History:
    for minute in range(count):
        history = observed(history, "app", replicas, begin + 60.0 * minute)
    return history


def target(history: History, replicas: int = 1) -> ResourceList:
    found = recommended(history, replicas)
    assert found is not None
    return found.containers[0].target


def close(found: float | None, expected: float) -> bool:
    """Not below, and above by no more than two buckets' widths of 5 %."""
    return found is not None and expected <= found <= expected * 1.11 + 11


@given(st.lists(st.integers(0, 900_000), min_size=1, max_size=40), st.sampled_from([0.0, 0.5, 0.9, 0.95, 1.0]))
@settings(max_examples=examples(20, 150))
def test_percentile_is_close_above_true(values: list[int], fraction: float) -> None:
    histogram = EMPTY
    for value in values:
        histogram = histogram.add(value, 1.0, T0)
    rank = max(0, min(len(values) - 1, -(-int(fraction * len(values) * 1000) // 1000) - 1))
    assert close(histogram.percentile(fraction), sorted(values)[rank])


def test_a_weight_halves_with_every_half_life() -> None:
    """One old sample of 1000 against one of 100 a day later: the old one has a third of the weight."""
    histogram = EMPTY.add(1000, 1.0, T0).add(100, 1.0, T0 + DAY)
    assert close(histogram.percentile(0.66), 100)
    assert close(histogram.percentile(0.67), 1000)


@pytest.mark.parametrize("gap", [99.0, 101.0, 5000.0])
def test_very_old_samples_do_not_count(gap: float) -> None:
    histogram = EMPTY.add(1000, 1.0, T0).add(100, 1.0, T0 + gap * DAY)
    assert close(histogram.percentile(1 - 1e-9), 100)
    assert histogram.total(T0 + gap * DAY) == pytest.approx(1.0)


def test_out_of_range_values_use_last_bucket() -> None:
    assert EMPTY.percentile(0.9) is None
    assert EMPTY.add(1e30, 1.0, T0).percentile(0.5) == EMPTY.add(1e20, 1.0, T0).percentile(0.5)
    assert EMPTY.add(5, 1.0, T0).add(5, -1.0, T0).percentile(0.5) is None


def test_target_is_p90_plus_15_percent() -> None:
    history = minutes({}, used(1000, 2000), count=91)
    history = minutes(history, used(4000, 2000), count=9, begin=T0 + 5460)
    found = target(history)
    assert found.cpu is not None
    assert close(found.cpu.value / PLUS_MARGIN, 1000)
    little = recommended(observed({}, "app", [used(1, 1)], T0), 1)
    assert little is not None
    assert little.containers[0].target == ResourceList(MilliCpu(25), Bytes(250 * MEGA))


def test_bounds_narrow_with_history() -> None:
    day = minutes({}, used(1000), count=1441)
    young, old = recommended(minutes({}, used(1000), count=2), 1), recommended(day, 1)
    assert young is not None
    assert old is not None

    def relative(found: VerticalRecommendation) -> tuple[float, int]:
        (one,) = found.containers
        assert one.target.cpu is not None
        assert one.lower.cpu is not None
        assert one.upper.cpu is not None
        return round(one.lower.cpu.ratio(one.target.cpu), 2), round(one.upper.cpu.ratio(one.target.cpu))

    assert relative(old) == (1.0, 2)
    assert relative(young) == (0.17, 1441)


def test_only_cpu_follows_replicas_at_once() -> None:
    history = minutes({}, used(1000, 2000), used(3000, 4000), count=3)
    two, four = target(history, 2), target(history, 4)
    assert two.cpu is not None
    assert four.cpu is not None
    assert close(two.cpu.value / PLUS_MARGIN, 2000)
    assert four.cpu.value == -(-two.cpu.value // 2)
    assert two.memory == four.memory
    assert two.memory is not None
    assert close(two.memory.value / PLUS_MARGIN / MEGA, 4000)


def test_unmeasured_replica_counts_mean() -> None:
    alike = target(minutes({}, used(1000), used(1000), count=3), 2)
    assert target(minutes({}, used(1000), used(memory=5), count=3), 2).cpu == alike.cpu


def test_memory_is_each_days_peak() -> None:
    """Half an hour of 8 GB on one day of two weighs as much as the other whole day of 2 GB."""
    history = minutes({}, used(memory=2000), count=30)
    history = minutes(history, used(memory=8000), count=30, begin=T0 + 3600)
    history = minutes(history, used(memory=2000), count=30, begin=T0 + 7200)
    history = minutes(history, used(memory=2000), count=30, begin=T0 + DAY + 3600)
    most, usual = (history["app"].memory.percentile(share) for share in (0.9, 0.6))
    assert most is not None
    assert usual is not None
    assert close(most / MEGA, 8000)
    assert close(usual / MEGA, 2000)


def test_oom_recommends_more_memory() -> None:
    history = observed({}, "app", [used(memory=2000)], T0)
    found = target(ran_out_of_memory(history, "app", Bytes(2000 * MEGA), T0 + 60))
    assert found.memory is not None
    assert close(found.memory.value / PLUS_MARGIN / MEGA, 2400)
    assert ran_out_of_memory({}, "app", Bytes(1), T0) == {}


def test_nothing_observed_recommends_nothing() -> None:
    history = observed({}, "app", [used(1000)], T0)
    assert (recommended({}, 1), recommended(history, 0)) == (None, None)
    assert recommended(observed({}, "app", [], T0), 1) is None
    assert observed(history, "app", [used(9000)], T0 - 1) == history
    assert recommended(observed(history, "proxy", [], T0), 1) == recommended(history, 1)


def test_a_checkpoint_is_small_and_recommends_the_same() -> None:
    history: History = {}
    for minute in range(3000):
        history = observed(history, "app", [used(10 + minute**2 % 90_000, 10 + minute)], T0 + 60.0 * minute)
    text = json.dumps(encode_history(history))
    restored = decode_history({"recommender": json.loads(text)}, "recommender")
    assert len(text) < 5000
    assert recommended(restored, 3) == recommended(history, 3)
    again, still = (observed(each, "app", [used(50, 9000)], T0 + 200_000.0) for each in (restored, history))
    assert recommended(again, 3) == recommended(still, 3)


def test_a_checkpoint_of_tomorrow_learns_from_today() -> None:
    """A clock that was a month ahead used to freeze a recommendation for that month."""
    ahead = observed({}, "app", [used(9000, 9000)], T0 + 30 * DAY)
    restored: History = decode_history({"recommender": encode_history(ahead)}, "recommender", now=T0)
    assert (restored["app"].since, restored["app"].until, restored["app"].peak_until) == (T0, T0, T0 + DAY)
    for hour in range(24 * 7):
        restored = observed(restored, "app", [used(100, 100)], T0 + 3600.0 * hour)
    said = recommended(restored, 1)
    assert said is not None
    (row,) = said.containers
    assert row.target.cpu is not None
    assert row.target.cpu.value < 200


@pytest.mark.parametrize(
    "found",
    [
        None,
        [{}],
        [{"containerName": "app"}],
        [{"containerName": "app", "firstSampleTime": "2026-01-02T00:00:00Z", "lastSampleTime": "2026-01-01T00:00:00Z"}],
        [{"containerName": "", "firstSampleTime": "2026-01-01T00:00:00Z", "lastSampleTime": "2026-01-01T00:00:00Z"}],
    ],
)
def test_what_is_no_checkpoint_reads_as_never_observed(found: object) -> None:
    assert decode_history({"recommender": found}, "recommender") == {}


def test_numbers_that_make_no_sense_read_as_nothing() -> None:
    broken = {
        "containerName": "app",
        "firstSampleTime": "2026-01-01T00:00:00Z",
        "lastSampleTime": "2026-01-01T00:00:00Z",
        "samples": True,
        "cpu": {"totalWeight": float("nan"), "bucketWeights": {"3": "many", "-1": 5, "999": 5, "4": -5}},
        "memory": {"totalWeight": float("inf")},
        "memoryPeak": {"bytes": -1, "until": 3},
    }
    restored = decode_history({"recommender": [broken]}, "recommender")
    assert recommended(restored, 1) is None
    assert restored["app"].peak == 0
    assert recommended(observed(restored, "app", [used(1000)], T0 + 60), 1) is not None


def test_a_histogram_is_restored_bucket_by_bucket() -> None:
    histogram = EMPTY.add(100, 1.0, T0).add(5000, 3.0, T0)
    weights = histogram.checkpoint()
    assert sorted(weights.values()) == [round(CHECKPOINT_WEIGHT / 3), CHECKPOINT_WEIGHT]
    restored = EMPTY.restored(weights, 4.0, T0)
    assert restored.weights == pytest.approx(histogram.weights, abs=1e-3)
    assert (len(restored.weights), EMPTY.checkpoint()) == (BUCKETS, {})


def test_a_recommendation_has_every_row_of_vpas() -> None:
    found = recommended(observed({}, "app", [used(1000)], T0), 2)
    assert found is not None
    (one,) = found.containers
    assert (found.replicas, one) == (2, ContainerRecommendation("app", one.target, one.lower, one.upper, one.target))
