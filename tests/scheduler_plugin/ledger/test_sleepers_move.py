"""A sleeping VM moves to a node with room, where its room is reserved as for a guest that boots (B.18)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from protocol.units import ZERO, Resources
from scheduler_plugin.ledger.accounts.claims import ClaimState
from scheduler_plugin.ledger.events import BindRequested, MigrationSeen, MoveRequested, PodGone, PodSeen, VmSeen
from scheduler_plugin.ledger.facts import RUNNING, MigrationPhase
from scheduler_plugin.placement.verdict import FITS
from tests.scheduler_plugin.ledger.fleet import LATER, amount, migration, name, node, plain_pod, vm_pod
from tests.scheduler_plugin.ledger.moving import BROKEN, DONE, INCOMING, MOVE, ONE, STARTED, target_pod
from tests.scheduler_plugin.ledger.sleeping import SleepingFleet, sleeper

REQUESTS = vm_pod("a").requests


def full_node(*, there: float = 10) -> SleepingFleet:
    """A VM sleeps on n1, which is full, and needs 3 CPU to wake; n2 is empty."""
    beside = plain_pod("x", amount(8), "n1")
    return SleepingFleet(node(), node("n2", there), sleeper("a", amount(3)), vm_pod("a", "n1"), beside)


def ordered() -> SleepingFleet:
    """The scheduler has ordered the migration."""
    fleet = full_node()
    reservation = fleet.ledger.apply(MoveRequested(MOVE, ONE), LATER)
    fleet.did(reservation.effects)
    assert reservation.verdict is FITS
    return fleet


def transferring() -> SleepingFleet:
    """The target pod has its node, and the memory is being sent."""
    fleet = ordered()
    fleet.apply(MigrationSeen(migration("a", MigrationPhase.PENDING, to="n2")))
    assert fleet.ledger.apply(BindRequested(target_pod(), "n2"), LATER).verdict is FITS
    fleet.apply(PodSeen(target_pod("n2")))
    fleet.apply(MigrationSeen(STARTED))
    return fleet


def on_both(fleet: SleepingFleet) -> tuple[Resources, Resources]:
    return fleet.on("n1"), fleet.on("n2")


def arrives(fleet: SleepingFleet) -> None:
    """Its object names the target, where its guest runs."""
    size = fleet.vms[name("a")].wakes_with
    assert size is not None
    fleet._becomes("a", LATER, phase=RUNNING, use=size, actual=size, wakes_with=None, pod=name("a-target"))


def test_move_reserves_room_to_wake() -> None:
    """Its present node keeps the former reservation, because the guest never runs there again."""
    fleet = ordered()
    assert on_both(fleet) == (amount(8) + REQUESTS, amount(3))
    assert fleet.ledger.claims[INCOMING].state is ClaimState.INCOMING
    assert fleet.ledger.nodes["n2"].room.for_waking == ZERO


def test_move_without_room_to_wake_is_refused() -> None:
    fleet = full_node(there=3)
    reservation = fleet.ledger.apply(MoveRequested(MOVE, ONE), LATER)
    assert reservation.verdict is not FITS
    assert fleet.on("n2") == ZERO


def test_target_pod_without_room_to_wake_is_refused() -> None:
    """A user has ordered the migration, to any node."""
    fleet = full_node(there=3)
    fleet.apply(MigrationSeen(migration("a", MigrationPhase.PENDING, is_ours=False)))
    assert fleet.ledger.apply(BindRequested(target_pod(), "n2"), LATER).verdict is not FITS


def test_sleeper_arrives_and_runs() -> None:
    """A guest's room is reserved before it runs, and its own node never has more than before."""
    fleet = transferring()
    before = amount(8) + REQUESTS
    assert on_both(fleet) == (before, amount(3))
    arrives(fleet)
    assert on_both(fleet) == (before, amount(3))
    fleet.apply(MigrationSeen(DONE))
    fleet.apply(PodGone("uid-a"))
    fleet.apply(PodSeen(target_pod("n2", owner=None)))
    assert on_both(fleet) == (amount(8), amount(3))


def test_failed_move_leaves_sleeper() -> None:
    fleet = transferring()
    fleet.apply(MigrationSeen(BROKEN))
    fleet.apply(PodGone("uid-t"))
    assert on_both(fleet) == (amount(8) + REQUESTS, ZERO)
    fleet.wakes("a")
    assert fleet.ask("a", amount(3)).permit == ZERO


def test_moving_waking_vm_is_denied_on_full_node() -> None:
    fleet = transferring()
    fleet.wakes("a")
    assert fleet.ask("a", amount(3)).permit == ZERO
    assert on_both(fleet) == (amount(8) + REQUESTS, amount(3))
    arrives(fleet)
    assert fleet.on("n2") == amount(3)


def test_waking_vm_with_freed_room_wakes_on_source() -> None:
    """Room became free before the memory was sent: both nodes reserve its size until it has left one of them."""
    fleet = transferring()
    fleet.apply(PodSeen(plain_pod("x", amount(8), "n1", finished=True)))
    fleet.wakes("a")
    fleet.asks_to_wake("a")
    assert on_both(fleet) == (amount(3), amount(3))
    assert fleet.is_woken("a")
    assert on_both(fleet) == (amount(3), amount(3))


@pytest.mark.parametrize(("beside", "counts"), [(2, 6), (5, 3)])
def test_edited_size_counts_with_room(beside: float, counts: float) -> None:
    """A user who edits the spec of a migrating VM takes nothing from others."""
    fleet = transferring()
    fleet.apply(PodSeen(plain_pod("y", amount(beside), "n2")))
    old = fleet.vms[name("a")]
    fleet.apply(VmSeen(structs.replace(old, version=old.version + 1, wakes_with=amount(6))))
    assert fleet.on("n2") == amount(beside + counts)


def test_new_scheduler_bounds_edited_size_by_node() -> None:
    """It does not know the earlier size, so the arriving guest counts with at most its node's total."""
    fleet = SleepingFleet(node(), node("n2"), sleeper("a", amount(64)), vm_pod("a", "n1"), target_pod("n2"))
    assert on_both(fleet) == (REQUESTS, amount(9))


def test_two_vms_do_not_share_the_room() -> None:
    fleet = SleepingFleet(
        node(), node("n2", 6), sleeper("a", amount(3)), sleeper("b", amount(3)), vm_pod("a", "n1"), vm_pod("b", "n1")
    )
    fleet.did(fleet.ledger.apply(MoveRequested(MOVE, ONE), LATER).effects)
    other = replace(MOVE, vm=name("b"), uid="uid-b")
    assert fleet.ledger.apply(MoveRequested(other, name("b-1")), LATER).verdict is not FITS
