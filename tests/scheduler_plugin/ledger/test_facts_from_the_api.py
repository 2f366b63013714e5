"""Nodes and VMs that are created, changed and deleted; complete lists; and the remaining accounts."""

from __future__ import annotations

import pytest

from protocol.units import ZERO, Bytes, MilliCpu, QuantityError, Resources
from scheduler_plugin.ledger import state as state_module
from scheduler_plugin.ledger.accounts.claims import ClaimState
from scheduler_plugin.ledger.events import (
    BindEnded,
    BindRequested,
    Listed,
    NodeGone,
    NodeSeen,
    PermitWritten,
    PodGone,
    PodSeen,
    VmGone,
    VmSeen,
    WriteOutcome,
)
from scheduler_plugin.ledger.facts import ResourcePolicy
from scheduler_plugin.ledger.invariants import overcommitted
from scheduler_plugin.ledger.outcomes import ReadPod, RoomFreed
from tests.scheduler_plugin.ledger.fleet import (
    LATER,
    NOW,
    Fleet,
    amount,
    name,
    node,
    permit_stored,
    plain_pod,
    policy,
    vm,
    vm_pod,
)


def test_rebuild_reserves_largest_known_size() -> None:
    fleet = Fleet(
        node(total=21),
        vm("a", amount(1, 4), actual=amount(2), permit=amount(1, 6)),
        vm("b", amount(3)),
        vm_pod("a", "n1"),
        vm_pod("b", "n1"),
        vm_pod("c", "n1"),
        vm_pod("d", "n1", finished=True),
        vm_pod("e"),
    )
    assert {uid: claim.reserved for uid, claim in fleet.ledger.claims.items()} == {
        "uid-a": amount(2, 6),
        "uid-b": amount(3),
        "uid-c": vm_pod("c").requests,
    }


def test_node_keeps_reserve_and_watermark() -> None:
    room = Fleet(node(total=8)).ledger.rooms["n1"]
    assert (room.total, room.watermark) == (amount(7), Resources(MilliCpu(4900), Bytes(5261334937)))


def test_tiny_node_offers_nothing() -> None:
    room = Fleet(node(total=0.5)).ledger.rooms["n1"]
    assert (room.total, room.free, room.watermark) == (ZERO, ZERO, ZERO)


@pytest.mark.parametrize("watermark", ["0", "1.01", "-1"])
def test_watermark_range(watermark: str) -> None:
    with pytest.raises(QuantityError, match="a watermark is above 0 and at most 1, got"):
        policy(watermark)
    assert policy("1").watermark_of(amount(8)) == amount(7)


def test_a_level_is_a_whole_number_rounded_down() -> None:
    level = policy("0.7").cpu
    assert isinstance(level, ResourcePolicy)
    assert level.watermark_of(amount(8.001).cpu).value == 4900


def test_overcommitted_node_grants_nothing() -> None:
    fleet = Fleet(node(), vm("a", amount(6)), vm_pod("a", "n1"))
    fleet.apply(NodeSeen(node(total=4)))
    assert overcommitted(fleet.ledger) == {"n1": amount(3)}
    assert fleet.grant("a", amount(8), number=1) == amount(6)
    fleet.apply(NodeSeen(node(total=10)))
    assert fleet.grant("a", amount(8), number=2) == amount(8)


def test_deleted_node_returns_with_pods() -> None:
    fleet = Fleet(node("n1"), node("n2"), plain_pod("a", amount(2), "n1"))
    for gone in ("n1", "n2", "n9"):
        fleet.apply(NodeGone(gone))
    assert (list(fleet.ledger.nodes), dict(fleet.ledger.rooms)) == (["n1"], {})
    fleet.apply(NodeSeen(node("n1")))
    assert fleet.on("n1") == amount(2)
    fleet.apply(NodeGone("n1"))
    fleet.apply(PodGone("uid-a"))
    assert dict(fleet.ledger.nodes) == {}


def test_vm_on_deleted_node_is_frozen() -> None:
    fleet = Fleet(node(), vm("a", amount(2)), vm_pod("a", "n1"))
    fleet.apply(NodeGone("n1"))
    assert fleet.grant("a", amount(3), number=1) == amount(2)


def test_complete_list_releases_missing_pods() -> None:
    fleet = Fleet(node("n1"), node("n2"), vm("a", amount(2)), vm_pod("a", "n1"), plain_pod("b", amount(1), "n2"))
    fleet.apply(Listed([node("n2")], [], []), LATER)
    assert (dict(fleet.ledger.claims), list(fleet.ledger.nodes)) == ({}, ["n2"])


def test_older_list_keeps_newer_bind() -> None:
    fleet = Fleet(node())
    for pod in (plain_pod("a", amount(1)), plain_pod("b", amount(1))):
        fleet.ledger.apply(BindRequested(pod, "n1"), LATER)
    fleet.ledger.apply(BindEnded("uid-b", "n1", WriteOutcome.DONE), LATER)
    doubts = fleet.apply(Listed([node()], [], []), LATER)
    assert doubts == (ReadPod("uid-a", name("a")), ReadPod("uid-b", name("b")))
    assert fleet.on("n1") == amount(2)
    assert fleet.ledger.claims["uid-b"].state is ClaimState.CONFIRMED


def test_deleted_vm_goes_with_last_pod() -> None:
    fleet = Fleet(node(), vm("a", amount(2)), vm_pod("a", "n1"))
    fleet.apply(VmGone(name("a")))
    assert fleet.on("n1") == amount(2)
    fleet.apply(PodGone("uid-a"))
    assert fleet.ledger.apply(permit_stored(1, vm("a", amount(9))), LATER) == ()
    fleet.apply(VmGone(name("a")))
    assert fleet.on("n1") == ZERO


def test_a_vm_without_pods_is_forgotten_at_once() -> None:
    fleet = Fleet(node(), vm("a", amount(2), permit=amount(5)))
    fleet.apply(VmGone(name("a")))
    fleet.apply(VmSeen(vm("a", amount(1))), LATER)
    assert fleet.ledger.claim_of(vm_pod("a")) == amount(1)


def test_returned_vm_keeps_everything() -> None:
    fleet = Fleet(node(), vm("a", amount(2)), vm_pod("a", "n1"))
    fleet.grant("a", amount(4), number=1)
    fleet.apply(VmGone(name("a")))
    fleet.resize("a", amount(2))
    fleet.apply(PodGone("uid-a"))
    assert fleet.ledger.claim_of(vm_pod("a")) == amount(4)


def test_new_vm_keeps_old_pods_claim() -> None:
    fleet = Fleet(node(total=21), vm("a", amount(6)), vm_pod("a", "n1"))
    fleet.apply(VmSeen(vm("a", amount(1), uid="second")), LATER)
    fleet.apply(PodSeen(vm_pod("a", "n1", "new")))
    assert fleet.on("n1") == amount(7)
    fleet.apply(PodGone("uid-a"))
    assert fleet.on("n1") == amount(1)


def test_pod_before_vm_counts_requests() -> None:
    fleet = Fleet(node(), vm_pod("a", "n1"))
    assert fleet.on("n1") == vm_pod("a").requests
    fleet.apply(VmSeen(vm("a", amount(2))), NOW)
    assert fleet.on("n1") == amount(2)
    fleet.apply(PodGone("uid-a"))


def test_pod_only_account_goes_with_pod() -> None:
    fleet = Fleet(node(), vm_pod("a", "n1"))
    fleet.apply(PodGone("uid-a"))
    assert fleet.ledger.apply(PermitWritten(name("a"), 1, WriteOutcome.UNKNOWN), LATER) == ()
    assert fleet.on("n1") == ZERO


def test_vm_without_pod_restarts_from_api() -> None:
    fleet = Fleet(node(), vm("a", amount(1)), vm_pod("a", "n1"))
    fleet.ask("a", amount(5), number=9)
    fleet.apply(PodGone("uid-a"))
    assert fleet.ledger.claim_of(vm_pod("a", uid="next")) == amount(5)
    fleet.apply(PermitWritten(name("a"), 1, WriteOutcome.UNKNOWN, version=1))
    assert fleet.ledger.claim_of(vm_pod("a", uid="next")) == amount(5)
    fleet.apply(VmSeen(vm("a", amount(1), version=5)), LATER)
    assert fleet.ledger.claim_of(vm_pod("a", uid="next")) == amount(1), "it was for an older version"


def test_the_memory_of_gone_pods_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "MAX_GONE", 2)
    fleet = Fleet(node())
    for uid in ("uid-a", "uid-b", "uid-c"):
        fleet.apply(PodGone(uid))
    fleet.apply(PodSeen(plain_pod("a", amount(1), "n1")))
    fleet.apply(PodSeen(plain_pod("c", amount(1), "n1")))
    assert list(fleet.ledger.claims) == ["uid-a"]


# Room that is waited for --------------------------------------------------------------------------------------------


def crowded() -> Fleet:
    """A node with one CPU and GiB left, while pod ``w`` waits for three."""
    fleet = Fleet(node("n1", 6), node("n2", 3), vm("a", amount(2)), vm_pod("a", "n1"), plain_pod("b", amount(2), "n1"))
    fleet.grant("a", amount(2), number=1)
    assert fleet.ledger.filter(plain_pod("w", amount(3)), ["n1", "n2"]).fits == []
    assert fleet.ledger.waiting == 1
    return fleet


def test_release_wakes_fitting_pod() -> None:
    fleet = crowded()
    assert fleet.apply(PodGone("uid-b")) == (RoomFreed("n1"),)


def test_freed_decrease_wakes_pod() -> None:
    fleet = crowded()
    fleet.ask("a", amount(0.5), number=2)
    told = fleet.ask("a", amount(0.5), number=3)
    assert told.effects == fleet.store(told) == ()
    fleet.apply(PodSeen(plain_pod("b", amount(0.5), "n1")))
    assert fleet.resize("a", amount(0.5)) == (RoomFreed("n1"),)


def test_too_little_room_wakes_nobody() -> None:
    fleet = crowded()
    assert fleet.apply(PodSeen(plain_pod("b", amount(1), "n1"))) == ()


def test_room_of_the_wrong_kind_wakes_nobody() -> None:
    fleet = crowded()
    fleet.ledger.filter(plain_pod("x", amount(1, 9)), ["n2"])
    fleet.ledger.filter(plain_pod("y", amount(9, 1)), ["n2"])
    assert fleet.ledger.waiting == 3
    fleet.apply(PodGone("uid-w"))
    assert fleet.apply(PodGone("uid-b")) == ()


def test_node_growth_and_uncordon_wake_pods() -> None:
    fleet = crowded()
    assert fleet.apply(NodeSeen(node("n1", 8, is_open=False))) == ()
    assert fleet.apply(NodeSeen(node("n1", 8))) == (RoomFreed("n1"),)
    assert fleet.apply(NodeSeen(node("n1", 8))) == ()
    assert fleet.apply(PodSeen(plain_pod("c", amount(0), "n1"))) == ()


def test_placed_or_gone_pod_stops_waiting() -> None:
    fleet = crowded()
    fleet.ledger.filter(plain_pod("x", amount(4)), ["n2"])
    fleet.apply(NodeSeen(node("n3", 9)))
    fleet.ledger.apply(BindRequested(plain_pod("w", amount(3)), "n3"), LATER)
    assert fleet.ledger.waiting == 1
    fleet.apply(PodGone("uid-x"))
    assert (fleet.ledger.waiting, fleet.apply(PodGone("uid-b"))) == (0, ())
