"""Only its owner's UID makes a pod a VM's; it claims its guest, the overhead around the guest, and its requests."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from protocol.messages import ObjectName
from protocol.units import ZERO, Resources
from scheduler_plugin.ledger.events import BindRequested, MigrationGone, MigrationSeen, PodGone, PodSeen, VmSeen
from scheduler_plugin.ledger.facts import PodFacts, VmFacts
from scheduler_plugin.ledger.outcomes import NotReadyError
from scheduler_plugin.placement.verdict import FITS
from tests.scheduler_plugin.ledger.fleet import LATER, Fleet, amount, migration, name, node, plain_pod, vm, vm_pod


def owned(of: str, on: str | None = None, *, by: str = "first", uid: str | None = None, **more: object) -> PodFacts:
    """The pod of the VM with the UID ``NAME-BY``."""
    return replace(vm_pod(of, on, uid), vm_uid=f"{of}-{by}", **more)  # type: ignore[arg-type]  # fields of PodFacts


@pytest.mark.parametrize(
    ("requests", "overhead", "expected"),
    [
        (amount(0), amount(0), amount(2)),
        (amount(0.5), amount(0.25), amount(2.25)),
        (amount(5), amount(0.25), amount(5)),
        (amount(5, 1), amount(1, 0.5), amount(5, 2.5)),
    ],
)
def test_claim_is_larger_of_guest_and_requests(requests: Resources, overhead: Resources, expected: Resources) -> None:
    fleet = Fleet(node(), vm("a", amount(2)), owned("a", "n1", requests=requests, overhead=overhead))
    assert fleet.reserved("a") == expected


def test_growth_leaves_room_for_overhead() -> None:
    fleet = Fleet(node(total=9), vm("a", amount(2)), owned("a", "n1", overhead=amount(1)))
    assert fleet.grant("a", amount(20), number=1) == amount(7)
    assert (fleet.reserved("a"), fleet.on("n1")) == (amount(8), amount(8))


def test_vm_grows_into_pod_requests() -> None:
    neighbour = plain_pod("b", amount(1), "n1")
    fleet = Fleet(node(total=7), vm("a", amount(2)), owned("a", "n1", requests=amount(5)), neighbour)
    assert fleet.grant("a", amount(20), number=1) == amount(5)


def test_target_booking_includes_overhead() -> None:
    fleet = Fleet(node("n1"), node("n2"), vm("a", amount(2)), owned("a", "n1", overhead=amount(1)))
    fleet.apply(MigrationSeen(migration("a", to="n2")), LATER)
    assert (fleet.on("n1"), fleet.on("n2")) == (amount(3), amount(3))
    target = replace(vm_pod("a", uid="t"), name=name("t"), migration=name("a-1"), overhead=amount(2))
    assert fleet.ledger.filter(target, ["n2"]).fits == ["n2"]
    fleet.apply(PodSeen(plain_pod("full", amount(5.5), "n2")))
    assert fleet.ledger.filter(target, ["n2"]).fits == [], "more than was reserved, and no room for the rest"


def test_second_runner_counts_larger_size() -> None:
    fleet = Fleet(node("n1", 40), vm("a", amount(1), pod=name("a-pod")), owned("a", "n1"))
    fleet.apply(PodSeen(owned("a", "n1", uid="web", name=name("web"), requests=amount(25, 20))))
    assert fleet.on("n1") == amount(26, 21)


def test_successor_vm_has_own_account() -> None:
    fleet = Fleet(node(total=21), vm("a", amount(6)), owned("a", "n1"))
    fleet.grant("a", amount(8), number=1)
    fleet.apply(PodSeen(owned("a", "n1", by="second", uid="new")))
    fleet.apply(VmSeen(vm("a", amount(1), uid="second", version=9)), LATER)
    assert (fleet.reserved("a"), fleet.ledger.claims["new"].reserved) == (amount(8), amount(1))
    fleet.apply(VmSeen(vm("a", amount(9), version=8)), LATER)
    assert fleet.on("n1") == amount(9), "late news of the one before change nothing"
    fleet.apply(PodGone("uid-a"))
    assert fleet.on("n1") == amount(1)


def test_a_predecessor_without_pods_is_forgotten() -> None:
    fleet = Fleet(node(), vm("a", amount(6)))
    fleet.apply(VmSeen(vm("a", amount(1), uid="second", version=9)), LATER)
    assert fleet.ledger.claim_of(owned("a", by="second")) == amount(1)
    with pytest.raises(NotReadyError, match="VirtualMachine db/a of pod db/a-pod is not known yet"):
        fleet.ledger.claim_of(owned("a"))


def test_order_ends_with_its_vm() -> None:
    fleet = Fleet(node("n1"), node("n2"), vm("a", amount(2)), owned("a", "n1"))
    fleet.apply(MigrationSeen(migration("a", to="n2")), LATER)
    fleet.apply(VmSeen(vm("a", amount(1), uid="second", version=9)), LATER)
    assert not fleet.ledger.claims["uid-a"].is_migrating


def test_second_vm_pod_is_not_placed() -> None:
    fleet = Fleet(node(), vm("a", amount(2), pod=name("other")))
    with pytest.raises(NotReadyError, match="VirtualMachine db/a runs in pod db/other, not in db/a-pod"):
        fleet.ledger.filter(owned("a"), ["n1"])


def test_reassigned_pod_counts_for_new_vm() -> None:
    fleet = Fleet(node(), vm("a", amount(2)), owned("a", "n1"))
    fleet.apply(PodSeen(owned("a", "n1", by="stranger")))
    assert fleet.on("n1") == vm_pod("a").requests


def test_uid_in_another_namespace_is_another_vm() -> None:
    """A tenant's pod on a full node claims the UID of another tenant's VM."""
    full = plain_pod("full", amount(9), "n2")
    fleet = Fleet(node("n1"), node("n2"), vm("a", amount(1)), owned("a", "n1"), full)
    fleet.apply(PodSeen(owned("a", "n2", uid="foreign", vm=ObjectName("other", "a"))))
    assert (fleet.grant("a", amount(5), number=1), fleet.on("n2")) == (amount(5), amount(9) + vm_pod("a").requests)


@pytest.mark.parametrize(
    "target",
    [{"migration_uid": "another"}, {"vm": name("b")}],
    ids=["another migration of that name", "a migration of another VM"],
)
def test_foreign_target_counts_as_pod(target: dict[str, object]) -> None:
    fleet = Fleet(node("n1"), node("n2"), vm("a", amount(2)), vm("b", amount(4)), vm_pod("a", "n1"))
    fleet.apply(MigrationSeen(migration("a", to="n2")), LATER)
    pod = replace(vm_pod("a", uid="t"), name=name("t"), requests=amount(5), migration=name("a-1"), **target)  # type: ignore[arg-type]
    fleet.apply(PodSeen(replace(pod, node="n1")))
    assert fleet.ledger.claims["t"].reserved == amount(5)
    assert fleet.ledger.claims["t"].vm is None


def early_target() -> tuple[Fleet, PodFacts]:
    """The target pod of the second migration of one name is seen on n2 before that migration is."""
    fleet = Fleet(node("n1"), node("n2"), vm("a", amount(2)), owned("a", "n1"))
    fleet.apply(MigrationSeen(migration("a", to="n2")), LATER)
    pod = replace(vm_pod("a", "n2", "t"), name=name("t"), migration=name("a-1"), migration_uid="second")
    fleet.apply(PodSeen(pod))
    assert fleet.ledger.claims["t"].vm is None
    return fleet, pod


def test_target_before_migration_counts_later() -> None:
    fleet, _ = early_target()
    fleet.apply(MigrationSeen(replace(migration("a", to="n2", version=8), uid="another")), LATER)
    assert fleet.ledger.claims["t"].vm is None
    fleet.apply(MigrationSeen(replace(migration("a", to="n2", version=9), uid="second")), LATER)
    assert (fleet.ledger.claims["t"].reserved, fleet.on("n2")) == (amount(2), amount(2))


def test_adopted_pod_counts_as_vm() -> None:
    fleet, pod = early_target()
    fleet.apply(MigrationGone(name("a-1")))
    fleet.apply(PodSeen(replace(pod, migration=None, migration_uid="", vm_uid="a-first")))
    assert fleet.ledger.claims["t"].reserved == amount(2)


# What cannot be read ------------------------------------------------------------------------------------------------


def unreadable(maximum: Resources, *, version: int = 5, is_bounded: bool = True) -> VmFacts:
    """The VM ``a`` at its maximum, because it is unreadable."""
    seen = vm("a", maximum, version=version, maximum=maximum, uid="first")
    return structs.replace(seen, unreadable="spec: garbage", is_bounded=is_bounded)


def test_unreadable_vm_counts_at_maximum() -> None:
    fleet = Fleet(node(), unreadable(amount(6)), owned("a", "n1"))
    assert fleet.on("n1") == amount(6)
    assert fleet.ledger.filter(plain_pod("b", amount(4)), ["n1"]).fits == []
    with pytest.raises(NotReadyError, match="VirtualMachine db/a of pod db/a-pod cannot be read: spec: garbage"):
        fleet.ask("a", amount(1))
    told = fleet.ledger.explain("uid-a", LATER)
    assert told.floors["maximum of an unreadable VM"] == amount(6)


def test_unreadable_vm_keeps_its_permit() -> None:
    fleet = Fleet(node(), vm("a", amount(2)), owned("a", "n1"))
    fleet.grant("a", amount(7), number=1)
    fleet.apply(VmSeen(structs.replace(unreadable(amount(1), version=0), has_agent=False, uid="")), LATER)
    assert fleet.on("n1") == amount(7)
    fleet.apply(VmSeen(vm("a", amount(3), version=9)), LATER)
    assert fleet.on("n1") == amount(7), "promises to its agent still hold"


def test_unreadable_vm_without_uid_uses_name() -> None:
    fleet = Fleet(node(), structs.replace(unreadable(amount(3)), uid=""), vm_pod("a", "n1"))
    assert fleet.on("n1") == amount(3)


def test_unbounded_vm_blocks_node() -> None:
    fleet = Fleet(node("n1"), node("n2"), unreadable(amount(1), is_bounded=False), owned("a", "n1"))
    assert (fleet.on("n1"), fleet.ledger.rooms["n1"].free) == (amount(1), ZERO)
    fleet.apply(VmSeen(vm("a", amount(1), version=9)), LATER)
    assert fleet.ledger.rooms["n1"].free == amount(8)


def test_pod_of_unknown_vm_blocks_node() -> None:
    fleet = Fleet(node(), owned("a", "n1"))
    assert fleet.ledger.rooms["n1"].free == ZERO
    fleet.apply(PodGone("uid-a"))
    assert fleet.ledger.rooms["n1"].free == amount(9)


def test_unreadable_pod_blocks_node() -> None:
    fleet = Fleet(node(), replace(plain_pod("a", ZERO, "n1"), unreadable="spec: garbage", is_bounded=False))
    assert fleet.ledger.rooms["n1"].free == ZERO
    fleet.apply(PodSeen(plain_pod("a", amount(2), "n1")))
    assert fleet.ledger.rooms["n1"].free == amount(7)


def test_large_pod_blocks_at_most_its_need() -> None:
    large = replace(plain_pod("a", amount(2), "n1"), unreadable="spec.containers: too many")
    assert Fleet(node(), large).ledger.rooms["n1"].free == amount(7)


def test_unreadable_vm_is_not_placed() -> None:
    fleet = Fleet(node(), unreadable(amount(1)))
    with pytest.raises(NotReadyError, match="of pod db/a-pod cannot be read: spec: garbage"):
        fleet.ledger.apply(BindRequested(owned("a"), "n1"), LATER)
    fleet.apply(VmSeen(vm("a", amount(1), version=9)), LATER)
    assert fleet.ledger.apply(BindRequested(owned("a"), "n1"), LATER).verdict is FITS
