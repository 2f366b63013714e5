"""kube-scheduler asks about a sample of the nodes: a pod for which others have room is sent round."""

from __future__ import annotations

import pytest

from scheduler_plugin.ledger import RoomFreed
from scheduler_plugin.ledger.sampled_pods import KEPT, SampledPods
from tests.scheduler_plugin.ledger.fleet import Fleet, amount, node, plain_pod

FULL = [f"full-{number:03}" for number in range(100)]
POD = plain_pod("w", amount(5))


def sampled(*others: str) -> Fleet:
    """A hundred nodes with four of nine CPUs free, and others with nine."""
    taken = (plain_pod(f"on-{each}", amount(5), each) for each in FULL)
    return Fleet(*map(node, FULL), *map(node, others), *taken)


def refused(fleet: Fleet, asked: list[str]) -> tuple[object, ...]:
    assert fleet.ledger.filter(POD, asked).fits == []
    return fleet.ledger.look_further(POD, asked)


def test_a_pod_that_was_refused_on_a_sample_is_sent_round_where_others_have_room() -> None:
    fleet = sampled("free")
    assert refused(fleet, FULL) == (RoomFreed("free"),)
    assert fleet.ledger.is_sent_round(POD.uid)
    assert fleet.ledger.best(POD, ["free", *FULL[1:]], 1) == ["free"]
    assert not fleet.ledger.is_sent_round(POD.uid)


def test_it_is_sent_round_until_all_nodes_had_their_turn_twice_and_then_waits() -> None:
    fleet = sampled("free")
    assert [bool(refused(fleet, FULL)) for _ in range(6)] == [True] * 4 + [False] * 2
    assert not fleet.ledger.is_sent_round(POD.uid)
    assert fleet.did(fleet.ledger.lose_pod("uid-on-full-007")) == (RoomFreed("full-007"),)


@pytest.mark.parametrize("asked", [FULL[:60], FULL])
def test_where_no_node_has_room_or_kube_scheduler_has_seen_all_the_pod_waits(asked: list[str]) -> None:
    fleet = sampled(*(["free"] if asked != FULL else []))
    assert refused(fleet, asked) == ()
    assert not fleet.ledger.is_sent_round(POD.uid)


def test_a_pod_that_was_refused_on_a_sample_is_woken_by_room_anywhere() -> None:
    fleet = sampled("other")
    fleet.did(fleet.ledger.see_pod(plain_pod("taker", amount(5), "other")))
    assert refused(fleet, FULL) == ()
    assert fleet.did(fleet.ledger.lose_pod("uid-taker")) == (RoomFreed("other"),)


def test_a_pod_that_is_gone_or_has_its_room_is_not_sent_round() -> None:
    fleet = sampled("free")
    fleet.ledger.reserve(POD, "free")
    assert fleet.ledger.look_further(POD, FULL) == ()
    fleet.did(fleet.ledger.lose_pod(POD.uid))
    assert fleet.ledger.look_further(POD, FULL) == ()


def test_what_kube_scheduler_ends_with_tells_a_sample_from_all() -> None:
    pods = SampledPods()
    assert [pods.is_sample(asked, 2_000) for asked in (359, 360, 400, 1_999, 2_000)] == [False, True, True, True, False]
    assert not pods.is_sample(50, 50)


def test_a_sample_is_as_small_as_kube_scheduler_is_told_to_make_it_or_makes_it_by_itself() -> None:
    pods = SampledPods()
    pods.percent = 10
    assert [pods.is_sample(asked, 2_000) for asked in (170, 200)] == [False, True]
    pods.percent = 100
    assert [pods.is_sample(asked, 2_000) for asked in (600, 680)] == [False, True]


def test_the_ledger_is_told_what_kube_scheduler_is_told() -> None:
    many = [f"free-{number:03}" for number in range(1_100)]
    fleet = sampled(*many)
    assert refused(fleet, FULL) == ()
    fleet.ledger.serve("ours", 5)
    assert refused(fleet, FULL) != ()


def test_only_the_last_pods_are_remembered() -> None:
    pods = SampledPods()
    for number in range(KEPT + 1):
        pods.send_round(f"pod-{number}", 100, 200)
    assert [pods.is_sent_round(f"pod-{number}") for number in (0, 1, KEPT)] == [False, True, True]
