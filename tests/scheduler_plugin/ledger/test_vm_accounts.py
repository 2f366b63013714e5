"""A pod that a VM owns but that cannot run it claims only its own requests, once that is known and as long as it is
true.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from protocol.messages import AgentRequest
from protocol.units import ZERO
from scheduler_plugin.ledger.events import (
    BindEnded,
    BindRequested,
    MigrationGone,
    MigrationSeen,
    MoveRequested,
    PermitRequested,
    PodGone,
    PodSeen,
    VmGone,
    VmSeen,
    WriteOutcome,
)
from scheduler_plugin.ledger.facts import MigrationPhase, PodFacts, VmFacts
from scheduler_plugin.ledger.moves import Move
from scheduler_plugin.ledger.outcomes import NotReadyError, UnknownPodError
from scheduler_plugin.placement.verdict import FITS
from tests.scheduler_plugin.ledger.fleet import (
    LATER,
    NOW,
    Fleet,
    amount,
    migration,
    name,
    node,
    permit_stored,
    vm,
    vm_pod,
)

RUNS = vm("a", amount(6), pod=name("a-pod"))
"""The VM runs in its pod, which the status names."""


def runner(on: str | None = "n1", *, pod: str = "a-pod", uid: str = "uid-a") -> PodFacts:
    """A pod with the VM's guest."""
    return replace(vm_pod("a", on, uid), name=name(pod), vm_uid="a-first")


def backup(on: str | None = "n2") -> PodFacts:
    """A pod owned by the VM so that it is deleted with it; it requests one CPU and GiB."""
    return PodFacts("uid-backup", name("backup"), amount(1), name("a"), on, vm_uid="a-first", has_runner=False)


def fleet_of(*facts: PodFacts | VmFacts) -> Fleet:
    return Fleet(node("n1", 40), node("n2", 40), node("n3", 40), *facts)


def status(pod: str | None, *, version: int) -> VmFacts:
    """Newer facts of the VM, which runs in ``pod`` now."""
    return structs.replace(RUNS, pod=None if pod is None else name(pod), version=version)


def test_extra_pod_claims_its_requests() -> None:
    fleet = fleet_of(RUNS, runner(), backup())
    assert (fleet.on("n1"), fleet.on("n2")) == (amount(6), amount(1))
    assert fleet.ledger.explain("uid-backup", LATER).floors == {"requests of the pod": amount(1)}
    with pytest.raises(UnknownPodError, match="pod db/backup runs no VM"):
        fleet.ledger.apply(PermitRequested("uid-backup", AgentRequest(name("backup"), amount(8), None)), LATER)


def test_extra_pod_does_not_bind_vm() -> None:
    fleet = fleet_of(RUNS, runner(), replace(backup(), requests=amount(38)))
    assert fleet.grant("a", amount(20), number=1) == amount(20)
    assert (
        fleet.ledger.apply(MoveRequested(Move(name("a"), "uid-a", "n1", "n3", ""), name("a-1")), LATER).verdict is FITS
    )


def test_extra_pod_is_placed_normally() -> None:
    fleet = fleet_of(RUNS, runner())
    assert fleet.ledger.claim_of(backup(None)) == amount(1)
    assert fleet.ledger.apply(BindRequested(backup(None), "n1"), LATER).verdict is FITS
    fleet.apply(BindEnded("uid-backup", "n1", WriteOutcome.DONE))
    assert fleet.on("n1") == amount(7)


def test_unknown_vm_pod_counts_as_vm() -> None:
    fleet = fleet_of(backup())
    assert fleet.ledger.rooms["n2"].free == ZERO, "nothing is known of its VM"
    fleet.apply(VmSeen(status(None, version=1)), LATER)
    assert fleet.on("n2") == amount(6), "the VM's first pod may be seen before its status"
    fleet.apply(VmSeen(status("a-pod", version=2)), LATER)
    assert fleet.on("n2") == amount(1)


def test_write_answer_may_name_pod_first() -> None:
    fleet = fleet_of(status(None, version=1), runner(), backup())
    order = fleet.ask("a", amount(8), number=1).persist
    assert (fleet.on("n2"), order is None) == (amount(8), False)
    stored = structs.replace(status("a-pod", version=2), permit=amount(8))
    fleet.apply(permit_stored(0 if order is None else order.revision, stored))
    assert (fleet.on("n1"), fleet.on("n2")) == (amount(8), amount(1))


def test_status_names_the_vm_pod() -> None:
    fleet = fleet_of(RUNS, backup())
    fleet.apply(VmSeen(status("backup", version=2)), LATER)
    assert fleet.on("n2") == amount(6)
    fleet.apply(VmSeen(status("a-pod", version=3)), LATER)
    assert fleet.on("n2") == amount(1)


@pytest.mark.parametrize("end", ["source_pod", "target_pod"])
def test_migration_pod_counts_as_vm(end: str) -> None:
    fleet = fleet_of(RUNS, runner(), backup())
    fleet.apply(MigrationSeen(migration("a", MigrationPhase.SUCCEEDED, **{end: "backup"})), LATER)  # type: ignore[arg-type]
    assert fleet.on("n2") == amount(6)
    fleet.apply(MigrationGone(name("a-1")))
    assert (fleet.on("n2"), fleet.ledger.claims["uid-backup"].is_migrating) == (amount(1), False)


# A pod with a runner counts whole: only news that is late may stand between it and its VM -----------------------------


def test_pod_may_precede_vm_status() -> None:
    fleet = fleet_of(status("a-before", version=1), runner())
    assert fleet.on("n1") == amount(6)


def test_source_keeps_room_after_deleted_migration() -> None:
    fleet = fleet_of(status("a-target", version=1), runner(), runner("n2", pod="a-target", uid="uid-t"))
    assert (fleet.on("n1"), fleet.on("n2")) == (amount(6), amount(6))


def test_owned_target_may_come_first() -> None:
    fleet = fleet_of(RUNS, runner(), runner("n2", pod="a-target", uid="uid-t"))
    assert (fleet.on("n1"), fleet.on("n2")) == (amount(6), amount(6))


def test_second_runner_is_not_placed() -> None:
    fleet = fleet_of(RUNS)
    with pytest.raises(NotReadyError, match="VirtualMachine db/a runs in pod db/a-pod, not in db/second"):
        fleet.ledger.filter(runner(None, pod="second", uid="second"), ["n1"])


def test_restart_keeps_pod_of_former_vm() -> None:
    fleet = fleet_of(structs.replace(RUNS, uid="a-second", pod=name("new"), version=9), runner())
    fleet.apply(MigrationSeen(migration("a", to="n2", source_pod="a-pod")), LATER)
    assert not fleet.ledger.claims["uid-a"].is_migrating


# Ends -----------------------------------------------------------------------------------------------------------------


def test_pod_beside_deleted_vm_keeps_claim() -> None:
    fleet = fleet_of(RUNS, runner(), backup())
    fleet.apply(VmGone(name("a")))
    fleet.apply(PodGone("uid-a"))
    fleet.apply(PodSeen(backup()))
    assert (fleet.on("n2"), len(fleet.ledger.vms)) == (amount(1), 1)
    fleet.apply(PodGone("uid-backup"))
    assert len(fleet.ledger.vms) == 0


def test_extra_pods_are_judged_separately() -> None:
    fleet = fleet_of(status(None, version=1), backup(), replace(backup("n3"), uid="uid-other", name=name("other")))
    fleet.apply(PodGone("uid-backup"))
    assert fleet.on("n3") == amount(6)
    fleet.apply(VmSeen(status("a-pod", version=2)), LATER)
    assert fleet.on("n3") == amount(1)


def test_promise_ends_without_vm() -> None:
    fleet = Fleet(node("n1", 40), node("n2", 40), status(None, version=1), replace(backup(), uid="uid-a"), now=NOW)
    fleet.grant("a", amount(9), number=1)
    assert fleet.on("n2") == amount(9)
    fleet.apply(VmSeen(status("a-pod", version=5)), LATER)
    assert (fleet.on("n2"), fleet.ledger.vms[name("a")].outstanding.maximum) == (amount(1), ZERO)
