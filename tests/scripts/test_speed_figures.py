"""Figures of benchmark rounds under a real kube-scheduler, and their output."""

from __future__ import annotations

from rich.table import Table

from protocol.kubernetes.objects import items
from scripts.bench.kubernetes.scheduling_rounds import kube_scheduler_settings
from scripts.bench.kubernetes.speed_figures import (
    ALONE,
    INCREASE,
    OURS,
    WRITE,
    Round,
    Side,
    Start,
    permit_table,
    scheduling_table,
    start_table,
)


def round_of(side: Side, pods_per_second: float, **cpu: float) -> Round:
    return Round(side, 200, pods_per_second, cpu)


def rows(table: Table) -> list[list[str]]:
    """The cells of each row."""
    cells = [[str(cell) for cell in column.cells] for column in table.columns]
    return [list(row) for row in zip(*cells, strict=True)]


def test_ratio_is_median_of_consecutive_rounds() -> None:
    rounds = [
        round_of(OURS, 90.0, etcd=1.0, service=1.0),
        round_of(ALONE, 100.0, etcd=1.0),
        round_of(OURS, 40.0, etcd=1.5, service=0.5),  # the machine was busy with something else, for both
        round_of(ALONE, 50.0, etcd=1.0),
        round_of(OURS, 99.0, etcd=1.0, service=0.8),
        round_of(ALONE, 99.0, etcd=2.0),
    ]
    assert rows(scheduling_table([rounds])) == [
        ["200", "90", "99", "0.90", "1.00 etcd\n0.80 service", "1.00 etcd", "2.00"]
    ]


def test_latencies_are_shown_in_milliseconds() -> None:
    first, write = [number / 1000 for number in range(100)], [0.02]
    table = permit_table({"first request": first, INCREASE: [0.03], WRITE: write}, 8, 0.5)
    assert table.title == "Permits, 8 concurrent agents (load 0.5)"
    assert rows(table) == [
        ["first request", "50.0", "99.0"],
        ["increase", "30.0", "30.0"],
        ["a bare patch of a VM", "20.0", "20.0"],
        ["increase / bare patch", "1.50", ""],
    ]


def test_start_is_compared_with_reading() -> None:
    assert rows(start_table(Start(10_000, 2.5, 1.0, 1.5, 150.0, 0.5))) == [
        ["10000", "2.50 s", "1.00 s", "2.50", "1.50 s", "150 MiB", "0.5"]
    ]


def test_baseline_only_lacks_the_extender() -> None:
    ours, alone = (kube_scheduler_settings(side, "kubeconfig") for side in (OURS, ALONE))
    assert set(ours) - set(alone) == {"extenders"}
    (profile,) = items(ours, "profiles")
    assert alone["profiles"] == [{key: profile[key] for key in profile if key != "percentageOfNodesToScore"}]
    others = set(alone) - {"profiles"}
    assert {key: ours[key] for key in others} == {key: alone[key] for key in others}
