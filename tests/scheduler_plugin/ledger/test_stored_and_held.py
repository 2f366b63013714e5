"""The stored permit, the permits that agents hold, and the granted one are separate facts (see ``permit_account``)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from protocol.units import Instant, Resources
from scheduler_plugin.ledger.accounts.permit_account import RESTORE_INTERVAL, PermitAccount
from scheduler_plugin.ledger.accounts.permit_state import SETTLE
from scheduler_plugin.ledger.events import PermitWritten, PodSeen, StoreRestored, TimePassed, VmSeen, WriteOutcome
from scheduler_plugin.ledger.invariants import overcommitted
from scheduler_plugin.ledger.outcomes import PersistPermit
from tests.scheduler_plugin.ledger.fleet import (
    LATER,
    NOW,
    Fleet,
    amount,
    name,
    node,
    permit_stored,
    plain_pod,
    vm,
    vm_pod,
)


def two_vms() -> Fleet:
    """``a`` and ``b`` have 2 each, on a node with room for 10."""
    vms = (vm("a", amount(2), permit=amount(2)), vm("b", amount(2), permit=amount(2)))
    fleet = Fleet(node(total=11), *vms, vm_pod("a", "n1"), vm_pod("b", "n1"))
    for each in ("a", "b"):
        fleet.grant(each, amount(2), number=1, now=Instant(NOW + SETTLE))
    return fleet


def edited(fleet: Fleet, of: str, permit: Resources | None, *, now: Instant = LATER) -> tuple[object, ...]:
    """Another writer stores ``permit`` on the VM, and the watch shows it."""
    old = fleet.vms[name(of)]
    fleet.vms[old.name] = replace(old, version=old.version + 1, permit=permit)
    return fleet.apply(VmSeen(fleet.vms[old.name]), now)


def test_predecessors_late_write_is_reserved_only() -> None:
    fleet = two_vms()
    assert fleet.grant("b", amount(8), number=2) == amount(8)
    assert edited(fleet, "a", amount(8)) == ()
    assert (fleet.on("n1"), overcommitted(fleet.ledger)) == (amount(16), {"n1": amount(6)})
    assert fleet.grant("a", amount(8), number=2, last_permit=amount(2)) == amount(2)
    assert fleet.on("n1") == amount(10)
    assert fleet.grant("b", amount(8), number=3, last_permit=amount(8)) == amount(8)


def test_one_resource_may_be_scarce_alone() -> None:
    fleet = two_vms()
    fleet.grant("b", amount(8, 2), number=2)
    edited(fleet, "a", amount(8))
    assert fleet.ask("a", amount(8, 8), number=2, last_permit=amount(2)).permit == amount(2, 8)


def test_edited_permit_is_granted_within_room() -> None:
    fleet = two_vms()
    fleet.grant("b", amount(5), number=2)
    edited(fleet, "a", amount(8))
    assert fleet.ask("a", amount(8), number=2, last_permit=amount(2)).permit == amount(5)


def test_successor_keeps_late_writes_and_holders_apart() -> None:
    """The write landed before the next scheduler listed the cluster, so only the agents know who got a response."""
    vms = (vm("a", amount(2), permit=amount(8)), vm("b", amount(2), permit=amount(8)))
    fleet = Fleet(node(total=11), *vms, vm_pod("a", "n1"), vm_pod("b", "n1"))
    assert fleet.grant("b", amount(8), number=1, last_permit=amount(8), now=NOW) == amount(8)
    assert fleet.grant("a", amount(8), number=1, last_permit=amount(2), now=NOW) == amount(2)
    assert fleet.on("n1") == amount(16)
    after = Instant(NOW + SETTLE)
    assert fleet.grant("a", amount(8), number=2, last_permit=amount(2), now=after) == amount(2)
    assert fleet.on("n1") == amount(10)


def test_overcommitted_node_keeps_named_size() -> None:
    fleet = two_vms()
    fleet.grant("b", amount(8), number=2)
    fleet.apply(PodSeen(plain_pod("foreign", amount(4), "n1")))
    assert fleet.grant("b", amount(9), number=3, last_permit=amount(8)) == amount(8)
    assert fleet.grant("b", amount(9), number=4, last_permit=amount(99)) == amount(8)


def test_unanswered_permit_gets_no_room_that_others_took() -> None:
    fleet = two_vms()
    lost = fleet.ask("a", amount(8), number=2, last_permit=amount(2))
    assert lost.persist is not None
    fleet.apply(PermitWritten(name("a"), lost.persist.revision, WriteOutcome.UNKNOWN))
    fleet.apply(PodSeen(plain_pod("foreign", amount(3), "n1")))
    assert fleet.ask("a", amount(8), number=3, last_permit=amount(2)).permit == amount(5)


def test_removed_permit_is_written_again_at_once() -> None:
    fleet = two_vms()
    fleet.grant("a", amount(4), number=2)
    (order,) = edited(fleet, "a", None)
    assert isinstance(order, PersistPermit)
    assert order.permit == amount(4)


def test_permit_fight_does_not_fill_queue() -> None:
    fleet = two_vms()
    (order,) = edited(fleet, "a", amount(1))
    assert isinstance(order, PersistPermit)
    fleet.apply(PermitWritten(name("a"), order.revision, WriteOutcome.REFUSED, why="403: no"))
    assert edited(fleet, "a", None) == ()
    assert len(edited(fleet, "a", amount(1), now=Instant(LATER + RESTORE_INTERVAL))) == 1


def test_raised_permit_of_a_silent_agent_is_lowered() -> None:
    fleet = two_vms()
    edited(fleet, "a", amount(8))
    assert fleet.apply(TimePassed(), Instant(LATER + SETTLE - 1)) == ()
    (order,) = fleet.apply(TimePassed(), Instant(LATER + SETTLE))
    assert isinstance(order, PersistPermit)
    assert (order.permit, order.before_answer) == (amount(2), False)
    fleet.apply(permit_stored(order.revision, vm("a", amount(2), permit=amount(2), version=9)))
    assert fleet.on("n1") == amount(4)
    assert fleet.apply(TimePassed(), Instant(LATER + 3 * SETTLE)) == ()


@pytest.mark.parametrize(("version", "is_settled"), [(3, True), (4, False), (0, False)])
def test_newer_version_settles_an_unknown_write(version: int, is_settled: bool) -> None:
    fleet = two_vms()
    lost = fleet.ask("a", amount(6), number=2)
    assert lost.persist is not None
    fleet.apply(PermitWritten(name("a"), lost.persist.revision, WriteOutcome.UNKNOWN, version=version))
    assert fleet.reserved("a") == amount(6)
    fleet.apply(VmSeen(vm("a", amount(2), permit=amount(2), version=4)), LATER)
    assert fleet.reserved("a") == amount(2 if is_settled else 6)


def test_restored_store_settles_no_unknown_write() -> None:
    fleet = two_vms()
    lost = fleet.ask("a", amount(6), number=2)
    assert lost.persist is not None
    fleet.apply(PermitWritten(name("a"), lost.persist.revision, WriteOutcome.UNKNOWN, version=1))
    fleet.ledger.apply(StoreRestored(), LATER)
    fleet.apply(VmSeen(vm("a", amount(2), permit=amount(2), version=4)), LATER)
    assert fleet.reserved("a") == amount(6)


# Writes that do not store what was ordered ---------------------------------------------------------------------------


def test_refused_write_leaves_nothing_reserved() -> None:
    fleet = two_vms()
    for number, wish in ((2, 8), (3, 6), (4, 8)):
        decision = fleet.ask("a", amount(wish), number=number, last_permit=amount(2))
        assert decision.persist is not None
        assert (decision.permit, fleet.reserved("a")) == (amount(wish), amount(wish))
        fleet.apply(PermitWritten(name("a"), decision.persist.revision, WriteOutcome.REFUSED, why="422: denied"))
        assert fleet.reserved("a") == amount(2)
    assert fleet.ledger.vms[name("a")].refusal == "422: denied"
    assert fleet.grant("b", amount(8), number=2) == amount(8)


def test_smaller_wish_after_a_refusal_needs_no_write() -> None:
    fleet = two_vms()
    decision = fleet.ask("a", amount(8), number=2)
    assert decision.persist is not None
    fleet.apply(PermitWritten(name("a"), decision.persist.revision, WriteOutcome.REFUSED, why="422: denied"))
    again = fleet.ask("a", amount(2), number=3)
    assert (again.permit, again.persist) == (amount(2), None)


def test_refusal_keeps_possible_late_write() -> None:
    fleet = two_vms()
    for number, wish, is_refused in ((2, 8, False), (3, 9, True), (4, 7, True)):
        decision = fleet.ask("a", amount(wish), number=number, last_permit=amount(2))
        assert decision.persist is not None
        if is_refused:
            fleet.apply(PermitWritten(name("a"), decision.persist.revision, WriteOutcome.REFUSED, why="403"))
        else:
            fleet.apply(PermitWritten(name("a"), decision.persist.revision, WriteOutcome.UNKNOWN))
        assert fleet.reserved("a") == amount(8)


def test_unsent_write_is_forgotten_with_a_later_refusal() -> None:
    fleet = two_vms()
    fleet.grant("a", amount(6), number=2)
    fleet.ask("a", amount(3), number=3)
    decision = fleet.ask("a", amount(8), number=4, last_permit=amount(6))
    assert decision.persist is not None
    fleet.apply(PermitWritten(name("a"), decision.persist.revision, WriteOutcome.REFUSED, why="403"))
    again = fleet.ask("a", amount(6), number=5, last_permit=amount(6))
    assert (again.permit, again.persist) == (amount(6), None), "the decrease to 3 was never sent"


@pytest.mark.parametrize("stored", [None, amount(1), amount(2)])
def test_altered_permit_is_not_held(stored: Resources | None) -> None:
    fleet = two_vms()
    decision = fleet.ask("a", amount(8), number=2, last_permit=amount(2))
    assert decision.persist is not None
    altered = vm("a", amount(2), permit=stored, version=9)
    fleet.apply(
        PermitWritten(name("a"), decision.persist.revision, WriteOutcome.REFUSED, altered, why="stored something else")
    )
    assert fleet.reserved("a") == amount(2)
    assert fleet.grant("b", amount(8), number=2) == amount(8)


def test_refusals_for_vms_that_are_forgotten_say_nothing() -> None:
    fleet = Fleet(node(), vm_pod("b", "n1"))
    assert fleet.ledger.apply(PermitWritten(name("a"), 1, WriteOutcome.REFUSED, why="403"), LATER) == ()
    assert fleet.ledger.apply(PermitWritten(name("b"), 1, WriteOutcome.REFUSED, why="403"), LATER) == ()
    other = vm("a", amount(9), uid="second", version=9)
    fleet = two_vms()
    fleet.apply(PermitWritten(name("a"), 1, WriteOutcome.REFUSED, other, why="403"))
    assert fleet.reserved("a") == amount(2)


def test_account_without_facts_takes_no_write() -> None:
    account = PermitAccount()
    account.refused(1, "403", vm("a", amount(1)))
    assert (account.facts, account.refusal) == (None, "403")
