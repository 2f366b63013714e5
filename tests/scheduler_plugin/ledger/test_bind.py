"""Bind is Reserve: every way in which it can end, and no way to reserve twice or to release twice (S4.10)."""

from __future__ import annotations

import pytest

from protocol.ranking.config import RankingConfig, ScoreCurve
from protocol.units import ZERO
from scheduler_plugin.ledger import (
    ClaimState,
    Ledger,
    NotReadyError,
    PodFacts,
    ReadPod,
    Reservation,
    UnknownPodError,
)
from scheduler_plugin.placement import FITS, NO_FREE_CPU, UNKNOWN_NODE, Refused
from tests.scheduler_plugin.ledger.fleet import LATER, NOW, Fleet, amount, migration, name, node, plain_pod, vm, vm_pod

RESERVED = Reservation(FITS, needs_bind=True)


def tentative(pod: PodFacts | None = None) -> tuple[Fleet, PodFacts]:
    fleet = Fleet(node("n1"), node("n2"))
    pod = pod or plain_pod("a", amount(2))
    assert fleet.ledger.reserve(pod, "n1") == RESERVED
    return fleet, pod


def test_three_pods_race_for_room_for_one() -> None:
    fleet = Fleet(node("n1", total=2))
    pods = [plain_pod(of, amount(1)) for of in "abc"]
    assert [fleet.ledger.filter(pod, ["n1"]).fits for pod in pods] == [["n1"], ["n1"], ["n1"]]
    answers = [fleet.ledger.reserve(pod, "n1") for pod in pods]
    refusal = "pod needs 1 cpu, 1Gi; node n1 has 0 cpu, 0 free of 1 cpu, 1Gi"
    assert answers == [RESERVED, Reservation(NO_FREE_CPU, refusal), Reservation(NO_FREE_CPU, refusal)]
    assert fleet.ledger.filter(pods[1], ["n1"]).refused == {"n1": "Insufficient cpu"}


def test_bound_pod_is_reserved_once() -> None:
    fleet, pod = tentative()
    fleet.did(fleet.ledger.bind_done(pod.uid, "n1"))
    assert fleet.ledger.claims[pod.uid].state is ClaimState.CONFIRMED
    for _ in range(2):
        fleet.did(fleet.ledger.see_pod(plain_pod("a", amount(2), "n1")))
    assert fleet.on("n1") == amount(2)
    assert fleet.ledger.claims[pod.uid].state is ClaimState.BOUND


def test_repeated_bind_reserves_once() -> None:
    fleet, pod = tentative()
    assert fleet.ledger.reserve(pod, "n1") == RESERVED
    fleet.did(fleet.ledger.bind_done(pod.uid, "n1"))
    assert fleet.ledger.reserve(pod, "n1") == Reservation(FITS, needs_bind=False)
    assert fleet.on("n1") == amount(2)


def test_second_node_bind_is_refused() -> None:
    fleet, pod = tentative()
    answer = fleet.ledger.reserve(pod, "n2")
    where = "the pod holds a reservation on node n1"
    assert answer == Reservation(Refused(where), f"{where} (tentative)")
    found = fleet.ledger.filter(pod, ["n1", "n2"])
    assert (found.fits, found.refused, found.never) == (["n1"], {"n2": where}, {})
    assert (fleet.on("n1"), fleet.on("n2")) == (amount(2), ZERO)


def test_certain_refusal_frees_for_another_node() -> None:
    fleet, pod = tentative()
    for _ in range(2):
        fleet.did(fleet.ledger.bind_refused(pod.uid, "n1"))
    assert fleet.on("n1") == ZERO
    assert fleet.ledger.reserve(pod, "n2") == RESERVED


def test_last_refusal_releases() -> None:
    fleet, pod = tentative()
    fleet.ledger.reserve(pod, "n1")
    fleet.did(fleet.ledger.bind_refused(pod.uid, "n1"))
    assert fleet.on("n1") == amount(2)
    fleet.did(fleet.ledger.bind_refused(pod.uid, "n1"))
    assert fleet.on("n1") == ZERO


def test_late_refusal_keeps_bound_pod() -> None:
    fleet, pod = tentative()
    fleet.did(fleet.ledger.see_pod(plain_pod("a", amount(2), "n1")))
    fleet.did(fleet.ledger.bind_refused(pod.uid, "n1"))
    assert fleet.ledger.bind_unknown(pod.uid, "n1") == ()
    assert fleet.on("n1") == amount(2)


def test_a_refusal_for_another_node_releases_nothing() -> None:
    fleet, pod = tentative()
    fleet.did(fleet.ledger.bind_refused(pod.uid, "n2"))
    fleet.did(fleet.ledger.bind_done(pod.uid, "n2"))
    assert fleet.ledger.claims[pod.uid].state is ClaimState.TENTATIVE


def test_released_then_bound_is_reserved_once() -> None:
    fleet, pod = tentative()
    fleet.did(fleet.ledger.bind_refused(pod.uid, "n1"))
    fleet.did(fleet.ledger.see_pod(plain_pod("a", amount(2), "n1")))
    assert fleet.on("n1") == amount(2)


def test_reservation_follows_observed_node() -> None:
    fleet = Fleet(node("n1"), node("n2"), vm("a", amount(2)))
    fleet.did(fleet.ledger.see_migration(migration("a"), NOW))
    assert fleet.ledger.reserve(vm_pod("a"), "n1") == RESERVED
    fleet.did(fleet.ledger.see_pod(vm_pod("a", "n2")))
    assert (fleet.on("n1"), fleet.on("n2")) == (ZERO, amount(2))
    assert fleet.ledger.nodes["n2"].migrating == amount(2)


def test_unknown_outcome_keeps_reservation() -> None:
    fleet, pod = tentative()
    assert fleet.ledger.bind_unknown(pod.uid, "n1") == (ReadPod(pod.uid, pod.name),)
    fleet.did(fleet.ledger.see_pod(pod))
    fleet.did(fleet.ledger.bind_refused(pod.uid, "n1"))
    assert fleet.on("n1") == amount(2)
    fleet.did(fleet.ledger.pod_read(pod.uid, pod))
    assert fleet.on("n1") == ZERO


def test_read_settles_bound_node() -> None:
    fleet, pod = tentative()
    fleet.ledger.bind_unknown(pod.uid, "n1")
    fleet.did(fleet.ledger.pod_read(pod.uid, plain_pod("a", amount(2), "n2")))
    assert (fleet.on("n1"), fleet.on("n2")) == (ZERO, amount(2))


def test_read_waits_for_calls_in_flight() -> None:
    fleet, pod = tentative()
    fleet.ledger.bind_unknown(pod.uid, "n1")
    assert fleet.ledger.reserve(pod, "n1") == RESERVED
    fleet.did(fleet.ledger.pod_read(pod.uid, pod))
    assert fleet.on("n1") == amount(2)


def test_a_read_that_finds_no_pod_releases() -> None:
    fleet, pod = tentative()
    fleet.ledger.bind_unknown(pod.uid, "n1")
    fleet.did(fleet.ledger.pod_read(pod.uid, None))
    assert fleet.on("n1") == ZERO


def test_a_read_of_a_tentative_pod_changes_nothing() -> None:
    fleet, pod = tentative()
    fleet.did(fleet.ledger.pod_read(pod.uid, pod))
    assert fleet.on("n1") == amount(2)


def test_deletion_before_bind_is_final() -> None:
    fleet, pod = tentative()
    for _ in range(2):
        fleet.did(fleet.ledger.lose_pod(pod.uid))
    fleet.did(fleet.ledger.bind_done(pod.uid, "n1"))
    fleet.did(fleet.ledger.see_pod(plain_pod("a", amount(2), "n1")))
    assert fleet.on("n1") == ZERO
    with pytest.raises(UnknownPodError, match="pod db/a is deleted or has finished"):
        fleet.ledger.reserve(pod, "n1")
    assert fleet.ledger.filter(plain_pod("a", amount(99)), ["n1"]).fits == []
    assert fleet.ledger.waiting == 0


def test_a_finished_pod_is_released_once() -> None:
    fleet = Fleet(node(), plain_pod("a", amount(2), "n1"), plain_pod("b", amount(3), "n1"))
    for _ in range(2):
        fleet.did(fleet.ledger.see_pod(plain_pod("a", amount(2), "n1", finished=True)))
    fleet.did(fleet.ledger.lose_pod("uid-a"))
    assert fleet.on("n1") == amount(3)


def test_foreign_pods_count_beyond_total() -> None:
    fleet = Fleet(node(total=4))
    fleet.did(fleet.ledger.see_pod(plain_pod("foreign", amount(5), "n1")))
    assert (fleet.on("n1"), fleet.ledger.rooms["n1"].free) == (amount(5), ZERO)
    fleet.did(fleet.ledger.see_pod(plain_pod("foreign", amount(1), "n1")))
    assert fleet.on("n1") == amount(1)


def test_a_pending_pod_of_another_scheduler_counts_nothing() -> None:
    fleet = Fleet(node())
    fleet.did(fleet.ledger.see_pod(plain_pod("foreign", amount(5))))
    assert fleet.on("n1") == ZERO


def test_pod_with_reused_name_is_found() -> None:
    fleet = Fleet(node(), vm("a", amount(1)))
    fleet.did(fleet.ledger.see_pod(vm_pod("a", "n1", "old")))
    fleet.did(fleet.ledger.see_pod(vm_pod("a", "n1", "new")))
    assert fleet.ledger.uid_of(name("a-pod")) == "new"
    fleet.did(fleet.ledger.lose_pod("old"))
    assert fleet.ledger.uid_of(name("a-pod")) == "new"
    fleet.did(fleet.ledger.lose_pod("new"))
    assert fleet.ledger.uid_of(name("a-pod")) is None


def test_vm_pod_claims_size_or_permit() -> None:
    fleet = Fleet(node(), vm("a", amount(1, 3), permit=amount(2)))
    assert fleet.ledger.claim_of(vm_pod("a")) == amount(2, 3)
    assert fleet.ledger.reserve(vm_pod("a"), "n1") == RESERVED
    assert fleet.on("n1") == amount(2, 3)


def test_vm_pod_waits_for_its_vm() -> None:
    fleet = Fleet(node())
    with pytest.raises(NotReadyError, match="VirtualMachine db/a of pod db/a-pod is not known yet"):
        fleet.ledger.reserve(vm_pod("a"), "n1")
    fleet.did(fleet.ledger.see_pod(vm_pod("other", "n1")))
    with pytest.raises(NotReadyError, match="VirtualMachine db/other"):
        fleet.ledger.filter(vm_pod("other", uid="second"), ["n1"])


def test_an_unknown_node_is_refused() -> None:
    fleet = Fleet(node())
    assert fleet.ledger.reserve(plain_pod("a", amount(1)), "n9") == Reservation(UNKNOWN_NODE)
    assert "n9" not in fleet.ledger.nodes


def test_label_change_recounts_pod() -> None:
    fleet = Fleet(node(), vm("a", amount(3)), vm_pod("a", "n1"))
    relabelled = PodFacts("uid-a", name("a-pod"), amount(0.5), None, "n1")
    fleet.did(fleet.ledger.see_pod(relabelled))
    assert fleet.on("n1") == amount(0.5)
    fleet.did(fleet.ledger.see_pod(vm_pod("a", "n1")))
    assert fleet.on("n1") == amount(3)


def test_nothing_is_placed_before_the_cluster_was_read() -> None:
    ledger = Ledger()
    for call in (
        lambda: ledger.filter(plain_pod("a", amount(1)), ["n1"]),
        lambda: ledger.scores(plain_pod("a", amount(1)), ["n1"]),
        lambda: ledger.reserve(plain_pod("a", amount(1)), "n1"),
    ):
        with pytest.raises(NotReadyError, match="has not read the cluster yet"):
            call()
    assert ledger.resync([node()], [], [], NOW) == ()
    assert ledger.is_ready
    assert ledger.scores(plain_pod("a", amount(1)), ["n1", "n9"]) == [6, 0]
    ledger.rank_by(RankingConfig(score=ScoreCurve(empty=1.0, peak=0.0)))
    assert ledger.scores(plain_pod("a", amount(1)), ["n1", "n9"]) == [9, 0]


def test_scheduler_name_change_recounts_pods() -> None:
    fleet = Fleet(node(), plain_pod("a", amount(1), "n1"))
    pod = fleet.ledger.claims["uid-a"].pod
    assert fleet.ledger.places(pod)
    fleet.ledger.serve("other", 20)
    assert not fleet.ledger.places(pod)


def test_confirmed_bind_is_in_doubt_after_a_restore() -> None:
    """The watch has not shown the pod on its node yet, and never will: in the restored store it has none."""
    fleet, pod = Fleet(node()), plain_pod("p", amount(2))
    assert fleet.ledger.reserve(pod, "n1").needs_bind
    fleet.did(fleet.ledger.bind_done("uid-p", "n1"))
    assert not fleet.ledger.reserve(pod, "n1").needs_bind
    fleet.ledger.forget_versions()
    assert fleet.did(fleet.ledger.resync([node()], [pod], [], LATER)) == (ReadPod("uid-p", pod.name),)
    assert fleet.ledger.reserve(pod, "n1").needs_bind


def test_pod_that_is_listed_without_its_node_is_in_doubt() -> None:
    """Only a restored store unbinds a pod: it keeps its room until it was read, and is really bound if asked for."""
    fleet = Fleet(node(), plain_pod("p", amount(2), "n1"))
    unbound = plain_pod("p", amount(2))
    assert fleet.did(fleet.ledger.see_pod(unbound)) == (ReadPod("uid-p", unbound.name),)
    assert fleet.did(fleet.ledger.see_pod(unbound)) == ()
    assert fleet.on("n1") == amount(2)
    assert fleet.did(fleet.ledger.pod_read("uid-p", unbound)) == ()
    assert fleet.on("n1") == amount(0)
