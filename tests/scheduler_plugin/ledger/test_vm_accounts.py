"""A pod that a VM owns and that cannot run it claims what it says itself, once that is known and while it is so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from protocol.messages import AgentRequest
from protocol.units import ZERO
from scheduler_plugin.ledger import MigrationPhase, Move, NotReadyError, PodFacts, UnknownPodError, VmFacts
from scheduler_plugin.placement import FITS
from tests.scheduler_plugin.ledger.fleet import LATER, NOW, Fleet, amount, migration, name, node, vm, vm_pod

RUNS = vm("a", amount(6), pod=name("a-pod"))
"""The VM runs in its pod, which the status names."""


def runner(on: str | None = "n1", *, pod: str = "a-pod", uid: str = "uid-a") -> PodFacts:
    """A pod with the VM's guest."""
    return replace(vm_pod("a", on, uid), name=name(pod), vm_uid="a-first")


def backup(on: str | None = "n2") -> PodFacts:
    """A pod that the VM owns so that it goes with the VM; it requests one CPU and GiB."""
    return PodFacts("uid-backup", name("backup"), amount(1), name("a"), on, vm_uid="a-first", has_runner=False)


def fleet_of(*facts: PodFacts | VmFacts) -> Fleet:
    return Fleet(node("n1", 40), node("n2", 40), node("n3", 40), *facts)


def status(pod: str | None, *, version: int) -> VmFacts:
    """Newer facts of the VM, by which it runs in ``pod``."""
    return structs.replace(RUNS, pod=None if pod is None else name(pod), version=version)


def test_a_pod_beside_the_one_that_the_vm_runs_in_claims_what_it_requests() -> None:
    fleet = fleet_of(RUNS, runner(), backup())
    assert (fleet.on("n1"), fleet.on("n2")) == (amount(6), amount(1))
    told = fleet.ledger.explain("uid-backup", LATER)
    assert (told.vm, told.floors) == (name("a"), {"requests of the pod": amount(1)})
    with pytest.raises(UnknownPodError, match="pod db/backup runs no VM"):
        fleet.ledger.decide("uid-backup", AgentRequest(name("backup"), amount(8), None), LATER)


def test_a_pod_beside_it_neither_bounds_the_vm_nor_keeps_it_in_place() -> None:
    fleet = fleet_of(RUNS, runner(), replace(backup(), requests=amount(38)))
    assert fleet.grant("a", amount(20), number=1) == amount(20)
    assert fleet.ledger.reserve_move(Move(name("a"), "uid-a", "n1", "n3", ""), name("a-1"), LATER).verdict is FITS


def test_a_pod_beside_it_is_placed_like_any_pod() -> None:
    fleet = fleet_of(RUNS, runner())
    assert fleet.ledger.claim_of(backup(None)) == amount(1)
    assert fleet.ledger.reserve(backup(None), "n1").verdict is FITS
    fleet.did(fleet.ledger.bind_done("uid-backup", "n1"))
    assert fleet.on("n1") == amount(7)


def test_a_pod_counts_as_the_whole_vm_until_the_vm_and_its_pod_are_known() -> None:
    fleet = fleet_of(backup())
    assert fleet.ledger.rooms["n2"].free == ZERO, "nothing is known of its VM"
    fleet.did(fleet.ledger.see_vm(status(None, version=1), LATER))
    assert fleet.on("n2") == amount(6), "the VM's first pod may be seen before its status"
    fleet.did(fleet.ledger.see_vm(status("a-pod", version=2), LATER))
    assert fleet.on("n2") == amount(1)


def test_the_answer_to_a_permits_write_may_be_the_first_that_names_the_pod() -> None:
    fleet = fleet_of(status(None, version=1), runner(), backup())
    order = fleet.ask("a", amount(8), number=1).persist
    assert (fleet.on("n2"), order is None) == (amount(8), False)
    stored = structs.replace(status("a-pod", version=2), permit=amount(8))
    fleet.did(fleet.ledger.permit_stored(0 if order is None else order.revision, stored))
    assert (fleet.on("n1"), fleet.on("n2")) == (amount(8), amount(1))


def test_a_pod_that_the_status_comes_to_name_runs_the_vm_whatever_its_containers_are_called() -> None:
    fleet = fleet_of(RUNS, backup())
    fleet.did(fleet.ledger.see_vm(status("backup", version=2), LATER))
    assert fleet.on("n2") == amount(6)
    fleet.did(fleet.ledger.see_vm(status("a-pod", version=3), LATER))
    assert fleet.on("n2") == amount(1)


@pytest.mark.parametrize("end", ["source_pod", "target_pod"])
def test_a_pod_that_a_migration_names_counts_as_the_whole_vm_while_it_does(end: str) -> None:
    fleet = fleet_of(RUNS, runner(), backup())
    fleet.did(fleet.ledger.see_migration(migration("a", MigrationPhase.SUCCEEDED, **{end: "backup"}), LATER))  # type: ignore[arg-type]
    assert fleet.on("n2") == amount(6)
    fleet.did(fleet.ledger.lose_migration(name("a-1")))
    assert (fleet.on("n2"), fleet.ledger.claims["uid-backup"].is_migrating) == (amount(1), False)


# A pod with a runner counts whole: only news that is late may stand between it and its VM -----------------------------


def test_a_new_pod_of_a_vm_may_be_seen_before_the_status_that_names_it() -> None:
    fleet = fleet_of(status("a-before", version=1), runner())
    assert fleet.on("n1") == amount(6)


def test_the_source_of_a_success_keeps_its_room_after_its_migration_was_deleted() -> None:
    fleet = fleet_of(status("a-target", version=1), runner(), runner("n2", pod="a-target", uid="uid-t"))
    assert (fleet.on("n1"), fleet.on("n2")) == (amount(6), amount(6))


def test_a_target_that_its_vm_owns_may_be_seen_before_migration_and_status() -> None:
    fleet = fleet_of(RUNS, runner(), runner("n2", pod="a-target", uid="uid-t"))
    assert (fleet.on("n1"), fleet.on("n2")) == (amount(6), amount(6))


def test_a_pod_with_a_runner_is_not_placed_for_a_vm_that_runs_in_another_one() -> None:
    fleet = fleet_of(RUNS)
    with pytest.raises(NotReadyError, match="VirtualMachine db/a runs in pod db/a-pod, not in db/second"):
        fleet.ledger.filter(runner(None, pod="second", uid="second"), ["n1"])


def test_after_a_restart_a_migration_takes_no_pod_away_of_a_vm_that_had_the_name_before() -> None:
    fleet = fleet_of(structs.replace(RUNS, uid="a-second", pod=name("new"), version=9), runner())
    fleet.did(fleet.ledger.see_migration(migration("a", to="n2", source_pod="a-pod"), LATER))
    assert not fleet.ledger.claims["uid-a"].is_migrating


# Ends -----------------------------------------------------------------------------------------------------------------


def test_a_pod_beside_a_vm_that_is_deleted_keeps_what_it_claimed_and_then_all_is_forgotten() -> None:
    fleet = fleet_of(RUNS, runner(), backup())
    fleet.did(fleet.ledger.lose_vm(name("a")))
    fleet.did(fleet.ledger.lose_pod("uid-a"))
    fleet.did(fleet.ledger.see_pod(backup()))
    assert (fleet.on("n2"), len(fleet.ledger.vms)) == (amount(1), 1)
    fleet.did(fleet.ledger.lose_pod("uid-backup"))
    assert len(fleet.ledger.vms) == 0


def test_of_two_pods_beside_a_vm_each_is_judged_by_itself() -> None:
    fleet = fleet_of(status(None, version=1), backup(), replace(backup("n3"), uid="uid-other", name=name("other")))
    fleet.did(fleet.ledger.lose_pod("uid-backup"))
    assert fleet.on("n3") == amount(6)
    fleet.did(fleet.ledger.see_vm(status("a-pod", version=2), LATER))
    assert fleet.on("n3") == amount(1)


def test_what_an_agent_was_promised_ends_where_its_pod_turns_out_to_run_no_vm() -> None:
    fleet = Fleet(node("n1", 40), node("n2", 40), status(None, version=1), replace(backup(), uid="uid-a"), now=NOW)
    fleet.grant("a", amount(9), number=1)
    assert fleet.on("n2") == amount(9)
    fleet.did(fleet.ledger.see_vm(status("a-pod", version=5), LATER))
    assert (fleet.on("n2"), fleet.ledger.vms[name("a")].promises.held) == (amount(1), ZERO)
