"""What rounds under a real kube-scheduler come to, and how it is shown."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from protocol.kubernetes.objects import items
from scripts.bench.kubernetes.scheduling_rounds import kube_scheduler_settings
from scripts.bench.kubernetes.speed_figures import (
    ALONE,
    OURS,
    Latency,
    PermitLatencies,
    Round,
    SchedulingSpeed,
    Side,
    Start,
    permit_table,
    scheduling,
    scheduling_table,
    start_table,
)


def round_of(side: Side, pods_per_second: float, **cpu: float) -> Round:
    return Round(side, 200, 1000, 1000 / pods_per_second, pods_per_second, cpu, 0.5)


def test_a_ratio_is_the_median_over_rounds_that_followed_one_another() -> None:
    rounds = [
        round_of(OURS, 90.0, etcd=1.0, service=1.0),
        round_of(ALONE, 100.0, etcd=1.0),
        round_of(OURS, 40.0, etcd=1.5, service=0.5),  # the machine was busy with something else, for both
        round_of(ALONE, 50.0, etcd=1.0),
        round_of(OURS, 99.0, etcd=1.0, service=0.8),
        round_of(ALONE, 99.0, etcd=2.0),
    ]
    assert scheduling(rounds) == SchedulingSpeed(
        nodes=200,
        ours=90.0,
        alone=99.0,
        ratio=0.9,
        cpu_ratio=2.0,
        ours_cpu_ms={"etcd": 1.0, "service": 0.8},
        alone_cpu_ms={"etcd": 1.0},
    )


def test_latencies_are_shown_in_milliseconds() -> None:
    assert Latency.of([number / 1000 for number in range(100)]) == Latency(50.0, 99.0)


def test_alone_kube_scheduler_has_all_settings_but_those_that_are_there_for_the_extender() -> None:
    ours, alone = (kube_scheduler_settings(side, "kubeconfig") for side in (OURS, ALONE))
    assert set(ours) - set(alone) == {"extenders"}
    (profile,) = items(ours, "profiles")
    assert alone["profiles"] == [{key: profile[key] for key in profile if key != "percentageOfNodesToScore"}]
    others = set(alone) - {"profiles"}
    assert {key: ours[key] for key in others} == {key: alone[key] for key in others}


def test_every_kind_of_measurement_has_its_table() -> None:
    latency = Latency(1.0, 2.0)
    speed = scheduling([round_of(OURS, 90.0, etcd=1.0), round_of(ALONE, 100.0, etcd=1.0)])
    permits = PermitLatencies(8, latency, latency, latency, latency, 1.1, 0.5)
    said = StringIO()
    Console(width=200, file=said).print(
        scheduling_table([speed]), permit_table(permits), start_table(Start(10_000, 2.5, 1.0, 2.5, 1.5, 150.0, 0.5))
    )
    assert all(words in said.getvalue() for words in ("0.90", "Permits, 8 agents at once", "10000", "2.50 s"))
