"""VMs that agents should size, and whether their agents respond; agents that are gone report nothing to Prometheus."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from protocol.units import Instant
from scheduler_plugin.ledger.facts import VmFacts
from tests.scheduler_plugin.ledger.fleet import LATER, NOW, Fleet, amount, node, settings_read, vm, vm_pod

RUNS = vm("a", amount(1))


def counted(fleet: Fleet, at: float) -> dict[str, int]:
    return dict(zip(("heard", "silent"), fleet.ledger.scaled_vms(Instant(at)), strict=True))


def test_vm_is_silent_after_a_minute() -> None:
    fleet = Fleet(node(), RUNS, vm_pod("a", "n1"))
    assert counted(fleet, LATER) == {"heard": 0, "silent": 1}
    fleet.grant("a", amount(2), now=LATER)
    assert counted(fleet, LATER + 60) == {"heard": 1, "silent": 0}
    assert counted(fleet, LATER + 61) == {"heard": 0, "silent": 1}


def test_each_vm_counts_once() -> None:
    others = [each for of in ("b", "c") for each in (vm(of, amount(1)), vm_pod(of, "n1"))]
    fleet = Fleet(node(), RUNS, vm_pod("a", "n1"), *others)
    fleet.grant("b", amount(1), now=LATER)
    assert counted(fleet, LATER) == {"heard": 1, "silent": 2}


@pytest.mark.parametrize(
    "other",
    [
        structs.replace(RUNS, has_agent=False),
        structs.replace(RUNS, phase="Pending"),
        structs.replace(RUNS, phase="Succeeded"),
    ],
    ids=["not autoscaled", "has no guest yet", "has no guest any more"],
)
def test_vm_without_agent_does_not_count(other: VmFacts) -> None:
    assert counted(Fleet(node(), other, vm_pod("a", "n1")), NOW) == {"heard": 0, "silent": 0}


def test_foreign_or_podless_vm_does_not_count() -> None:
    elsewhere = replace(vm_pod("a", "n1"), scheduler="theirs")
    assert counted(Fleet(node(), RUNS, elsewhere), NOW) == {"heard": 0, "silent": 0}
    assert counted(Fleet(node(), RUNS), NOW) == {"heard": 0, "silent": 0}


def test_scheduler_name_comes_from_settings() -> None:
    fleet = Fleet(node(), RUNS, replace(vm_pod("a", "n1"), scheduler="ours"))
    fleet.apply(settings_read(scheduler="ours", percent_of_nodes=100))
    assert counted(fleet, NOW) == {"heard": 0, "silent": 1}
