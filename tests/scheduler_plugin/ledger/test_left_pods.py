"""A VM has moved, and its old pod remains because its kubelet is dead: the pod keeps its room and bounds nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.messages import AgentRequest
from scheduler_plugin.ledger.events import (
    Listed,
    MigrationGone,
    MigrationSeen,
    NodeGone,
    PermitRequested,
    PodGone,
    PodSeen,
    VmSeen,
)
from scheduler_plugin.ledger.facts import MigrationFacts, PodFacts
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.ledger.outcomes import NotReadyError, PersistPermit
from tests.scheduler_plugin.ledger.fleet import LATER, NOW, Fleet, amount, migration, name, node, plain_pod, vm, vm_pod
from tests.scheduler_plugin.ledger.moving import DONE, PENDING, STARTED, on_both, target_pod, two_nodes

HOME = target_pod("n2", owner=None)
SOURCE = vm_pod("a", "n1")
LEAVING = replace(SOURCE, is_terminating=True)


def moved(*, total: float = 20, size: float = 2) -> Fleet:
    """``a`` has moved from n1 to n2; its source pod still exists."""
    fleet = two_nodes(total=total)
    fleet.apply(PodSeen(HOME))
    fleet.apply(MigrationSeen(DONE), LATER)
    known = vm("a", amount(size), version=9, pod=HOME.name)
    fleet.vms[name("a")] = known
    fleet.apply(VmSeen(known), LATER)
    return fleet


def stopped(fleet: Fleet, version: int = 10) -> None:
    """The guest has ended in the target pod. The VM runs in no pod until it gets a new one."""
    fleet.apply(VmSeen(vm("a", amount(2), permit=amount(2), version=version)), LATER)


def restarted(
    *pods: PodFacts, pod: PodFacts | None, permit: float, moves: tuple[MigrationFacts, ...] = (DONE,)
) -> Fleet:
    """A scheduler that starts after ``a`` has moved away from n1, and was permitted more than n1 has room for."""
    known = vm("a", amount(2), permit=amount(permit), pod=None if pod is None else pod.name)
    fleet = Fleet(node())
    nodes, neighbour = (node(), node("n2", 20)), plain_pod("other", amount(6), "n1")
    ledger, fleet.vms = Ledger(), {known.name: known}
    fleet.ledger = ledger
    fleet.apply(Listed(nodes, (SOURCE, neighbour, *pods), [known], moves), NOW)
    return fleet


def asked(fleet: Fleet, cpu: float) -> float:
    """CPUs that the agent in the target gets, with as much memory."""
    request = fleet.ledger.apply(PermitRequested("uid-t", AgentRequest(HOME.name, amount(cpu), None)), LATER)
    fleet.did(request.effects)
    fleet.store(request)
    return request.permit.cpu.as_cores


def test_vm_grows_beyond_what_its_old_node_has() -> None:
    fleet = moved()
    assert asked(fleet, 16) == 16
    assert on_both(fleet) == (2, 16)


def test_old_node_that_is_gone_bounds_nothing() -> None:
    fleet = moved()
    fleet.apply(NodeGone("n1"))
    assert asked(fleet, 16) == 16


def test_left_pod_stays_left_after_migration_is_deleted() -> None:
    fleet = moved()
    fleet.apply(MigrationGone(name("a-1")))
    assert (asked(fleet, 16), on_both(fleet)) == (16, (2, 16))


def test_deleting_pod_is_reported() -> None:
    """A restarted scheduler finds the VM in its target, and the source with a deletion timestamp."""
    fleet = Fleet(node(), node("n2", 20), vm("a", amount(2), pod=HOME.name), LEAVING, HOME)
    assert (asked(fleet, 16), on_both(fleet)) == (16, (2, 16))


def test_pod_without_a_sign_bounds_growth_as_any() -> None:
    """It may be one that is to come: its guest would start with all that the VM has."""
    fleet = Fleet(node(), node("n2", 20), vm("a", amount(2), pod=HOME.name), SOURCE, HOME)
    assert (asked(fleet, 16), on_both(fleet)) == (9, (9, 9))


def test_vm_ended_elsewhere_is_not_back() -> None:
    """It grows again before the deletion of its new pod is seen."""
    fleet = moved()
    fleet.apply(PodSeen(plain_pod("other", amount(7), "n1")))
    assert asked(fleet, 16) == 16
    stopped(fleet)
    assert on_both(fleet) == (9, 16)
    assert fleet.ledger.nodes["n1"].overcommit == amount(0)
    fleet.apply(PodGone(HOME.uid))
    assert on_both(fleet) == (9, 0)


def test_agent_in_the_old_pod_is_not_answered() -> None:
    """It may not know yet that its guest has gone."""
    fleet = moved()
    stopped(fleet)
    with pytest.raises(NotReadyError, match="has left pod db/a-pod"):
        fleet.ledger.apply(PermitRequested(SOURCE.uid, AgentRequest(SOURCE.name, amount(3), None)), LATER)


def test_restart_fits_the_old_pod_beside_its_neighbours() -> None:
    """Its former size is unknown, but it fitted."""
    fleet = restarted(HOME, pod=HOME, permit=16)
    assert on_both(fleet) == (9, 16)
    assert fleet.ledger.nodes["n1"].overcommit == amount(0)


def test_restart_fits_pod_of_deleted_migration() -> None:
    """If its node has room for all that the VM has, it may be a pod that is to come."""
    fleet = restarted(HOME, pod=HOME, permit=16, moves=())
    assert on_both(fleet) == (9, 16)
    assert asked(fleet, 18) == 18
    assert on_both(restarted(HOME, pod=HOME, permit=3, moves=())) == (9, 3)


def test_restart_counts_a_target_in_full() -> None:
    """Its guest comes there with all that it has."""
    fleet = restarted(target_pod("n1"), pod=SOURCE, permit=3, moves=(STARTED,))
    assert (fleet.ledger.claims["uid-t"].reserved, fleet.ledger.claims["uid-t"].left_with) == (amount(3), None)


def test_restart_takes_back_old_pods_permit() -> None:
    """The guest has ended in its new pod, too; the next one starts with what the VM asks for."""
    fleet = restarted(pod=None, permit=16)
    assert on_both(fleet) == (9, 0)
    assert fleet.ledger.vms[name("a")].reserved == amount(16)
    fleet.apply(VmSeen(vm("a", amount(2), permit=amount(2), version=11)), LATER)
    assert fleet.ledger.vms[name("a")].reserved == amount(2)


def test_old_pod_of_restarted_vm_bounds_nothing() -> None:
    fleet = restarted(pod=None, permit=2)
    new = vm_pod("a", "n2", "uid-new")
    fleet.apply(PodSeen(replace(new, name=name("a-new"))))
    fleet.apply(VmSeen(vm("a", amount(6), permit=amount(2), version=12)), LATER)
    assert on_both(fleet) == (8, 6)


def test_room_is_free_once_the_pod_is_gone() -> None:
    fleet = moved()
    fleet.apply(PodGone(SOURCE.uid))
    assert on_both(fleet) == (0, 2)


@pytest.mark.parametrize("requests", [0.1, 3])
def test_keeps_size_at_least_requests(requests: float) -> None:
    fleet = moved()
    fleet.apply(PodSeen(replace(SOURCE, requests=amount(requests))))
    assert on_both(fleet) == (max(2, requests), 2)
    floors = fleet.ledger.explain(SOURCE.uid, LATER).floors
    assert floors["size of the VM when it left this pod"] == amount(2)


def test_returned_vm_is_bounded_by_pod() -> None:
    """The store was restored to a time before the move."""
    fleet = moved()
    asked(fleet, 16)
    fleet.apply(VmSeen(vm("a", amount(2), version=99, pod=SOURCE.name)), LATER)
    assert fleet.ledger.claims[SOURCE.uid].left_with is None


def test_returning_vm_has_own_room() -> None:
    fleet = moved()
    back = replace(migration("a", PENDING, to="n1", number=2), source_pod=HOME.name)
    fleet.apply(MigrationSeen(back), LATER)
    assert on_both(fleet) == (4, 2)


def test_take_back_ignores_old_pod() -> None:
    """The VM's own pod was deleted, and its agent with it."""
    fleet = moved()
    asked(fleet, 16)
    orders = fleet.apply(PodGone(HOME.uid))
    assert [order.permit for order in orders if isinstance(order, PersistPermit)] == [amount(2)]


def test_former_runner_counts_requests() -> None:
    backup = PodFacts("uid-b", name("backup"), amount(1), name("a"), "n1", vm_uid="a-first", has_runner=False)
    fleet = Fleet(node(), node("n2"), vm("a", amount(6), pod=HOME.name), replace(HOME, vm_uid="a-first"), backup)
    fleet.apply(MigrationSeen(replace(DONE, source_pod=backup.name)), LATER)
    assert on_both(fleet) == (6, 6)
    fleet.apply(MigrationGone(name("a-1")))
    assert on_both(fleet) == (1, 6)


def test_growth_spares_neighbours_room() -> None:
    fleet = moved()
    fleet.apply(PodSeen(plain_pod("other", amount(7), "n1")))
    assert asked(fleet, 16) == 16
    assert fleet.ledger.nodes["n1"].overcommit == amount(0)
