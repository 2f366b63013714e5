"""A guest boots with the size in its pod's arguments, even if its VM's spec changes later."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from protocol.units import ZERO, Resources
from scheduler_plugin.ledger.events import BindRequested, PodSeen, VmSeen
from scheduler_plugin.ledger.facts import NodeFacts, PodFacts, VmFacts
from tests.scheduler_plugin.ledger.fleet import LATER, Fleet, amount, name, node, plain_pod, vm, vm_pod


def made_with(size: Resources, on: str | None = "n1", around: Resources = ZERO) -> PodFacts:
    return replace(vm_pod("a", on), boots_with=size, requests=around, overhead=around)


def lowered(pod: PodFacts, *more: NodeFacts | VmFacts | PodFacts) -> Fleet:
    """A node of 9, and a VM whose spec has been lowered to 1."""
    return Fleet(node(), vm("a", amount(1), pod=pod.name), pod, *more)


def says(fleet: Fleet, **changes: object) -> Resources:
    """The reservations after this change of the VM's status."""
    old = fleet.vms[name("a")]
    fleet.vms[name("a")] = structs.replace(old, version=old.version + 1, **changes)
    fleet.apply(VmSeen(fleet.vms[name("a")]), LATER)
    return fleet.reserved("a")


def test_lowering_frees_nothing_before_the_guest_has_booted() -> None:
    """Otherwise the room would be given away, although the guest boots with it."""
    fleet = Fleet(node(), vm("a", amount(6), pod=name("a-pod")), vm("b", amount(2)))
    assert fleet.ledger.apply(BindRequested(made_with(amount(6), None), "n1"), LATER).needs_bind
    assert says(fleet, use=amount(1)) == amount(6)
    fleet.apply(PodSeen(made_with(amount(6))))
    assert fleet.reserved("a") == amount(6)
    assert not fleet.ledger.apply(BindRequested(plain_pod("c", amount(4)), "n1"), LATER).needs_bind


def test_a_rebuild_counts_it_too() -> None:
    assert lowered(made_with(amount(6))).reserved("a") == amount(6)


def test_a_pod_that_waits_asks_for_it() -> None:
    fleet = lowered(made_with(amount(6), None), node("n2", total=4))
    assert fleet.ledger.claim_of(made_with(amount(6), None)) == amount(6)
    assert not fleet.ledger.apply(BindRequested(made_with(amount(6), None), "n2"), LATER).needs_bind


@pytest.mark.parametrize(
    ("changes", "reserved"),
    [
        ({"actual": amount(2), "is_booting": True}, 6),
        ({"actual": amount(2), "pod": name("a-former")}, 6),
        ({"actual": amount(2)}, 2),
    ],
    ids=["it boots", "its former pod ran it", "it runs"],
)
def test_what_the_guest_has_counts_once_it_runs(changes: dict[str, object], reserved: int) -> None:
    """A booting guest's memory is plugged in steps, so its status shows less than it will have."""
    assert says(lowered(made_with(amount(6))), **changes) == amount(reserved)


def test_a_guest_that_ran_boots_no_more() -> None:
    """Not even while its controller briefly cannot report its size."""
    fleet = lowered(made_with(amount(6)))
    says(fleet, actual=amount(2))
    assert says(fleet, actual=None, is_booting=True) == amount(1)


def test_a_guest_that_was_moved_boots_no_more() -> None:
    """Its pod has the arguments of the source pod; after the migration it counts like any other pod of the VM."""
    pod = replace(made_with(amount(6)), migration=name("a-1"))
    fleet = lowered(pod)
    assert fleet.reserved("a") == amount(1)
    fleet.apply(PodSeen(made_with(amount(6))))
    assert fleet.reserved("a") == amount(1)


def test_no_more_counts_than_the_node_has() -> None:
    """Users may write any arguments into pods that they create themselves."""
    assert lowered(made_with(amount(1000), around=amount(1))).reserved("a") == amount(9)
    assert lowered(made_with(amount(1000), "unknown")).reserved("a") == amount(1000)
