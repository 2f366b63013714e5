"""A group that shares a recording: desired and serving replicas, cost, and every policy's bounds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from scripts.autoscale.replay.groups.group_model import (
    REPLICAS,
    GroupObservation,
    GroupRun,
    GroupScore,
    OrderedReplicas,
    ReplicaShape,
    group_score,
    group_timeline,
    oracle,
    play_group,
)
from scripts.autoscale.replay.groups.group_policies import GROUP_PLAYERS
from scripts.autoscale.replay.groups.lagging_group import Lags, Rollout
from scripts.autoscale.replay.recording import Floats, Recording, Timeline
from tests.replay.test_command import run


def line(*demand: float, step: float = 60.0, warm_up: int = 0) -> Timeline:
    """A recording that has the same value in every sample."""
    return Timeline("test", step, np.array(demand, dtype=np.float64), warm_up, 10.0)


def wants(*wanted: OrderedReplicas) -> Callable[[ReplicaShape], Callable[[GroupObservation], OrderedReplicas]]:
    """A policy that wants one thing after another."""

    def begin(_: ReplicaShape) -> Callable[[GroupObservation], OrderedReplicas]:
        left = iter(wanted)
        return lambda _: next(left)

    return begin


def test_new_replica_costs_before_it_serves() -> None:
    usual = ReplicaShape.of(4).usual
    found = play_group(line(4, 4, 4, 4), wants(*[OrderedReplicas(6, usual)] * 4))
    assert found.replicas.tolist() == [4, 6, 6, 6]
    assert found.serving.tolist() == [4, 4, 6, 6]


def test_starting_replicas_are_removed_first() -> None:
    usual = ReplicaShape.of(4).usual
    wanted = [OrderedReplicas(count, usual) for count in (8, 6, 3, 3)]
    found = play_group(line(4, 4, 4, 4), wants(*wanted))
    assert found.replicas.tolist() == [4, 8, 6, 3]
    assert found.serving.tolist() == [4, 4, 6, 3]


def test_orders_are_bounded_and_in_whole_units() -> None:
    found = play_group(
        line(4, 4, 4), wants(OrderedReplicas(99, 99_999), OrderedReplicas(0, 1), OrderedReplicas(2, 101))
    )
    assert found.replicas.tolist() == [4, 20, 2]
    assert found.size.tolist() == [0.5, 3.5, 0.15]


def test_observed_need_may_exceed_requests() -> None:
    looks: list[GroupObservation] = []

    def begin(shape: ReplicaShape) -> Callable[[GroupObservation], OrderedReplicas]:
        def look_at(look: GroupObservation) -> OrderedReplicas:
            looks.append(look)
            return OrderedReplicas(look.replicas, look.size)

        _ = shape
        return look_at

    play_group(line(8, 2), begin)
    assert [look.used for look in looks] == [2000, 500]


def test_the_oracle_chooses_replicas_and_size() -> None:
    assert oracle(line(8, 1, 0.05)).tolist() == [8, 1, 0.5]  # two of the least size, which is a quarter of the usual


def test_score_counts_cost_shortage_and_changes() -> None:
    replicas, size = np.array([4.0, 4.0, 6.0, 6.0]), np.array([1.0, 1.0, 1.0, 0.5])
    played = GroupRun(replicas, np.array([4.0, 4.0, 4.0, 6.0]), size)
    assert group_score(line(4, 4, 5, 3, step=900.0), played) == GroupScore(
        cost=17 / 16.0,
        insufficient_percent=100 / 16,
        throttled_percent=25.0,
        restarts_per_hour=6.0,
        replicas_per_hour=2.0,
    )


def test_fine_recordings_are_observed_every_15_seconds() -> None:
    coarse = Recording("coarse", np.arange(0.0, 3600.0, 300.0), np.ones(12))
    fine = Recording("fine", np.arange(0.0, 60.0), np.ones(60))
    assert [group_timeline(each, 1.0).step for each in (coarse, fine)] == [60.0, 15.0]


@pytest.mark.parametrize("rollout", Rollout)
@pytest.mark.parametrize("age", [30.0, 120.0, 300.0, 600.0])
def test_old_metrics_add_nothing_twice(rollout: Rollout, age: float) -> None:
    """Four vCPUs need five at a target of 80 %. They are ordered once, although metrics show old pods for minutes."""
    found = play_group(line(*[4.0] * 90), GROUP_PLAYERS["hvpa"], Lags(metrics=age, rollout=rollout, deletes=60.0))
    assert list(dict.fromkeys(zip(found.replicas, found.size, strict=True))) == [(4, 0.5), (5, 1.0)]


def test_idle_group_shrinks() -> None:
    """A load of zero is measured, too."""
    found = play_group(line(*[4.0] * 60, *[0.0] * 800), GROUP_PLAYERS["hvpa"])
    assert (found.replicas[-1], found.size[-1]) == (2, 0.15)


SATURATING = ("hvpa-hpa-biased", "hvpa-mixed")


def capacity(name: str) -> Floats:
    """The vCPUs that serve at every minute of a load that rises from one to six vCPUs and falls again."""
    found = play_group(line(*[1.0] * 30, *[6.0] * 90, *[1.0] * 60), GROUP_PLAYERS[name])
    assert REPLICAS.min <= found.replicas.min() <= found.replicas.max() <= REPLICAS.max
    return found.serving * found.size


@pytest.mark.parametrize("name", sorted(GROUP_PLAYERS.keys() - set(SATURATING)))
def test_policies_follow_a_rising_and_falling_load(name: str) -> None:
    served = capacity(name)
    assert served[100:119].min() >= 6.0
    assert served[100] > served[20]


@pytest.mark.parametrize("name", SATURATING)
def test_biased_modes_saturate_at_small_sizes(name: str) -> None:
    """The VPA shrinks pods while more replicas start; at the maximum of replicas saturated CPU hides the need."""
    served = capacity(name)
    assert served[20] < served[100:119].min() < 6.0


def test_the_tables_name_every_policy_and_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "short.csv"
    path.write_text("seconds,cpu_cores\n" + "".join(f"{at * 60},{1 + at % 3}\n" for at in range(60)))
    status, out, _ = run("--trace", str(path), "--trace", str(path), "--group", "--policy", "hpa", "tortoise")
    assert status == 0
    assert out.count("short: 0.9 h scored every 60 s") == 2
    assert out.count("tortoise") == 3
    status, out, _ = run("--trace", str(path), "--group", "--policy", "vertical", "--json")
    found = json.loads(out)
    assert (status, list(found["overall"]), found["recordings"][0]["name"]) == (0, ["vertical"], "short")


def test_a_picture_is_the_same_each_time(tmp_path: Path) -> None:
    path = tmp_path / "short.csv"
    path.write_text("seconds,cpu_cores\n" + "".join(f"{at * 60},{1 + at % 3}\n" for at in range(30)))
    pictures = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for picture in pictures:
        assert run("--trace", str(path), "--group", "--policy", "hpa", "vertical", "--plot", str(picture))[0] == 0
    assert pictures[0].read_bytes() == pictures[1].read_bytes()


@pytest.mark.parametrize(
    "options",
    [
        ("--pod-start", "30", "--metrics-age", "15"),
        ("--rollout", "on-delete"),
        ("--rollout", "in-place", "--largest-pod", "0.5"),
        ("--broken-pods", "1"),
        ("--flapping-pods", "1"),
    ],
)
def test_lags_of_pods_and_metrics_are_played(tmp_path: Path, options: tuple[str, ...]) -> None:
    path = tmp_path / "short.csv"
    path.write_text("seconds,cpu_cores\n" + "".join(f"{at * 60},{1 + at % 3}\n" for at in range(60)))
    plain = run("--trace", str(path), "--group", "--policy", "hvpa", "--json")
    status, out, _ = run("--trace", str(path), "--group", "--policy", "hvpa", "--json", *options)
    assert (status, out != plain[1]) == (0, True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--pod-start", "30"), "--pod-start: needs --group"),
        (("--group", "--pod-start", "nan"), "'--pod-start': Input should be less than"),
        (("--group", "--pod-start", "-1"), "'--pod-start': Input should be greater than or equal to 0"),
        (("--group", "--metrics-age", "inf"), "'--metrics-age': Input should be less than"),
        (("--group", "--rollout", "sideways"), "'sideways' is not one of"),
        (("--group", "--largest-pod", "1"), "--largest-pod: needs --rollout in-place"),
        (("--group", "--broken-pods", "2"), "'--broken-pods': Input should be less than or equal to 1"),
        (("--group", "--broken-pods", "1", "--flapping-pods", "1"), "expected at most 1 together, got 2"),
    ],
)
def test_lags_that_mean_nothing_are_refused(options: tuple[str, ...], said: str) -> None:
    status, _, err = run(*options)
    assert (status, said in " ".join(err.replace("│", " ").split())) == (2, True)


def test_vm_policy_is_refused_for_a_group() -> None:
    status, _, err = run("--group", "--policy", "vpa")
    assert (status, err) == (
        2,
        f"autoscale replay: --policy: expected any of {', '.join(GROUP_PLAYERS)} with --group, got vpa\n",
    )
