"""kube-scheduler asks about a sample of the nodes: a pod that fits only on others is retried until it finds one."""

from __future__ import annotations

import pytest

from scheduler_plugin.ledger.accounts.waiting_pods import MAX_SAMPLED, SampledPods
from scheduler_plugin.ledger.events import BindRequested, Listed, PodGone, PodRefused, PodSeen
from scheduler_plugin.ledger.outcomes import RoomFreed
from tests.scheduler_plugin.ledger.fleet import LATER, Fleet, amount, node, plain_pod, settings_read

FULL = [f"full-{number:03}" for number in range(100)]
POD = plain_pod("w", amount(5))


def sampled(*others: str) -> Fleet:
    """A hundred nodes with four of nine CPUs free, and others with nine."""
    taken = (plain_pod(f"on-{each}", amount(5), each) for each in FULL)
    return Fleet(*map(node, FULL), *map(node, others), *taken)


def refused(fleet: Fleet, asked: list[str]) -> tuple[object, ...]:
    assert fleet.ledger.filter(POD, asked).fits == []
    return fleet.ledger.apply(PodRefused(POD, asked), LATER)


def test_sampled_refusal_retries_pod() -> None:
    fleet = sampled("free")
    assert refused(fleet, FULL) == (RoomFreed("free"),)
    assert fleet.ledger.is_retried(POD.uid)
    assert fleet.ledger.best(POD, ["free", *FULL[1:]], 1) == ["free"]
    assert not fleet.ledger.is_retried(POD.uid)


def test_pod_retries_until_all_nodes_sampled_twice() -> None:
    fleet = sampled("free")
    assert [bool(refused(fleet, FULL)) for _ in range(6)] == [True] * 4 + [False] * 2
    assert not fleet.ledger.is_retried(POD.uid)
    assert fleet.apply(PodGone("uid-on-full-007")) == (RoomFreed("full-007"),)


@pytest.mark.parametrize("asked", [FULL[:60], FULL])
def test_pod_waits_if_no_node_fits(asked: list[str]) -> None:
    fleet = sampled(*(["free"] if asked != FULL else []))
    assert refused(fleet, asked) == ()
    assert not fleet.ledger.is_retried(POD.uid)


@pytest.mark.parametrize("asked", [FULL, [*FULL, "free"]], ids=["sample", "all nodes"])
def test_pod_may_preempt_once_no_node_fits(asked: list[str]) -> None:
    """Another pod took the room for which the pod was being retried."""
    fleet = sampled("free")
    refused(fleet, FULL)
    fleet.apply(PodSeen(plain_pod("taker", amount(5), "free")))
    assert refused(fleet, asked) == ()
    assert not fleet.ledger.is_retried(POD.uid)


def test_sampled_refusal_wakes_on_any_room() -> None:
    fleet = sampled("other")
    fleet.apply(PodSeen(plain_pod("taker", amount(5), "other")))
    assert refused(fleet, FULL) == ()
    assert fleet.apply(PodGone("uid-taker")) == (RoomFreed("other"),)


def test_gone_or_served_pod_is_not_retried() -> None:
    fleet = sampled("free")
    fleet.ledger.apply(BindRequested(POD, "free"), LATER)
    assert fleet.ledger.apply(PodRefused(POD, FULL), LATER) == ()
    fleet.apply(PodGone(POD.uid))
    assert fleet.ledger.apply(PodRefused(POD, FULL), LATER) == ()


def test_rotation_reveals_sampling() -> None:
    pods = SampledPods()
    assert [pods.is_sample(asked, 2_000) for asked in (359, 360, 400, 1_999, 2_000)] == [False, True, True, True, False]
    assert not pods.is_sample(50, 50)


def test_sample_size_matches_kube_scheduler() -> None:
    pods = SampledPods()
    pods.percent = 10
    assert [pods.is_sample(asked, 2_000) for asked in (170, 200)] == [False, True]
    pods.percent = 100
    assert [pods.is_sample(asked, 2_000) for asked in (600, 680)] == [False, True]


def test_ledger_hears_kube_scheduler_answers() -> None:
    many = [f"free-{number:03}" for number in range(1_100)]
    fleet = sampled(*many)
    assert refused(fleet, FULL) == ()
    fleet.apply(settings_read(scheduler="ours", percent_of_nodes=5))
    assert refused(fleet, FULL) != ()


def test_too_many_pods_do_not_retry_for_ever() -> None:
    """Of more pods than are tracked, the oldest would otherwise be forgotten before its next turn, and so each."""
    pods, names = SampledPods(), [f"pod-{number}" for number in range(MAX_SAMPLED + 1)]
    retried = [[pods.should_retry(name, 100, 200) for name in names].count(True) for _ in range(6)]
    assert retried == [MAX_SAMPLED] * 4 + [0, 0]
    assert [pods.is_retried(name) for name in (names[0], names[-1])] == [False, False]
    pods.forget(names[0])
    assert [pods.should_retry(names[-1], 100, 200), pods.is_retried(names[-1])] == [True, True]


def test_relist_forgets_deleted_pods() -> None:
    fleet = sampled("free")
    refused(fleet, FULL)
    fleet.apply(Listed([*map(node, FULL), node("free")], [], []))
    assert not fleet.ledger.is_retried(POD.uid)
