"""A sleeping VM reserves nothing, and is granted either all that it needs to wake or nothing (B.18)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from protocol.guest.sleep import ASLEEP, WAKING
from protocol.units import ZERO, Instant
from scheduler_plugin.ledger.accounts.denials import NO_DENIALS
from scheduler_plugin.ledger.events import (
    BindRequested,
    Listed,
    MigrationSeen,
    PermitWritten,
    PodSeen,
    TimePassed,
    VmSeen,
    WriteOutcome,
)
from scheduler_plugin.ledger.facts import MigrationPhase, PodFacts
from scheduler_plugin.ledger.outcomes import PersistPermit
from scheduler_plugin.placement.verdict import FITS
from tests.scheduler_plugin.ledger.fleet import LATER, NOW, amount, migration, name, node, plain_pod, vm, vm_pod
from tests.scheduler_plugin.ledger.moving import target_pod
from tests.scheduler_plugin.ledger.sleeping import SleepingFleet, sleeper, sleeping_fleet

REQUESTS = vm_pod("a").requests


def awake_vm() -> SleepingFleet:
    """A running VM with a permit for its size."""
    running = vm("a", amount(3), actual=amount(3), permit=amount(3), pod=name("a-pod"))
    return sleeping_fleet(node(), running)


def test_room_is_free_once_permit_is_given_up() -> None:
    """The phase alone frees nothing: the stored permit counts until a lower one is stored."""
    fleet = awake_vm()
    fleet.grant("a", amount(3), number=1)
    fleet.falls_asleep("a")
    assert fleet.reserved("a") == amount(3)
    decision = fleet.ask("a", ZERO, number=2)
    assert decision.permit == ZERO
    assert decision.persist is not None
    assert not decision.persist.before_answer
    assert fleet.reserved("a") == amount(3)
    fleet.store(decision)
    assert fleet.reserved("a") == REQUESTS
    assert fleet.ask("a", ZERO, number=3).persist is None


def test_guest_wakes_by_a_stored_permit_alone() -> None:
    """The reservation is made before any reader can see the permit."""
    fleet = sleeping_fleet(node(), sleeper("a", amount(3)))
    fleet.wakes("a")
    assert not fleet.is_woken("a")
    decision = fleet.ask("a", amount(3))
    assert decision.persist is not None
    assert decision.persist.before_answer
    assert fleet.reserved("a") == amount(3)
    fleet.store(decision)
    assert fleet.is_woken("a")
    assert fleet.reserved("a") == amount(3)


def test_kept_permit_wakes_at_once() -> None:
    fleet = awake_vm()
    fleet.falls_asleep("a")
    fleet.wakes("a")
    assert fleet.is_woken("a")


def test_late_request_lowers_no_waking_permit() -> None:
    """The controller may have read the permit already, so a restarted agent cannot lower it."""
    fleet = sleeping_fleet(node(), sleeper("a", amount(3)))
    fleet.wakes("a")
    fleet.asks_to_wake("a", number=1)
    fleet.gives_up("a", number=20_000)
    later = Instant(LATER + 60)
    fleet.apply(TimePassed(), later)
    fleet.gives_up("a", number=20_001, now=later)
    assert fleet.vms[name("a")].permit == amount(3)
    assert fleet.is_woken("a")
    assert fleet.reserved("a") == amount(3)


def test_lowering_is_dropped_once_the_vm_is_waking() -> None:
    """The write was ordered while the VM slept, and conflicted with a newer version of the object."""
    fleet = awake_vm()
    fleet.grant("a", amount(3), number=1)
    fleet.falls_asleep("a")
    order = fleet.ask("a", ZERO, number=2).persist
    assert order is not None
    assert fleet.ledger.is_write_needed(order)
    fleet.wakes("a")
    assert not fleet.ledger.is_write_needed(order)
    fleet.apply(PermitWritten(name("a"), order.revision, WriteOutcome.REFUSED, None, "not wanted"))
    assert fleet.reserved("a") == amount(3)
    assert fleet.is_woken("a")


@pytest.mark.parametrize("phase", [ASLEEP, WAKING])
def test_restarted_scheduler_keeps_what_is_stored(phase: str) -> None:
    fleet = sleeping_fleet(node(), sleeper("a", amount(3), phase, permit=amount(4)))
    assert fleet.reserved("a") == amount(4)
    fleet.gives_up("a", number=1, now=Instant(LATER + 60))
    kept = amount(3) if phase == WAKING else REQUESTS
    assert fleet.reserved("a") == kept


def test_restarted_scheduler_honours_no_claim_of_a_sleeper() -> None:
    """The guest does not wake without a stored permit, so its agent's claim of a former permit has no effect."""
    fleet = sleeping_fleet(
        node(), sleeper("a", amount(3), WAKING, permit=None), beside=(plain_pod("x", amount(8), "n1"),)
    )
    assert fleet.grant("a", amount(3), last_permit=amount(3)) == ZERO
    assert fleet.reserved("a") == REQUESTS


def test_guest_wakes_at_full_size_only() -> None:
    fleet = sleeping_fleet(node(), sleeper("a", amount(3)), beside=(plain_pod("x", amount(7), "n1"),))
    fleet.wakes("a")
    decision = fleet.ask("a", amount(3))
    assert decision.permit == ZERO
    assert decision.persist is not None
    # The first answer of this scheduler names the agent on the object, and no size.
    assert decision.persist.permit == ZERO
    assert fleet.ledger.claims["uid-a"].unmet == amount(3)
    assert fleet.ledger.claims["uid-a"].denial_cost == NO_DENIALS, "a waking VM moves by itself"


def test_lack_of_memory_alone_grants_no_cpu() -> None:
    fleet = sleeping_fleet(node(), sleeper("a", amount(3)), beside=(plain_pod("x", amount(1, 7), "n1"),))
    fleet.wakes("a")
    assert fleet.ask("a", amount(3)).permit == ZERO


def test_growth_leaves_room_to_waking_vms() -> None:
    """Freed room goes to the waking VM, although its neighbour asks first."""
    running = vm("b", amount(1), actual=amount(1), permit=amount(1), pod=name("b-pod"))
    beside = plain_pod("x", amount(6), "n1")
    fleet = sleeping_fleet(node(), running, sleeper("a", amount(3)), beside=(beside,))
    fleet.wakes("a")
    assert fleet.asks_to_wake("a").permit == ZERO
    assert fleet.grant("b", amount(4)) == amount(1)
    fleet.apply(PodSeen(replace(beside, finished=True)))
    assert fleet.grant("b", amount(8)) == amount(6) - REQUESTS
    assert fleet.asks_to_wake("a").permit == amount(3)


def test_new_pods_leave_room_to_waking_vms() -> None:
    fleet = sleeping_fleet(node(), sleeper("a", amount(3)), beside=(plain_pod("x", amount(6.5), "n1"),))
    fleet.wakes("a")
    fleet.asks_to_wake("a")
    assert fleet.ledger.filter(plain_pod("new", amount(1)), ["n1"]).fits == []
    assert fleet.ledger.nodes["n1"].pressure.capacity == amount(0.6, 0.5)


def test_vm_wakes_although_its_bounds_were_lowered() -> None:
    """Its guest has the size with which it fell asleep, and shrinks once it runs."""
    fleet = sleeping_fleet(node(), sleeper("a", amount(3)))
    fleet._becomes("a", LATER, maximum=amount(2))
    fleet.wakes("a")
    assert fleet.asks_to_wake("a").permit == amount(3)
    assert fleet.reserved("a") == amount(3)
    assert fleet.is_woken("a")


def test_no_room_for_sleeper_larger_than_node() -> None:
    fleet = sleeping_fleet(node(), sleeper("a", amount(12)))
    fleet.wakes("a")
    assert fleet.ask("a", amount(12)).permit == ZERO
    assert not fleet.ledger.nodes["n1"].unmet.any
    assert fleet.ledger.explain("uid-a", LATER).sleep == (
        "waking: waiting for a permit for 12 cpu, 12Gi: node n1 has only 9 cpu, 9Gi for all pods"
    )


def test_vm_that_wakes_asks_its_neighbours_to_give() -> None:
    """A neighbour that offers room learns of the shortage from the response to its next request."""
    running = vm("b", amount(6), actual=amount(6), permit=amount(6), pod=name("b-pod"))
    fleet = sleeping_fleet(node(), running, sleeper("a", amount(4)))
    fleet.wakes("a")
    assert fleet.asks_to_wake("a").permit == ZERO
    claim = fleet.ledger.claims["uid-b"]
    claim.offered = amount(3)
    assert fleet.ledger.nodes["n1"].unmet == amount(4)
    assert fleet.ledger.nodes["n1"].is_strained


def test_machine_that_has_booted_counts_no_arguments() -> None:
    """A scheduler that starts finds a sleeping VM whose pod was created for a larger size."""
    pod = replace(vm_pod("a", "n1"), boots_with=amount(5))
    fleet = SleepingFleet(node(), sleeper("a", amount(3)), pod)
    assert fleet.reserved("a") == REQUESTS


def test_vm_without_an_agent_counts_as_ever() -> None:
    """No agent requests a permit before it wakes, so it counts with the size in its object."""
    fleet = awake_vm()
    fleet.falls_asleep("a")
    fleet.gives_up("a")
    assert fleet.reserved("a") == REQUESTS
    old = fleet.vms[name("a")]
    fleet.vms[name("a")] = structs.replace(old, version=9, has_agent=False, use=amount(3), wakes_with=None)
    fleet.apply(VmSeen(fleet.vms[name("a")]))
    assert fleet.reserved("a") == amount(3)


def test_waking_vm_may_grow_before_it_moves() -> None:
    """Its migration waits for it to wake, so its permit must not wait for the migration. Both nodes must have room."""
    fleet = SleepingFleet(node(), node("n2"), sleeper("a", amount(3)), vm_pod("a", "n1"))
    fleet.apply(MigrationSeen(migration("a", MigrationPhase.PENDING, to="n2")))
    assert fleet.ledger.apply(BindRequested(target_pod(), "n2"), LATER).verdict is FITS
    assert fleet.ledger.claims["uid-a"].is_frozen
    fleet.wakes("a")
    decision = fleet.asks_to_wake("a")
    assert (decision.permit, decision.migrate) == (amount(3), False)
    assert (fleet.on("n1"), fleet.on("n2")) == (amount(3), amount(3))


def test_wait_for_permit_is_measured_from_first_request() -> None:
    beside: PodFacts = plain_pod("x", amount(7), "n1")
    fleet = sleeping_fleet(node(), sleeper("a", amount(3)), beside=(beside,))
    fleet.wakes("a")
    assert fleet.ask("a", amount(3), now=LATER).wakes_since is None
    fleet.apply(PodSeen(replace(beside, finished=True)))
    later = Instant(LATER + 5)
    decision = fleet.ask("a", amount(3), now=later)
    assert decision.wakes_since == LATER
    fleet.store(decision)
    assert fleet.ask("a", amount(3), now=later).wakes_since is None


def test_heartbeats_of_sleepers_wait_for_nothing() -> None:
    fleet = sleeping_fleet(node(), sleeper("a", amount(3)))
    fleet.gives_up("a", number=1)
    for number in range(2, 4):
        decision = fleet.ask("a", ZERO, number=number)
        assert (decision.permit, decision.wakes_since, decision.persist) == (ZERO, None, None)


def test_permit_of_a_deleted_pod_is_taken_back() -> None:
    """The pod of a sleeping VM may be deleted with its node; then no agent is left to give up the permit."""
    fleet = awake_vm()
    fleet.falls_asleep("a")
    fleet.apply(TimePassed(), NOW)
    effects = fleet.apply(PodSeen(replace(vm_pod("a", "n1"), finished=True)))
    assert [effect.permit for effect in effects if isinstance(effect, PersistPermit)] == [ZERO]


def test_counts_of_sleepers_are_known() -> None:
    fleet = sleeping_fleet(node(), sleeper("a", amount(3)), sleeper("b", amount(3), WAKING), vm("c", amount(1)))
    assert fleet.ledger.sleeping_vms == (1, 1)


def test_wake_without_agent_is_counted() -> None:
    """A sleeping VM's agent sends requests at intervals. If it is dead, the VM cannot wake."""
    fleet = sleeping_fleet(node(), sleeper("a", amount(3)), sleeper("b", amount(3)))
    fleet.gives_up("a", number=1)
    assert fleet.ledger.unattended_wakes(Instant(LATER + 61)) == 0
    fleet.wakes("a", now=Instant(LATER + 61))
    assert fleet.ledger.unattended_wakes(Instant(LATER + 60)) == 0
    assert fleet.ledger.unattended_wakes(Instant(LATER + 61)) == 1
    fleet.asks_to_wake("a", number=2, now=Instant(LATER + 61))
    assert fleet.ledger.unattended_wakes(Instant(LATER + 62)) == 0


def test_lists_taken_again_change_nothing() -> None:
    fleet = sleeping_fleet(node(), sleeper("a", amount(3)))
    fleet.apply(Listed([node()], [vm_pod("a", "n1")], fleet.vms.values()))
    assert fleet.reserved("a") == REQUESTS
    assert fleet.ledger.explain("uid-a", LATER).sleep == (
        "asleep: nothing is reserved for it; it needs 3 cpu, 3Gi to wake"
    )


def test_write_of_predecessor_may_wake_guest() -> None:
    """It was sent before that process ended, and may land until another version of the object is known."""
    fleet = sleeping_fleet(node(), sleeper("a", amount(3), WAKING), sleeper("b", amount(7)))
    assert fleet.reserved("a") == amount(3)
    fleet.wakes("b")
    assert fleet.asks_to_wake("b").permit == ZERO
    fleet.gives_up("a", number=1)
    assert fleet.reserved("a") == REQUESTS
    assert fleet.asks_to_wake("b").permit == amount(7)


def test_doubt_about_the_process_before_ends() -> None:
    """An agent that never sends a request must not keep the room."""
    fleet = sleeping_fleet(node(), sleeper("a", amount(3), WAKING))
    fleet.apply(TimePassed(), Instant(NOW + 20))
    assert fleet.reserved("a") == amount(3)
    fleet.apply(TimePassed(), Instant(NOW + 31))
    assert fleet.reserved("a") == REQUESTS


def test_doubt_is_no_larger_than_the_node() -> None:
    """The former process cannot have granted more than the node's total, even if the object requests more now."""
    fleet = sleeping_fleet(node(), sleeper("a", amount(64), WAKING))
    assert fleet.on("n1") == amount(9)
    assert fleet.asks_to_wake("a").permit == ZERO
    assert "only 9 cpu, 9Gi for all pods" in fleet.ledger.explain("uid-a", LATER).sleep
    fleet.apply(TimePassed(), Instant(NOW + 31))
    assert fleet.reserved("a") == REQUESTS


def test_doubts_grant_nothing_over_the_total() -> None:
    """After a fail-over all waking VMs count; each is granted as much as fits."""
    fleet = sleeping_fleet(node(), sleeper("a", amount(6), WAKING), sleeper("b", amount(6), WAKING))
    assert fleet.on("n1") == amount(12)
    assert [fleet.asks_to_wake(of, number=1).permit for of in "ab"] == [ZERO, amount(6)]
    assert fleet.asks_to_wake("a", number=2).permit == ZERO
    assert fleet.on("n1").within(amount(9))
