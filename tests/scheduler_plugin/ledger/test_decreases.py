"""A decrease frees room exactly when no agent can use it any more (S4.5)."""

from __future__ import annotations

from protocol.units import Instant
from scheduler_plugin.ledger.accounts.permit_state import MAX_OUTSTANDING, SETTLE, OutstandingPermits
from scheduler_plugin.ledger.events import VmSeen
from tests.scheduler_plugin.ledger.fleet import LATER, NOW, Fleet, amount, node, vm, vm_pod


def grown(*, number: int | None) -> Fleet:
    """A VM that was granted 4 and uses them."""
    fleet = Fleet(node(), vm("a", amount(2)), vm_pod("a", "n1"))
    fleet.grant("a", amount(2), number=None if number is None else number - 1)
    assert fleet.grant("a", amount(4), number=number) == amount(4)
    fleet.resize("a", amount(4))
    return fleet


def test_decrease_frees_room_once_stored() -> None:
    fleet = grown(number=7)
    told = fleet.ask("a", amount(1), number=8)
    assert (told.permit, fleet.reserved("a")) == (amount(1), amount(4))
    fleet.store(told)
    assert fleet.reserved("a") == amount(4)
    fleet.resize("a", amount(1))
    assert fleet.reserved("a") == amount(1)


def test_late_decrease_spares_later_increase() -> None:
    fleet = Fleet(node(), vm("a", amount(2)), vm_pod("a", "n1"))
    fleet.grant("a", amount(2), number=5)
    assert fleet.grant("a", amount(4), number=7) == amount(4)
    late = fleet.ask("a", amount(1), number=6)
    assert late.permit == amount(1)
    fleet.store(late)
    assert fleet.reserved("a") == amount(4)


def test_repeated_decrease_frees_once() -> None:
    fleet = grown(number=7)
    fleet.store(fleet.ask("a", amount(1), number=8))
    fleet.resize("a", amount(1))
    again = fleet.ask("a", amount(1), number=8)
    assert (again.permit, again.persist) == (amount(1), None)
    assert fleet.on("n1") == amount(1)


def test_unnumbered_decrease_waits() -> None:
    fleet = grown(number=None)
    fleet.resize("a", amount(1))
    fleet.grant("a", amount(1), now=Instant(LATER + SETTLE - 1))
    assert fleet.reserved("a") == amount(4)
    fleet.grant("a", amount(1), now=Instant(LATER + SETTLE))
    assert fleet.reserved("a") == amount(1)


def test_stale_decrease_keeps_stored_permit() -> None:
    fleet = grown(number=None)
    told = fleet.ask("a", amount(1))
    assert (told.permit, told.persist) == (amount(1), None)
    rebuilt = Fleet(node(), *fleet.vms.values(), vm_pod("a", "n1"))
    assert rebuilt.reserved("a") == amount(4)


def test_restart_waits_before_decreases() -> None:
    fleet = Fleet(node(), vm("a", amount(1), permit=amount(4)), vm_pod("a", "n1"))
    for number in (1, 2, 3):
        fleet.grant("a", amount(1), number=number, now=Instant(NOW + number))
    assert fleet.reserved("a") == amount(4)
    fleet.grant("a", amount(1), number=4, now=Instant(NOW + SETTLE + 4))
    assert fleet.reserved("a") == amount(1)


def test_agent_with_earlier_clock_is_believed_later() -> None:
    fleet = grown(number=700)
    fleet.resize("a", amount(1))
    for tick, reserved in ((1, 4), (15, 4), (29, 4), (30, 1)):
        fleet.grant("a", amount(1), number=10 + tick, now=Instant(LATER + tick))
        assert fleet.reserved("a") == amount(reserved), tick


def test_dead_agents_message_is_harmless() -> None:
    fleet = grown(number=700)
    fleet.grant("a", amount(4), number=10, now=Instant(LATER + SETTLE))
    fleet.grant("a", amount(1), number=701, now=Instant(LATER + SETTLE + 1))
    fleet.resize("a", amount(1))
    assert fleet.reserved("a") == amount(4)


# Two processes of one agent: each counts on from the clock of its start ---------------------------------------------

DIED = 1064 * 10**9
"""The first number of a process that has died; its successor's clock was set back by 30 s."""


def test_late_first_message_of_dead_agent_frees_nothing() -> None:
    """The agent was restarted after its clock had been set back; the ledger never got a message from its
    predecessor.
    """
    fleet = Fleet(node(), vm("a", amount(2)), vm_pod("a", "n1"))
    assert fleet.grant("a", amount(4), number=DIED - 30 * 10**9) == amount(4)
    fleet.grant("a", amount(1), number=DIED)
    assert fleet.reserved("a") == amount(4)


def test_number_between_those_of_dead_agents_proves_nothing() -> None:
    """The ledger got messages from one predecessor, but not from a later one; the clock went back to between them."""
    fleet = grown(number=DIED - 60 * 10**9)
    fleet.grant("a", amount(6), number=DIED - 30 * 10**9)
    fleet.grant("a", amount(1), number=DIED)
    assert fleet.reserved("a") == amount(6)


def test_restarted_agent_is_believed_after_a_while() -> None:
    fleet = grown(number=DIED)
    fleet.resize("a", amount(1))
    for tick, reserved in ((0, 4), (29, 4), (30, 1)):
        fleet.grant("a", amount(1), number=DIED + 10**9 + tick, now=Instant(LATER + tick))
        assert fleet.reserved("a") == amount(reserved), tick


def test_reservation_covers_size_and_request() -> None:
    fleet = grown(number=7)
    before = fleet.vms[vm("a", amount(1)).name]
    fleet.apply(VmSeen(vm("a", amount(6), actual=amount(5), version=before.version + 1)), LATER)
    assert fleet.reserved("a") == amount(6)
    fleet.apply(VmSeen(vm("a", amount(1), actual=amount(5), version=before.version + 2)), LATER)
    assert fleet.reserved("a") == amount(5)


def test_older_facts_about_a_vm_change_nothing() -> None:
    fleet = grown(number=7)
    fleet.apply(VmSeen(vm("a", amount(9), version=0)), LATER)
    assert fleet.reserved("a") == amount(4)


# Outstanding permits ------------------------------------------------------------------------------------------------


def test_many_promises_are_merged_upwards() -> None:
    promises = OutstandingPermits()
    for count in range(3 * MAX_OUTSTANDING, 0, -1):
        promises.add(amount(count), NOW)
    assert promises.maximum == amount(3 * MAX_OUTSTANDING)
    promises.add(amount(1), Instant(NOW + SETTLE))
    assert promises.maximum == amount(1)


def test_promises_keep_the_most_of_each_resource() -> None:
    promises = OutstandingPermits()
    promises.add(amount(4, 1), NOW)
    promises.add(amount(1, 4), NOW)
    assert promises.maximum == amount(4)
    promises.replace(amount(1, 1), NOW)
    assert promises.maximum == amount(1)


def test_first_sequence_proves_nothing() -> None:
    fleet = grown(number=None)
    fleet.resize("a", amount(1))
    fleet.grant("a", amount(1), number=1)
    assert fleet.reserved("a") == amount(4)
    fleet.grant("a", amount(1), number=2)
    assert fleet.reserved("a") == amount(1)
