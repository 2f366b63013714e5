"""The scenario of a group in the demonstration: its verdict, its load, and its picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from protocol.kubernetes.objects import Json
from protocol.units import Seconds
from scheduler_plugin.groups.core.workload import ReplicaBounds
from scheduler_plugin.groups.objects.vm_group import parse_vm_group
from scripts.autoscale.demonstration.group_scenario import cores, demo_group
from scripts.autoscale.demonstration.loads import share_demand
from scripts.autoscale.demonstration.report import GroupObservations, GroupReport, Observations, group_report, report
from tests.fake_clock import SleepingClock

FIRST, SECOND = "shop-replica-0", "shop-replica-1"
THERE_AND_BACK = ((5.0, 1, 1.0, 0.0), (12.0, 1, 2.0, 0.0), (20.0, 2, 2.0, 2.0), (50.0, 1, 1.0, 0.0))


WAITED = "within 240 s: 2 of 2 replicas serve; 1.2 CPUs busy"


def seen(
    *points: tuple[float, int, float, float],
    transactions: int = 900,
    failed: int = 0,
    problem: str = "",
    message_under_load: str = "",
    last_message: str = "",
) -> GroupObservations:
    """A scenario with a load from 10 s to 40 s; each point has a time, who serves, and two sizes."""
    found = GroupObservations(FIRST, started_at=1.0, transactions=transactions, failed=failed, problem=problem)
    found.message_under_load, found.last_message = message_under_load, last_message
    found.load_began, found.load_ended = Seconds(10.0), Seconds(40.0)
    found.load.append((11.0, 120.0))
    for at, serving, first, second in points:
        sizes = {name: size for name, size in (("shop-primary", 1.0), (FIRST, first), (SECOND, second)) if size}
        assert found.record(Seconds(at), serving, sizes)
        assert not found.record(Seconds(at), serving, sizes)
    return found


def test_added_and_removed_replica_is_a_success() -> None:
    found = group_report(seen(*THERE_AND_BACK))
    assert (found.most_cpu, found.most_serving, found.transactions, found.problems) == (2.0, 2, 900, [])
    whole = report(Observations(group=seen(*THERE_AND_BACK, failed=1)), Seconds(60.0))
    assert whole.group is not None
    assert "1 transactions of the read load failed" in whole.problems


@pytest.mark.parametrize(
    ("observed", "problem"),
    [
        (seen((5.0, 1, 1.0, 0.0)), "the replica did not grow beyond the 1 vCPU that it had before the load"),
        (
            seen((5.0, 1, 1.0, 0.0), (12.0, 1, 2.0, 0.0), message_under_load="within 300 s: no replica serves"),
            "no replica was added under load within 300 s: no replica serves",
        ),
        (
            seen(*THERE_AND_BACK[:3], last_message=WAITED),
            f"2 replicas serve instead of one {WAITED}",
        ),
        (
            seen(*THERE_AND_BACK[:3], (50.0, 1, 1.0, 1.0), last_message=WAITED),
            f"shop-primary, shop-replica-0, shop-replica-1 run instead of the primary and one replica {WAITED}",
        ),
        (
            seen(*THERE_AND_BACK[:3], (50.0, 1, 2.0, 0.0), last_message=WAITED),
            f"the replica did not shrink back to 1 vCPU {WAITED}",
        ),
        (seen(*THERE_AND_BACK, last_message=WAITED), f"the group did not shrink back {WAITED}"),
        (seen(*THERE_AND_BACK, failed=2), "2 transactions of the read load failed"),
        (seen(*THERE_AND_BACK, transactions=0), "the read load ran no transactions"),
        (seen(*THERE_AND_BACK, problem="pgbench ended with exit code 1"), "pgbench ended with exit code 1"),
        (GroupObservations(FIRST), "the group's load did not run"),
    ],
)
def test_each_failure_is_named(observed: GroupObservations, problem: str) -> None:
    assert problem in group_report(observed).problems


def test_demo_group_is_valid() -> None:
    given = demo_group("{}")
    group = parse_vm_group(given)
    assert group.scaling is not None
    assert (group.spec.replicas, group.scaling.bounds) == (1, ReplicaBounds(1, 2))


async def test_simulated_replicas_share_demand_until_released() -> None:
    serving: list[Sequence[str]] = [["one"], ["one", "two"], ["one", "two"]]
    looks = iter(serving)

    async def controls() -> Sequence[str]:
        return next(looks)

    asked: list[tuple[str, object]] = []

    async def order(control: str, demand: Mapping[str, object] | None, _guest: str) -> None:
        asked.append((control, None if demand is None else demand["cpu"]))

    left = [True, True, False]
    outcome = await share_demand(controls, SleepingClock(), lambda: left.pop(0), lambda _: None, order)
    assert asked[:3] == [("one", 2.6), ("one", 1.3), ("two", 1.3)]
    assert sorted(asked[3:]) == [("one", None), ("two", None)]
    assert outcome.transactions == 0


def test_vm_size_comes_from_status() -> None:
    vm: Json = {"status": {"cpus": "1500m"}}
    assert (cores(vm), cores({})) == (1.5, 0.0)


@pytest.fixture
def pictures() -> Any:
    """The module; imported by the tests that draw, because matplotlib takes a second."""
    return import_module("scripts.autoscale.demonstration.pictures")


def test_equal_reports_make_equal_pictures(tmp_path: Path, pictures: Any) -> None:
    assert pictures.group_path(Path("demo.svg")) == Path("demo-group.svg")
    found = group_report(seen(*THERE_AND_BACK))
    files = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for file in files:
        pictures.draw_group(found, file)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert "900 reads, 0 failed" in files[0].read_text()


def test_where_no_load_ran_there_is_no_picture(tmp_path: Path, pictures: Any) -> None:
    found: GroupReport = group_report(GroupObservations(FIRST, problem="no guests"))
    with pytest.raises(pictures.NothingToDrawError, match="no picture of the group: no guests"):
        pictures.draw_group(found, tmp_path / "one.svg")
