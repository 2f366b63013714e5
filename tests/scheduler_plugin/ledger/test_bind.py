"""A bind reserves: every possible outcome, without a double reservation or a double release (S4.10)."""

from __future__ import annotations

import pytest

from protocol.ranking.config import RankingConfig, ScoreCurve
from protocol.units import ZERO
from scheduler_plugin.ledger.accounts.claims import ClaimState
from scheduler_plugin.ledger.events import (
    BindEnded,
    BindRequested,
    Listed,
    MigrationSeen,
    PodGone,
    PodRead,
    PodSeen,
    StoreRestored,
    WriteOutcome,
)
from scheduler_plugin.ledger.facts import PodFacts
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.ledger.outcomes import NotReadyError, ReadPod, Reservation, UnknownPodError
from scheduler_plugin.placement.verdict import FITS, NO_FREE_CPU, UNKNOWN_NODE, Refused
from tests.scheduler_plugin.ledger.fleet import (
    LATER,
    NOW,
    Fleet,
    amount,
    migration,
    name,
    node,
    plain_pod,
    settings_read,
    vm,
    vm_pod,
)

RESERVED = Reservation(FITS, needs_bind=True)


def tentative() -> tuple[Fleet, PodFacts]:
    fleet, pod = Fleet(node("n1"), node("n2")), plain_pod("a", amount(2))
    assert fleet.ledger.apply(BindRequested(pod, "n1"), LATER) == RESERVED
    return fleet, pod


def test_three_pods_race_for_room_for_one() -> None:
    fleet = Fleet(node("n1", total=2))
    pods = [plain_pod(of, amount(1)) for of in "abc"]
    assert [fleet.ledger.filter(pod, ["n1"]).fits for pod in pods] == [["n1"], ["n1"], ["n1"]]
    answers = [fleet.ledger.apply(BindRequested(pod, "n1"), LATER) for pod in pods]
    refusal = "pod needs 1 cpu, 1Gi; node n1 has 0 cpu, 0 free of 1 cpu, 1Gi"
    assert answers == [RESERVED, Reservation(NO_FREE_CPU, refusal), Reservation(NO_FREE_CPU, refusal)]
    assert fleet.ledger.filter(pods[1], ["n1"]).refused == {"n1": "Insufficient cpu"}


def test_bound_pod_is_reserved_once() -> None:
    fleet, pod = tentative()
    fleet.apply(BindEnded(pod.uid, "n1", WriteOutcome.DONE))
    assert fleet.ledger.claims[pod.uid].state is ClaimState.CONFIRMED
    for _ in range(2):
        fleet.apply(PodSeen(plain_pod("a", amount(2), "n1")))
    assert fleet.on("n1") == amount(2)
    assert fleet.ledger.claims[pod.uid].state is ClaimState.BOUND


def test_repeated_bind_reserves_once() -> None:
    fleet, pod = tentative()
    assert fleet.ledger.apply(BindRequested(pod, "n1"), LATER) == RESERVED
    fleet.apply(BindEnded(pod.uid, "n1", WriteOutcome.DONE))
    assert fleet.ledger.apply(BindRequested(pod, "n1"), LATER) == Reservation(FITS, needs_bind=False)
    assert fleet.on("n1") == amount(2)


def test_second_node_bind_is_refused() -> None:
    fleet, pod = tentative()
    answer = fleet.ledger.apply(BindRequested(pod, "n2"), LATER)
    where = "the pod holds a reservation on node n1"
    assert answer == Reservation(Refused(where), f"{where} (tentative)")
    found = fleet.ledger.filter(pod, ["n1", "n2"])
    assert (found.fits, found.refused, found.never) == (["n1"], {"n2": where}, {})
    assert (fleet.on("n1"), fleet.on("n2")) == (amount(2), ZERO)


def test_certain_refusal_frees_for_another_node() -> None:
    fleet, pod = tentative()
    for _ in range(2):
        fleet.apply(BindEnded(pod.uid, "n1", WriteOutcome.REFUSED))
    assert fleet.on("n1") == ZERO
    assert fleet.ledger.apply(BindRequested(pod, "n2"), LATER) == RESERVED


def test_last_refusal_releases() -> None:
    fleet, pod = tentative()
    fleet.ledger.apply(BindRequested(pod, "n1"), LATER)
    fleet.apply(BindEnded(pod.uid, "n1", WriteOutcome.REFUSED))
    assert fleet.on("n1") == amount(2)
    fleet.apply(BindEnded(pod.uid, "n1", WriteOutcome.REFUSED))
    assert fleet.on("n1") == ZERO


def test_late_refusal_keeps_bound_pod() -> None:
    fleet, pod = tentative()
    fleet.apply(PodSeen(plain_pod("a", amount(2), "n1")))
    fleet.apply(BindEnded(pod.uid, "n1", WriteOutcome.REFUSED))
    assert fleet.ledger.apply(BindEnded(pod.uid, "n1", WriteOutcome.UNKNOWN), LATER) == ()
    assert fleet.on("n1") == amount(2)


def test_a_refusal_for_another_node_releases_nothing() -> None:
    fleet, pod = tentative()
    fleet.apply(BindEnded(pod.uid, "n2", WriteOutcome.REFUSED))
    fleet.apply(BindEnded(pod.uid, "n2", WriteOutcome.DONE))
    assert fleet.ledger.claims[pod.uid].state is ClaimState.TENTATIVE


def test_released_then_bound_is_reserved_once() -> None:
    fleet, pod = tentative()
    fleet.apply(BindEnded(pod.uid, "n1", WriteOutcome.REFUSED))
    fleet.apply(PodSeen(plain_pod("a", amount(2), "n1")))
    assert fleet.on("n1") == amount(2)


def test_reservation_follows_observed_node() -> None:
    fleet = Fleet(node("n1"), node("n2"), vm("a", amount(2)))
    fleet.apply(MigrationSeen(migration("a")), NOW)
    assert fleet.ledger.apply(BindRequested(vm_pod("a"), "n1"), LATER) == RESERVED
    fleet.apply(PodSeen(vm_pod("a", "n2")))
    assert (fleet.on("n1"), fleet.on("n2")) == (ZERO, amount(2))
    assert fleet.ledger.nodes["n2"].migrating == amount(2)


def test_unknown_outcome_keeps_reservation() -> None:
    fleet, pod = tentative()
    assert fleet.ledger.apply(BindEnded(pod.uid, "n1", WriteOutcome.UNKNOWN), LATER) == (ReadPod(pod.uid, pod.name),)
    fleet.apply(PodSeen(pod))
    fleet.apply(BindEnded(pod.uid, "n1", WriteOutcome.REFUSED))
    assert fleet.on("n1") == amount(2)
    fleet.apply(PodRead(pod.uid, pod))
    assert fleet.on("n1") == ZERO


def test_read_settles_bound_node() -> None:
    fleet, pod = tentative()
    fleet.ledger.apply(BindEnded(pod.uid, "n1", WriteOutcome.UNKNOWN), LATER)
    fleet.apply(PodRead(pod.uid, plain_pod("a", amount(2), "n2")))
    assert (fleet.on("n1"), fleet.on("n2")) == (ZERO, amount(2))


def test_read_waits_for_calls_in_flight() -> None:
    fleet, pod = tentative()
    fleet.ledger.apply(BindEnded(pod.uid, "n1", WriteOutcome.UNKNOWN), LATER)
    assert fleet.ledger.apply(BindRequested(pod, "n1"), LATER) == RESERVED
    fleet.apply(PodRead(pod.uid, pod))
    assert fleet.on("n1") == amount(2)
    # Nobody else would read again: the room would be kept for as long as the pod is there.
    assert fleet.apply(BindEnded(pod.uid, "n1", WriteOutcome.REFUSED)) == (ReadPod(pod.uid, pod.name),)
    fleet.apply(PodRead(pod.uid, pod))
    assert fleet.on("n1") == ZERO


def test_a_read_that_finds_no_pod_releases() -> None:
    fleet, pod = tentative()
    fleet.ledger.apply(BindEnded(pod.uid, "n1", WriteOutcome.UNKNOWN), LATER)
    fleet.apply(PodRead(pod.uid, None))
    assert fleet.on("n1") == ZERO


def test_a_read_of_a_tentative_pod_changes_nothing() -> None:
    fleet, pod = tentative()
    fleet.apply(PodRead(pod.uid, pod))
    assert fleet.on("n1") == amount(2)


def test_deletion_before_bind_is_final() -> None:
    fleet, pod = tentative()
    for _ in range(2):
        fleet.apply(PodGone(pod.uid))
    fleet.apply(BindEnded(pod.uid, "n1", WriteOutcome.DONE))
    fleet.apply(PodSeen(plain_pod("a", amount(2), "n1")))
    assert fleet.on("n1") == ZERO
    with pytest.raises(UnknownPodError, match="pod db/a was deleted or has finished"):
        fleet.ledger.apply(BindRequested(pod, "n1"), LATER)
    assert fleet.ledger.filter(plain_pod("a", amount(99)), ["n1"]).fits == []
    assert fleet.ledger.waiting == 0


def test_a_finished_pod_is_released_once() -> None:
    fleet = Fleet(node(), plain_pod("a", amount(2), "n1"), plain_pod("b", amount(3), "n1"))
    for _ in range(2):
        fleet.apply(PodSeen(plain_pod("a", amount(2), "n1", finished=True)))
    fleet.apply(PodGone("uid-a"))
    assert fleet.on("n1") == amount(3)


def test_foreign_pods_count_beyond_total() -> None:
    fleet = Fleet(node(total=4))
    fleet.apply(PodSeen(plain_pod("foreign", amount(5), "n1")))
    assert (fleet.on("n1"), fleet.ledger.rooms["n1"].free) == (amount(5), ZERO)
    fleet.apply(PodSeen(plain_pod("foreign", amount(1), "n1")))
    assert fleet.on("n1") == amount(1)


def test_a_pending_pod_of_another_scheduler_counts_nothing() -> None:
    fleet = Fleet(node())
    fleet.apply(PodSeen(plain_pod("foreign", amount(5))))
    assert fleet.on("n1") == ZERO


def test_pod_with_reused_name_is_found() -> None:
    fleet = Fleet(node(), vm("a", amount(1)))
    fleet.apply(PodSeen(vm_pod("a", "n1", "old")))
    fleet.apply(PodSeen(vm_pod("a", "n1", "new")))
    assert fleet.ledger.uid_of(name("a-pod")) == "new"
    fleet.apply(PodGone("old"))
    assert fleet.ledger.uid_of(name("a-pod")) == "new"
    fleet.apply(PodGone("new"))
    assert fleet.ledger.uid_of(name("a-pod")) is None


def test_vm_pod_claims_size_or_permit() -> None:
    fleet = Fleet(node(), vm("a", amount(1, 3), permit=amount(2)))
    assert fleet.ledger.claim_of(vm_pod("a")) == amount(2, 3)
    assert fleet.ledger.apply(BindRequested(vm_pod("a"), "n1"), LATER) == RESERVED
    assert fleet.on("n1") == amount(2, 3)


def test_vm_pod_waits_for_its_vm() -> None:
    fleet = Fleet(node())
    with pytest.raises(NotReadyError, match="VirtualMachine db/a of pod db/a-pod is not known yet"):
        fleet.ledger.apply(BindRequested(vm_pod("a"), "n1"), LATER)
    fleet.apply(PodSeen(vm_pod("other", "n1")))
    with pytest.raises(NotReadyError, match="VirtualMachine db/other"):
        fleet.ledger.filter(vm_pod("other", uid="second"), ["n1"])


def test_an_unknown_node_is_refused() -> None:
    fleet = Fleet(node())
    assert fleet.ledger.apply(BindRequested(plain_pod("a", amount(1)), "n9"), LATER) == Reservation(UNKNOWN_NODE)
    assert "n9" not in fleet.ledger.nodes


def test_label_change_recounts_pod() -> None:
    fleet = Fleet(node(), vm("a", amount(3)), vm_pod("a", "n1"))
    relabelled = PodFacts("uid-a", name("a-pod"), amount(0.5), None, "n1")
    fleet.apply(PodSeen(relabelled))
    assert fleet.on("n1") == amount(0.5)
    fleet.apply(PodSeen(vm_pod("a", "n1")))
    assert fleet.on("n1") == amount(3)


def test_nothing_is_placed_before_the_cluster_was_read() -> None:
    ledger = Ledger()
    for call in (
        lambda: ledger.filter(plain_pod("a", amount(1)), ["n1"]),
        lambda: ledger.scores(plain_pod("a", amount(1)), ["n1"]),
        lambda: ledger.apply(BindRequested(plain_pod("a", amount(1)), "n1"), LATER),
    ):
        with pytest.raises(NotReadyError, match="has not listed the cluster yet"):
            call()
    assert ledger.apply(Listed([node()], [], []), NOW) == ()
    assert ledger.is_ready
    assert ledger.scores(plain_pod("a", amount(1)), ["n1", "n9"]) == [6, 0]
    ledger.apply(settings_read(RankingConfig(score=ScoreCurve(empty=1.0, peak=0.0))), NOW)
    assert ledger.scores(plain_pod("a", amount(1)), ["n1", "n9"]) == [9, 0]


def test_scheduler_name_change_recounts_pods() -> None:
    fleet = Fleet(node(), plain_pod("a", amount(1), "n1"))
    pod = fleet.ledger.claims["uid-a"].pod
    assert fleet.ledger.schedules(pod)
    fleet.apply(settings_read(scheduler="other", percent_of_nodes=20))
    assert not fleet.ledger.schedules(pod)


def test_confirmed_bind_is_in_doubt_after_a_restore() -> None:
    """The watch has not shown the pod on its node, and never will: in the restored store the pod has no node."""
    fleet, pod = Fleet(node()), plain_pod("p", amount(2))
    assert fleet.ledger.apply(BindRequested(pod, "n1"), LATER).needs_bind
    fleet.apply(BindEnded("uid-p", "n1", WriteOutcome.DONE))
    assert not fleet.ledger.apply(BindRequested(pod, "n1"), LATER).needs_bind
    fleet.ledger.apply(StoreRestored(), LATER)
    assert fleet.apply(Listed([node()], [pod], []), LATER) == (ReadPod("uid-p", pod.name),)
    assert fleet.ledger.apply(BindRequested(pod, "n1"), LATER).needs_bind


def test_pod_listed_without_node_is_in_doubt() -> None:
    """Only a restored store unbinds a pod. It keeps its room until it has been read, and is bound again on request."""
    fleet = Fleet(node(), plain_pod("p", amount(2), "n1"))
    unbound = plain_pod("p", amount(2))
    assert fleet.apply(PodSeen(unbound)) == (ReadPod("uid-p", unbound.name),)
    assert fleet.apply(PodSeen(unbound)) == ()
    assert fleet.on("n1") == amount(2)
    assert fleet.apply(PodRead("uid-p", unbound)) == ()
    assert fleet.on("n1") == amount(0)
