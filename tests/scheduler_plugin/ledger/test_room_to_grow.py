"""Placement leaves room for the VM of a node that may grow the most (B.17)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from protocol.units import ZERO, Resources
from scheduler_plugin.ledger.events import MigrationSeen, PodGone, PodSeen, VmSeen
from tests.scheduler_plugin.ledger.fleet import Fleet, amount, migration, name, node, plain_pod, vm, vm_pod
from tests.scheduler_plugin.ledger.sleeping import sleeper

SMALL, LARGE = amount(2), amount(8)
"""A VM's bound: its present size, and almost a whole node."""


def fleet_of(first: Resources, second: Resources) -> Fleet:
    """Two nodes with a VM of 2 on each; these are their bounds."""
    a, b = vm("a", amount(2), maximum=first), vm("b", amount(2), maximum=second)
    return Fleet(node("n1"), node("n2"), a, b, vm_pod("a", "n1"), vm_pod("b", "n2"))


def growth(fleet: Fleet) -> list[Resources]:
    """The largest growth to expect on each node."""
    return [fleet.ledger.rooms[of].growth for of in ("n1", "n2")]


@pytest.mark.parametrize(("first", "second", "best"), [(LARGE, SMALL, "n2"), (SMALL, LARGE, "n1")])
def test_pod_avoids_node_whose_vm_may_grow(first: Resources, second: Resources, best: str) -> None:
    fleet = fleet_of(first, second)
    assert fleet.ledger.best(plain_pod("c", amount(1)), ["n1", "n2"], 1) == [best]


@pytest.mark.parametrize(("bound", "best"), [(amount(1), "n1"), (amount(7), "n2")])
def test_growing_vm_goes_where_room_is(bound: Resources, best: str) -> None:
    fleet = Fleet(node("n1"), node("n2"), vm("a", amount(1), maximum=bound), plain_pod("b", amount(4), "n1"))
    assert fleet.ledger.best(vm_pod("a"), ["n1", "n2"], 1) == [best]
    assert fleet.ledger.scores(vm_pod("a"), ["n1", "n2"]) == ([9, 6] if best == "n1" else [1, 7])


def test_growth_follows_size_bounds_and_pods() -> None:
    fleet = fleet_of(LARGE, amount(5))
    assert growth(fleet) == [amount(6), amount(3)]
    fleet.apply(VmSeen(structs.replace(fleet.vms[name("a")], version=2, use=amount(7), actual=amount(7))))
    assert growth(fleet) == [amount(1), amount(3)]
    fleet.apply(VmSeen(structs.replace(fleet.vms[name("b")], version=2, maximum=amount(4))))
    assert growth(fleet) == [amount(1), amount(2)]
    fleet.apply(PodGone("uid-b"))
    assert growth(fleet) == [amount(1), ZERO]


def test_vm_without_agent_does_not_grow() -> None:
    fleet = fleet_of(LARGE, LARGE)
    fleet.apply(VmSeen(structs.replace(fleet.vms[name("a")], version=2, has_agent=False)))
    assert growth(fleet) == [ZERO, amount(6)]


def test_full_node_with_sleeper_is_ranked() -> None:
    """The system reserve was raised to the whole node. Scheduling of every pod without requests could fail because of
    it.
    """
    pod = replace(vm_pod("a", "n1"), requests=ZERO)
    fleet = Fleet(node("n1", 1), node("n2"), sleeper("a", amount(2)), pod)
    assert fleet.ledger.rooms["n1"].growth.any
    best_effort = plain_pod("b", ZERO)
    assert fleet.ledger.best(best_effort, ["n1", "n2"], 1) == ["n2"]
    assert fleet.ledger.scores(best_effort, ["n1", "n2"]) == [1, 5]


def test_leaving_vm_grows_on_its_target() -> None:
    fleet = fleet_of(LARGE, SMALL)
    fleet.apply(MigrationSeen(migration("a", to="n2", target_pod="a-target")))
    fleet.apply(PodSeen(replace(vm_pod("a", "n2", "uid-target"), name=name("a-target"), migration=name("a-1"))))
    assert growth(fleet) == [ZERO, amount(6)]


def test_pod_avoids_vm_that_is_being_bound() -> None:
    """Filter sends ``b`` before the bind of ``a`` has arrived."""
    a, b = vm("a", amount(1), maximum=amount(7)), vm("b", amount(1), maximum=amount(1))
    fleet = Fleet(node("n1"), node("n2"), a, b, plain_pod("c", amount(0.5), "n1"))
    assert [fleet.ledger.best(vm_pod(of), ["n1", "n2"], 1) for of in "ab"] == [["n2"], ["n1"]]
