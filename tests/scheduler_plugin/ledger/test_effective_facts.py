"""Edits of a VM's object affect only that VM: its neighbours keep their size, and can grow (S4.5, S4.8)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from protocol.messages import AgentRequest
from protocol.units import ZERO, Instant, Resources
from scheduler_plugin.ledger.accounts.permit_state import SETTLE
from scheduler_plugin.ledger.events import (
    Listed,
    NodeGone,
    NodeSeen,
    PermitRequested,
    PodGone,
    PodSeen,
    TimePassed,
    VmGone,
    VmSeen,
)
from scheduler_plugin.ledger.facts import VmFacts
from scheduler_plugin.ledger.invariants import violations
from scheduler_plugin.ledger.outcomes import LedgerError
from tests.scheduler_plugin.ledger.fleet import LATER, NOW, Fleet, amount, name, node, plain_pod, vm, vm_pod

HUGE = amount(1000)


def neighbours(**mine: object) -> Fleet:
    """Two VMs of 2 on a node of 9."""
    fleet = Fleet(node(), known(**mine), vm("b", amount(2), actual=amount(2)), vm_pod("a", "n1"), vm_pod("b", "n1"))
    fleet.grant("a", amount(2), number=1)
    fleet.grant("b", amount(2), number=1)
    return fleet


def known(**changes: object) -> VmFacts:
    return structs.replace(vm("a", amount(2), actual=amount(2), pod=name("a-pod")), **changes)


def edit(fleet: Fleet, **changes: object) -> None:
    """A user edits VM a."""
    old = fleet.vms[name("a")]
    fleet.vms[name("a")] = structs.replace(old, version=old.version + 1, **changes)
    fleet.apply(VmSeen(fleet.vms[name("a")]), LATER)


EDITS = {
    "use and maximum above the node": {"use": HUGE, "maximum": HUGE},
    "use above the room": {"use": amount(8)},
    "use of one resource": {"use": amount(2, 1000), "maximum": HUGE},
    "what another scheduler granted": {"granted": HUGE, "maximum": HUGE},
    "an object that cannot be read": {"unreadable": "spec: garbage", "is_bounded": False, "use": amount(2)},
    "one that cannot be read and is huge": {"unreadable": "spec: garbage", "use": HUGE, "maximum": HUGE},
    "a maximum alone": {"maximum": HUGE},
}


@pytest.mark.parametrize("changes", EDITS.values(), ids=EDITS)
def test_an_edit_beyond_the_room_blocks_no_neighbour(changes: dict[str, object]) -> None:
    """Even if the edit is repeated between the requests of both agents."""
    fleet = neighbours()
    for number in range(2, 6):
        edit(fleet, has_agent=False, use=amount(8))
        assert fleet.on("n1").within(amount(2 + number))
        assert not fleet.ledger.nodes["n1"].overcommit.any
        assert fleet.grant("b", amount(number + 1), number=number) == amount(number + 1)
        assert not fleet.ledger.nodes["n1"].unmet.any


def test_edited_growth_is_denied() -> None:
    """Its agent must request the size that the object says its VM has."""
    fleet = neighbours()
    edit(fleet, use=HUGE, maximum=HUGE)
    assert fleet.grant("a", HUGE, number=2) == amount(2)
    assert fleet.ledger.nodes["n1"].unmet == ZERO
    assert fleet.ledger.claims["uid-a"].reserved == amount(2)


def test_reverted_edit_allows_growth() -> None:
    fleet = neighbours()
    edit(fleet, use=HUGE, maximum=HUGE)
    edit(fleet, use=amount(2), maximum=amount(4))
    assert fleet.grant("a", amount(6), number=2) == amount(4)


def test_deferred_need_counts_with_room() -> None:
    """Its object need not change again: the agent's next request finds the room."""
    fleet = neighbours()
    fleet.apply(PodSeen(plain_pod("c", amount(4), "n1")))
    edit(fleet, use=amount(4))
    assert fleet.grant("a", amount(4), number=2) == amount(2)
    fleet.apply(PodGone("uid-c"))
    assert fleet.grant("a", amount(5), number=3) == amount(5)


def test_an_edit_within_the_room_counts_at_once() -> None:
    fleet = neighbours()
    edit(fleet, use=amount(6))
    assert fleet.on("n1") == amount(8)
    edit(fleet, use=amount(7))
    assert fleet.on("n1") == amount(9)
    assert fleet.grant("b", amount(3), number=2) == amount(2)


def test_unknown_guest_counts_requested_size() -> None:
    fleet = neighbours()
    edit(fleet, actual=None, use=amount(8))
    assert fleet.on("n1") == amount(10)
    assert fleet.grant("b", amount(3), number=2) == amount(2)
    edit(fleet, use=HUGE, maximum=HUGE)
    assert fleet.on("n1") == amount(10)


@pytest.mark.parametrize(
    ("status", "reserved"),
    [(HUGE, amount(6)), (amount(1000, 2), amount(6, 2)), (amount(6, 2), amount(6, 2)), (amount(1), amount(1))],
    ids=str,
)
def test_unreadable_vm_counts_as_maximum_despite_status(status: Resources, reserved: Resources) -> None:
    """``use`` is the largest size in its object: a status larger than the node does not hide the maximum."""
    fleet = neighbours()
    edit(fleet, unreadable="spec: garbage", actual=None, use=status, maximum=amount(6))
    assert fleet.ledger.claims["uid-a"].reserved == reserved.at_least(amount(2))


def test_guestless_vm_takes_no_missing_room() -> None:
    """For example a VM that never boots."""
    fleet = neighbours()
    edit(fleet, actual=None, phase="Pending", use=amount(8))
    assert fleet.grant("b", amount(3), number=2) == amount(3)


def test_resources_are_judged_apart() -> None:
    fleet = neighbours()
    edit(fleet, use=amount(1000, 4), maximum=HUGE)
    assert fleet.ledger.claims["uid-a"].reserved == amount(2, 4)
    assert fleet.grant("a", amount(1000, 6), number=2) == amount(2, 6)


def test_guest_size_counts_whoever_ordered() -> None:
    fleet = neighbours()
    edit(fleet, use=amount(8), actual=amount(8))
    assert fleet.on("n1") == amount(10)
    edit(fleet, use=HUGE, actual=amount(12), maximum=HUGE)
    assert fleet.on("n1") == amount(14)


@pytest.mark.parametrize(("maximum", "counted"), [(amount(4), amount(4)), (amount(1), amount(2)), (HUGE, amount(9))])
def test_stored_permit_is_capped(maximum: Resources, counted: Resources) -> None:
    """Without the policy that reserves the annotation for the scheduler, anyone who may edit the VM may write it."""
    fleet = neighbours()
    edit(fleet, permit=HUGE, maximum=maximum)
    assert fleet.ledger.claims["uid-a"].reserved == counted


def test_permit_without_place_does_not_count() -> None:
    fleet = Fleet(node())
    fleet.apply(VmSeen(known(permit=HUGE, maximum=amount(4), actual=None)), NOW)
    assert fleet.ledger.claim_of(vm_pod("a")).within(amount(4))
    fleet.apply(VmSeen(known(permit=HUGE, maximum=amount(4), actual=None, version=2)), NOW)
    assert fleet.ledger.claim_of(vm_pod("a")).within(amount(4))
    fleet.apply(PodSeen(vm_pod("a", "unknown")))
    fleet.apply(VmSeen(known(permit=HUGE, maximum=amount(5), actual=None, version=3)), NOW)
    assert fleet.ledger.claims["uid-a"].reserved == amount(5)


def test_unplaced_vm_asks_for_all() -> None:
    fleet = Fleet(node())
    fleet.apply(VmSeen(known(use=HUGE, maximum=HUGE, actual=None)), NOW)
    assert fleet.ledger.claim_of(vm_pod("a")) == HUGE


@pytest.mark.parametrize("pod", [name("a-pod"), None])
def test_rebuild_is_capped_by_node(pod: object) -> None:
    """A user edits the VM during a restart."""
    mine = known(use=HUGE, maximum=HUGE, permit=HUGE, pod=pod)
    fleet = Fleet(node(), mine, vm("b", amount(2)), vm_pod("a", "n1"), vm_pod("b", "n1"))
    assert fleet.ledger.claims["uid-a"].reserved == amount(9)


def test_rebuild_counts_permit_before_shrink() -> None:
    """Its agent may still hold it."""
    fleet = Fleet(node("n1", total=4), node("n2"), known(permit=amount(7)), vm_pod("a", "n1"))
    assert fleet.ledger.claims["uid-a"].reserved == amount(7)


@pytest.mark.parametrize(
    ("capacity", "counted"), [(amount(0), amount(3)), (amount(8), amount(7)), (amount(6), amount(6))]
)
def test_rebuild_counts_permit_before_all_shrank(capacity: Resources, counted: Resources) -> None:
    """The system reserve of every node was raised: allocatable shrank, capacity did not."""
    shrunk = replace(node("n1", total=4), capacity=capacity)
    fleet = Fleet(shrunk, known(permit=amount(7), use=amount(7)), vm_pod("a", "n1"))
    assert fleet.ledger.claims["uid-a"].reserved == counted


def test_permit_counts_after_node_shrank() -> None:
    """Another scheduler may have granted it."""
    fleet = neighbours()
    fleet.apply(NodeSeen(replace(node(total=4), capacity=amount(10))))
    edit(fleet, permit=amount(7))
    assert fleet.ledger.claims["uid-a"].reserved == amount(7)


def test_a_rebuild_counts_what_the_guest_has() -> None:
    mine = known(use=HUGE, maximum=HUGE)
    fleet = Fleet(node(), mine, vm("b", amount(2)), vm_pod("a", "n1"), vm_pod("b", "n1"), plain_pod("c", ZERO))
    assert fleet.on("n1") == amount(4)
    assert fleet.grant("b", amount(5), number=1) == amount(5)


def test_foreign_pod_counts_within_node() -> None:
    fleet = Fleet(node(), vm("b", amount(2)), vm_pod("b", "n1"))
    fleet.apply(VmSeen(known(use=HUGE, maximum=HUGE)), LATER)
    fleet.apply(PodSeen(vm_pod("a", "n1")))
    assert fleet.on("n1") == amount(4)
    fleet.apply(PodSeen(vm_pod("a", "n2", "uid-a2")))
    assert fleet.ledger.claims["uid-a2"].reserved == amount(2)


def test_overhead_is_not_guest_size() -> None:
    around = replace(vm_pod("a", "n1"), requests=amount(1), overhead=amount(1))
    fleet = Fleet(node(), known(), around)
    edit(fleet, permit=HUGE, maximum=HUGE)
    assert fleet.on("n1") == amount(9)


def test_successor_vm_is_judged_by_own_room() -> None:
    fleet = neighbours()
    fleet.apply(VmSeen(known(uid="a-second", version=9, use=HUGE, maximum=HUGE, actual=None)), LATER)
    assert fleet.ledger.claims["uid-a"].reserved == amount(2)
    assert fleet.ledger.claim_of(vm_pod("a", uid="new")) == HUGE


def test_two_pods_share_node_room() -> None:
    """For example while the VM migrates within its node: its growth is reserved twice there."""
    fleet = neighbours()
    fleet.apply(PodSeen(vm_pod("a", "n1", "uid-a2")))
    edit(fleet, use=amount(4))
    assert fleet.ledger.claims["uid-a"].reserved == amount(2)
    edit(fleet, use=amount(3))
    assert fleet.ledger.claims["uid-a"].reserved == amount(3)


def test_grant_before_shrink_counts() -> None:
    fleet = neighbours()
    fleet.grant("a", amount(7), number=2)
    fleet.apply(NodeSeen(node(total=4)))
    edit(fleet, maximum=amount(5))
    assert fleet.ledger.claims["uid-a"].reserved == amount(7)


def test_unnamed_pod_counts_within_node() -> None:
    """It may boot a new machine with the spec's size. Anyone who may create pods may name the VM as their owner."""
    fleet = neighbours()
    edit(fleet, after_restart=amount(4))
    fleet.apply(NodeSeen(node("n2")))
    fleet.apply(PodSeen(replace(vm_pod("a", "n2", "uid-a2"), name=name("a-other"))))
    assert fleet.ledger.claims["uid-a2"].reserved == amount(4)
    edit(fleet, after_restart=HUGE)
    assert fleet.ledger.claims["uid-a2"].reserved.within(amount(4))
    assert fleet.ledger.claims["uid-a"].reserved == amount(2)


def test_nor_when_it_is_seen_after_the_edit() -> None:
    fleet = Fleet(node(), node("n2"), known())
    fleet.apply(VmSeen(known(after_restart=HUGE, version=2)), LATER)
    fleet.apply(PodSeen(vm_pod("a", "n1")))
    fleet.apply(PodSeen(replace(vm_pod("a", "n2", "uid-a2"), name=name("a-other"))))
    assert fleet.ledger.claims["uid-a2"].reserved.within(amount(9))


def test_a_deleted_vm_is_not_judged_again() -> None:
    """Its agent may send requests until its pod is deleted; then no state of the VM remains."""
    fleet = neighbours()
    edit(fleet, use=HUGE, maximum=HUGE)
    fleet.apply(VmGone(name("a")))
    fleet.ask("a", HUGE, number=2)
    fleet.apply(PodGone("uid-a"))
    assert name("a") not in fleet.ledger.vms


def test_replaced_vms_request_does_not_count() -> None:
    """Another VM has taken its name, and its agent still sends requests."""
    fleet = neighbours()
    edit(fleet, use=HUGE, maximum=HUGE)
    fleet.apply(VmSeen(known(uid="a-second", version=9, actual=None, pod=None)), LATER)
    assert fleet.ask("a", HUGE, number=2).permit == amount(2)
    assert fleet.ledger.claims["uid-a"].reserved == amount(2)


def test_successor_pod_counts_within_node() -> None:
    fleet = neighbours()
    pod = replace(vm_pod("a", "n1", "uid-a2"), name=name("a-other"), vm_uid="a-second")
    fleet.apply(PodSeen(pod))
    second = known(uid="a-second", version=9, use=HUGE, maximum=HUGE, permit=HUGE, actual=None, pod=pod.name)
    fleet.apply(VmSeen(second), LATER)
    assert fleet.ledger.claims["uid-a2"].reserved.within(amount(9))


@pytest.mark.parametrize("maximum", [HUGE, amount(4)])
def test_foreign_vm_permit_does_not_count(maximum: Resources) -> None:
    fleet = Fleet(node(), vm("b", amount(2)), vm_pod("b", "n1"))
    fleet.apply(VmSeen(known(permit=HUGE, maximum=maximum, actual=None)), LATER)
    fleet.apply(PodSeen(vm_pod("a", "n1")))
    assert fleet.ledger.claims["uid-a"].reserved == amount(9).at_most(maximum)


@pytest.mark.parametrize("is_relisted", [False, True])
def test_edit_without_node_blocks_no_other_vm(is_relisted: bool) -> None:
    """While the node is unknown, nothing bounds its VMs' sizes. It has only been registered again."""
    fleet = neighbours()
    fleet.apply(NodeGone("n1"))
    edit(fleet, use=HUGE, maximum=HUGE, granted=HUGE, permit=HUGE)
    if is_relisted:
        fleet.apply(Listed([node()], [vm_pod("a", "n1"), vm_pod("b", "n1")], fleet.vms.values()), LATER)
    else:
        fleet.apply(NodeSeen(node()))
    assert fleet.ledger.claims["uid-a"].reserved.within(amount(9))
    edit(fleet, permit=None, granted=ZERO)
    fleet.grant("a", amount(2), number=2)
    assert fleet.grant("b", amount(7), number=2) == amount(7)


def test_request_while_the_node_is_gone_changes_nothing() -> None:
    fleet = neighbours()
    edit(fleet, use=HUGE, maximum=HUGE)
    fleet.apply(NodeGone("n1"))
    assert fleet.ask("a", HUGE, number=2).permit == amount(2)
    fleet.apply(NodeSeen(node()))
    assert fleet.ledger.claims["uid-a"].reserved == amount(2)


@pytest.mark.parametrize("actual", [None, amount(2)])
def test_vm_seen_before_node_is_bounded_by_it(actual: Resources | None) -> None:
    fleet = Fleet()
    fleet.apply(PodSeen(vm_pod("a", "n1")))
    fleet.apply(VmSeen(known(use=HUGE, maximum=HUGE, actual=actual)), LATER)
    fleet.apply(NodeSeen(node()))
    assert fleet.ledger.claims["uid-a"].reserved == amount(9)


def test_new_node_leaves_what_its_vms_had() -> None:
    """It is registered again with less room; its VM has two pods, one of which counts as before."""
    fleet = Fleet(node(), known(use=amount(7), actual=amount(7)), vm_pod("a", "n1"), plain_pod("c", amount(1), "n1"))
    for each in (node(total=4), node()):
        fleet.apply(NodeGone("n1"))
        fleet.apply(NodeSeen(each))
        assert fleet.ledger.claims["uid-a"].reserved == amount(7)
    fleet.apply(PodSeen(vm_pod("a", "n2", "uid-a2")))
    fleet.apply(NodeSeen(node("n2", total=5)))
    assert fleet.ledger.claims["uid-a2"].reserved == amount(7)


@pytest.mark.parametrize("use", [HUGE, amount(9), amount(8)], ids=str)
def test_forged_permit_makes_no_room_for_use(use: Resources) -> None:
    """It counts until it is corrected; after that, the size in the object does not count either."""
    fleet = neighbours()
    edit(fleet, use=use, maximum=HUGE, permit=HUGE)
    assert fleet.ledger.claims["uid-a"].reserved == amount(9)
    fleet.apply(TimePassed(), Instant(LATER + SETTLE))
    assert fleet.grant("a", amount(2), number=2, now=Instant(LATER + SETTLE)) == amount(2)
    assert fleet.ledger.claims["uid-a"].reserved == amount(2)
    assert fleet.grant("b", amount(7), number=2) == amount(7)


def test_use_by_unheard_agent_stays_reserved() -> None:
    """The previous process granted it, and its response arrives late. There is no room for it, and the guest does not
    have it yet.
    """
    fleet = neighbours()
    edit(fleet, use=amount(8), permit=amount(8))
    late = Instant(LATER + SETTLE)
    assert fleet.apply(TimePassed(), late) == ()
    assert fleet.ledger.claims["uid-a"].reserved == amount(8)
    assert fleet.grant("a", amount(8), number=2, last_permit=amount(8), now=late) == amount(8)
    assert fleet.ledger.vms[name("a")].held == amount(8)


@pytest.mark.parametrize("is_registered_late", [False, True])
def test_pod_on_an_unknown_node_lifts_no_bound(is_registered_late: bool) -> None:
    """Users who may create pods may name any node in them."""
    nodes = () if is_registered_late else (node(),)
    fleet = Fleet(*nodes, vm("b", amount(2)), vm_pod("b", "n1"))
    fleet.apply(VmSeen(known(use=HUGE, maximum=HUGE, granted=HUGE, actual=None, pod=None)), LATER)
    fleet.apply(PodSeen(vm_pod("a", "nowhere", "uid-a1")))
    fleet.apply(PodSeen(vm_pod("a", "n1", "uid-a2")))
    fleet.apply(NodeSeen(node()))
    assert fleet.ledger.claims["uid-a2"].reserved.within(amount(9))


@pytest.mark.parametrize("runs_in", ["other-pod", "a-pod"])
def test_refused_request_leaves_the_room_published(runs_in: str) -> None:
    """Room for an object's size became free and was reserved but not published, so a bind could take it too."""
    fleet = Fleet(node(), known(), vm_pod("a", "n1"), plain_pod("b", amount(5), "n1"))
    fleet.grant("a", amount(2), number=1)
    edit(fleet, use=amount(8), pod=name(runs_in))
    fleet.apply(PodGone("uid-b"), LATER)
    stranger = "" if runs_in == "other-pod" else "uid-of-another-agent"
    with pytest.raises(LedgerError):
        fleet.ledger.apply(PermitRequested("uid-a", AgentRequest(name("a-pod"), amount(2), None), stranger), LATER)
    assert violations(fleet.ledger) == []


def test_freed_room_counts_without_agent() -> None:
    """No agent sends requests for such a VM, and its guest may use all of its size."""
    fleet = Fleet(node(), known(), vm_pod("a", "n1"), plain_pod("b", amount(5), "n1"))
    edit(fleet, has_agent=False, use=amount(8))
    assert fleet.reserved("a") == amount(2)  # whole or not at all
    fleet.apply(PodGone("uid-b"), LATER)
    fleet.apply(TimePassed(), LATER)
    assert fleet.reserved("a") == amount(8)
