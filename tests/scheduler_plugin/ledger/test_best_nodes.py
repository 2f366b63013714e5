"""The node of a pod if filter returns only the best nodes: full ones first, but not if others are being bound there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_plugin.constraints.model import NodeTraits, Taint
from scheduler_plugin.ledger.accounts.waiting_pods import MAX_ASSUMED, AssumedPods
from scheduler_plugin.ledger.events import BindRequested, PodGone, VmSeen
from scheduler_plugin.placement.scoring import PodDemand
from scheduler_plugin.placement.verdict import FITS
from tests.scheduler_plugin.ledger.fleet import LATER, NOW, Fleet, amount, name, node, plain_pod, vm, vm_pod

SOFT = NodeTraits(taints=(Taint("old", "", "PreferNoSchedule"),))
"""Of a node that is rather left alone."""


def sent(fleet: Fleet, of: str, size: float = 1, limit: int = 1) -> list[str]:
    """The node to which filter sends a pod."""
    return fleet.ledger.best(plain_pod(of, amount(size)), sorted(fleet.ledger.nodes), limit)


def bound(fleet: Fleet, of: str, size: float, on: str) -> None:
    assert fleet.ledger.apply(BindRequested(plain_pod(of, amount(size)), on), LATER).verdict is FITS


def test_the_best_nodes_come_first() -> None:
    fleet = Fleet(node("n1"), node("n2"), node("n3"))
    bound(fleet, "a", 2, "n2")
    bound(fleet, "b", 4, "n3")
    assert sent(fleet, "c", limit=1) == ["n3"]
    assert sent(fleet, "c", limit=2) == ["n3", "n2"]
    assert sent(fleet, "c", limit=9) == ["n3", "n2", "n1"]


def test_equal_nodes_are_shared_out_by_the_pods() -> None:
    fleet = Fleet(*(node(f"n{number}") for number in range(4)))
    chosen = {sent(fleet, f"pod-{number}", limit=2)[0] for number in range(20)}
    assert chosen == {"n0", "n1", "n2", "n3"}
    assert sent(fleet, "pod-1", limit=2) == sent(fleet, "pod-1", limit=2)


def test_assumed_pods_fill_node() -> None:
    fleet = Fleet(node("n1"), node("n2"))
    bound(fleet, "first", 5, "n1")  # 6.3 of 9 is its watermark
    assert [sent(fleet, of) for of in "abc"] == [["n1"], ["n1"], ["n2"]]
    assert sent(fleet, "b") == ["n1"], "asked about again, a pod does not stand in its own way"
    assert fleet.on("n1") == amount(5), "nothing was reserved"


def test_assumed_pod_refuses_no_other() -> None:
    fleet = Fleet(node("n1", total=2))
    assert [sent(fleet, of) for of in "ab"] == [["n1"], ["n1"]]


def test_bind_ends_the_assumption() -> None:
    fleet = Fleet(node("n1"), node("n2"))
    bound(fleet, "first", 5, "n1")
    assert [sent(fleet, of) for of in "abc"] == [["n1"], ["n1"], ["n2"]]
    assert fleet.ledger.apply(BindRequested(plain_pod("b", amount(9)), "n1"), LATER).verdict is not FITS
    assert sent(fleet, "d") == ["n1"]


def test_soft_tainted_node_is_last() -> None:
    fleet = Fleet(replace(node("n1"), traits=SOFT), node("n2"), replace(node("n3"), traits=SOFT))
    bound(fleet, "a", 4, "n1")
    assert sent(fleet, "b", limit=3) == ["n2"]
    bound(fleet, "c", 9, "n2")
    assert sent(fleet, "d", limit=3) == ["n1", "n3"]


def test_only_nodes_that_were_asked_for_are_named() -> None:
    fleet = Fleet(node("n1"), node("n2"), node("n3"))
    bound(fleet, "a", 4, "n3")
    assert fleet.ledger.best(plain_pod("b", amount(1)), ["n2", "n9"], 3) == ["n2"]


def test_filter_reports_reservation_or_refusal() -> None:
    fleet = Fleet(node("n1", total=3), node("n2"))
    bound(fleet, "a", 2, "n1")
    assert sent(fleet, "a", 2) == []
    assert sent(fleet, "b", 99) == []
    assert fleet.ledger.best(replace(plain_pod("c", amount(1)), migration=name("move")), ["n2"], 1) == []


def test_a_waiting_pod_that_fits_waits_no_more() -> None:
    fleet = Fleet(node("n1", total=3))
    bound(fleet, "a", 2, "n1")
    assert fleet.ledger.filter(plain_pod("b", amount(1)), ["n1"]).fits == []
    fleet.apply(PodGone("uid-a"))
    assert sent(fleet, "b") == ["n1"]
    assert not fleet.ledger.filter(plain_pod("b", amount(1)), ["n1"]).refused


def test_a_vm_is_sent_with_what_it_claims() -> None:
    fleet = Fleet(node("n1", total=4), node("n2", total=8))
    fleet.apply(VmSeen(vm("db", amount(4))), NOW)
    pod = vm_pod("db")
    assert fleet.ledger.best(pod, ["n1", "n2"], 1) == ["n2"]
    assert fleet.ledger.best(pod, ["n1"], 1) == []


@pytest.mark.parametrize("size", [1, 3])
def test_only_the_last_assumptions_are_kept(size: int) -> None:
    assumed = AssumedPods()
    for number in range(MAX_ASSUMED + size):
        assumed.assume(f"pod-{number}", f"n{number}", PodDemand(amount(1)))
    assert sorted(assumed.claimed("none")) == sorted(f"n{number}" for number in range(size, MAX_ASSUMED + size))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["n1", "n2", ""])), max_size=20))
def test_taken_is_sum_of_assumed(steps: list[tuple[str, str]]) -> None:
    assumed, model = AssumedPods(), {}
    for uid, on in steps:
        if on:
            assumed.assume(uid, on, PodDemand(amount(1)))
            model[uid] = on
        else:
            assumed.settle(uid)
            model.pop(uid, None)
    others = [on for uid, on in model.items() if uid != "a"]
    expected = {on: PodDemand(amount(others.count(on))) for on in others}
    assert assumed.claimed("a") == expected
