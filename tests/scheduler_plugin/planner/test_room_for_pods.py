"""A pod whose in-place resize is deferred gets room from a VM that moves away (B.14), but only if it opted in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.units import Resources, Seconds
from scheduler_plugin.ledger.events import PodGone, PodSeen
from scheduler_plugin.ledger.facts import MigrationPhase, PodFacts
from scheduler_plugin.ledger.invariants import violations
from scheduler_plugin.ledger.moves import MoveCause
from scheduler_plugin.planner.beneficiaries import room_being_made, waiting_for_room
from scheduler_plugin.planner.plan import MigrationPolicy, MovePlan
from tests.scheduler_plugin.ledger.fleet import LATER, amount, migration, plain_pod, vm_pod
from tests.scheduler_plugin.planner.planner_fixture import WALL, PlannerFixture, node


def waiting(has: float, wants: float, *, asks: bool = True) -> PodFacts:
    """A pod of this size on n1 whose resize the kubelet has deferred."""
    deferred = amount(wants - has)
    return replace(plain_pod("web", amount(wants), "n1"), deferred=deferred, make_room=asks)


def world(pod: PodFacts, *, requests: Resources | None = None) -> PlannerFixture:
    """n1 has room for 10 and a watermark of 7: VMs of 3 and 2, whose pods request these sizes, and the pod."""
    fixture = PlannerFixture(node("n1"), node("n2"))
    fixture.add("large", "n1", 3, load=0.5, pod={"requests": amount(3) if requests is None else requests})
    fixture.add("small", "n1", 2, load=0.5, pod={"requests": amount(2) if requests is None else requests})
    fixture.fleet.apply(PodSeen(pod))
    return fixture


def check(fixture: PlannerFixture) -> None:
    assert not violations(fixture.ledger)


def test_pod_asking_for_room_gets_it() -> None:
    fixture = world(waiting(2, 6))
    fixture.policy = MigrationPolicy()
    assert fixture.plan() == MovePlan()
    assert fixture.plan(after=2.9) == MovePlan()
    (move,) = fixture.plan(after=0.1).moves
    said = "node n1 lacks 1 vCPU and 1 GiB and defers a pod's resize"
    assert (move.vm.name, move.target, move.cause) == ("large", "n2", MoveCause.DEFERRED_POD)
    assert move.reason.split(";")[0] == said
    check(fixture)


def test_resize_without_verdict_counts_as_granted() -> None:
    """Its kubelet may still apply it. A cluster with short delays then first moves a VM for the watermark."""
    fixture = world(plain_pod("web", amount(6), "n1"))
    fixture.policy = MigrationPolicy(settle=Seconds(3.0), settle_denied=Seconds(3.0))
    fixture.plan()
    fixture.fleet.apply(PodSeen(waiting(2, 6)))
    assert fixture.plan(after=0.5) == MovePlan()
    (move,) = fixture.plan(after=2.5).moves
    assert (move.vm.name, move.cause) == ("large", MoveCause.WATERMARK)


def test_waiters_learn_who_makes_room() -> None:
    fixture = world(waiting(2, 6))
    (move,) = fixture.settled().moves
    fixture.carry_out(move)
    (claim,) = waiting_for_room(fixture.ledger, "n1")
    assert claim.pod.name.name == "web"
    assert list(room_being_made(fixture.ledger, claim, fixture.now)) == [
        f"VM db/large is migrating from n1 to n2: {move.reason}"
    ]
    assert list(room_being_made(fixture.ledger, fixture.ledger.claims["uid-small"], fixture.now)) == []
    assert waiting_for_room(fixture.ledger, "unknown") == []


def test_move_elsewhere_frees_nothing_here() -> None:
    fixture = world(waiting(2, 6))
    fixture.add("elsewhere", "n2", 1)
    fixture.migration(migration("elsewhere"))
    assert list(room_being_made(fixture.ledger, fixture.ledger.claims["uid-web"], fixture.now)) == []


def test_what_is_on_its_way_out_is_enough() -> None:
    """The pod needs one VM to leave. With the pod's request, the node is above its watermark until the other one has
    left.
    """
    fixture = world(waiting(2, 6))
    fixture.policy = MigrationPolicy(out_per_node=2, per_cluster=2)
    (for_pod,) = fixture.settled().moves
    unrelieved = [fixture.planner.unrelieved_since]
    fixture.carry_out(for_pod)
    (for_watermark,) = fixture.plan().moves
    unrelieved += [fixture.planner.unrelieved_since]
    assert unrelieved == [LATER, None]
    fixture.carry_out(for_watermark)
    causes = {move.vm.name: move.cause for move in (for_pod, for_watermark)}
    assert causes == {"large": MoveCause.DEFERRED_POD, "small": MoveCause.WATERMARK}
    assert fixture.plan(after=60) == MovePlan()


def test_withdrawn_need_moves_no_vm() -> None:
    fixture = world(waiting(2, 6))
    fixture.plan()
    fixture.fleet.apply(PodSeen(plain_pod("web", amount(2), "n1")))
    assert fixture.plan(after=60) == MovePlan()
    fixture.fleet.apply(PodSeen(waiting(2, 6)))
    assert fixture.plan(after=1) == MovePlan()
    check(fixture)


@pytest.mark.parametrize(
    ("pod", "requests"),
    [
        (waiting(2, 6, asks=False), None),
        (waiting(2, 4), None),
        (waiting(2, 6), amount(0)),
    ],
    ids=["it does not ask", "there is room by now", "the kubelet does not count the VMs"],
)
def test_no_vm_moves_for_a_pod(pod: PodFacts, requests: Resources | None) -> None:
    fixture = world(pod, requests=requests)
    assert fixture.settled() == MovePlan()
    check(fixture)


def test_unlabelled_need_keeps_watermark_visible() -> None:
    """Without the pod's request n1 has 8 of 10 reserved, one above its watermark."""
    fixture = world(waiting(3, 6, asks=False))
    (move,) = fixture.settled().moves
    assert (move.vm.name, move.cause) == ("small", MoveCause.WATERMARK)
    assert move.reason.startswith("node n1 is 1 vCPU and 1 GiB above its watermark;")


def test_request_change_replans_node() -> None:
    fixture = world(waiting(2, 6), requests=amount(1))
    assert len(fixture.settled().moves) == 1
    for requests, moves in ((amount(0), 0), (amount(1), 1)):
        for of in ("large", "small"):
            runs = replace(vm_pod(of, "n1"), requests=requests)
            fixture.fleet.apply(PodSeen(runs))
        fixture.plan()
        assert len(fixture.plan(after=10).moves) == moves


def test_a_pod_that_leaves_waits_no_more() -> None:
    fixture = world(waiting(2, 6))
    fixture.fleet.apply(PodGone("uid-web"))
    check(fixture)
    assert fixture.settled() == MovePlan()


def test_room_for_pod_is_kept() -> None:
    fixture = world(waiting(2, 6))
    fixture.tell("small", amount(3))
    assert fixture.ledger.claims["uid-small"].reserved == amount(2), "the pod's wish is reserved"


def test_withdrawn_need_cancels_order() -> None:
    fixture = world(waiting(2, 6))
    (move,) = fixture.settled().moves
    fixture.carry_out(move)
    fixture.fleet.apply(PodSeen(plain_pod("web", amount(2), "n1")))
    fixture.plan()
    (cancel,) = fixture.plan(after=fixture.policy.settle).cancels
    assert cancel.why == "node n1 no longer needs it"


def test_denied_vm_moves_if_cheapest() -> None:
    fixture = PlannerFixture(node("n1"), node("n2", 20))
    fixture.add("denied", "n1", 2, load=0.5, mem_used=0.5)
    fixture.add("neighbour", "n1", 7, load=3.0, mem_used=6)
    fixture.tell("denied", amount(6))
    (move,) = fixture.settled().moves
    assert (move.vm.name, move.target, move.cause) == ("denied", "n2", MoveCause.DENIED_VM)


def test_a_vm_that_has_made_room_rests() -> None:
    """It would be the cheapest again, but another VM leaves."""
    fixture = PlannerFixture(node("n1"), node("n2"))
    for of, load in (("a", 0.1), ("b", 0.6), ("c", 4.0)):
        fixture.add(of, "n1", 3, load=load)
    (move,) = fixture.settled().moves
    assert move.vm.name == "a"
    fixture.migration(migration("a", MigrationPhase.SUCCEEDED, ended_at=WALL))
    (move,) = fixture.settled().moves
    assert move.vm.name == "b"
