"""A migration's room is reserved before it starts, and what became of the creation decides what is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler_plugin.ledger.accounts.claims import ClaimState
from scheduler_plugin.ledger.events import (
    BindRequested,
    Listed,
    MigrationCreateEnded,
    MigrationGone,
    MigrationSeen,
    MoveRequested,
    NodeSeen,
    PodSeen,
    WriteOutcome,
)
from scheduler_plugin.ledger.facts import MigrationFacts
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.ledger.migration_reservations import NOT_SETTLED, ON_THE_WAY, STAYS_AWAY, TAKEN
from scheduler_plugin.ledger.moves import Move
from scheduler_plugin.ledger.outcomes import CreateMigration, NotReadyError, ReadMigration, Reservation
from scheduler_plugin.placement.verdict import CORDONED, FITS, NO_FREE_CPU, UNKNOWN_NODE, NeverFits
from tests.scheduler_plugin.ledger.fleet import (
    LATER,
    Fleet,
    amount,
    migration,
    name,
    node,
    plain_pod,
    vm_pod,
)
from tests.scheduler_plugin.ledger.moving import (
    FAILED,
    INCOMING,
    MOVE,
    ONE,
    PENDING,
    on_both,
    reserved_move,
    two_nodes,
)


def test_move_books_before_creation() -> None:
    fleet = two_nodes()
    reservation = fleet.ledger.apply(MoveRequested(MOVE, ONE), LATER)
    fleet.did(reservation.effects)
    assert reservation == Reservation(FITS, effects=(CreateMigration(ONE, MOVE),))
    assert on_both(fleet) == (2, 2)
    assert fleet.ledger.claims[INCOMING].state is ClaimState.INCOMING
    asked = fleet.ask("a", amount(3), number=1)
    assert (asked.migrate, asked.permit) == (False, amount(3)), "until its target pod has a node it may grow"
    assert fleet.ledger.nodes["n1"].migrating == amount(3)


@pytest.mark.parametrize(
    ("move", "verdict"),
    [
        (replace(MOVE, uid="uid-x"), NOT_SETTLED),
        (replace(MOVE, source="n2", target="n1"), NOT_SETTLED),
        (replace(MOVE, vm=name("b")), NOT_SETTLED),
        (replace(MOVE, uid="uid-plain", vm=name("plain")), NOT_SETTLED),
        (replace(MOVE, target="n1"), STAYS_AWAY),
        (replace(MOVE, target="n9"), UNKNOWN_NODE),
        (replace(MOVE, target="closed"), CORDONED),
    ],
)
def test_impossible_move_changes_nothing(move: Move, verdict: object) -> None:
    fleet = two_nodes()
    fleet.apply(NodeSeen(node("closed", is_open=False)))
    fleet.apply(PodSeen(plain_pod("plain", amount(1), "n1")))
    answer = fleet.ledger.apply(MoveRequested(move, ONE), LATER)
    assert (answer.verdict, answer.effects) == (verdict, ())
    assert (dict(fleet.ledger.migrations), on_both(fleet)) == ({}, (3, 0))


def test_a_full_target_is_refused_with_numbers() -> None:
    fleet = two_nodes(total=2)
    answer = fleet.ledger.apply(MoveRequested(MOVE, ONE), LATER)
    detail = "pod needs 2 cpu, 2Gi; node n2 has 1 cpu, 1Gi free of 1 cpu, 1Gi"
    assert answer == Reservation(NeverFits("Insufficient cpu: more than the node has"), detail)


def test_impossible_orders_are_refused() -> None:
    fleet = reserved_move()
    assert fleet.ledger.apply(MoveRequested(MOVE, name("a-2")), LATER).verdict is ON_THE_WAY
    fleet.apply(MigrationSeen(migration("a", FAILED)), LATER)
    assert fleet.ledger.apply(MoveRequested(MOVE, ONE), LATER).verdict is TAKEN
    fleet.apply(PodSeen(vm_pod("a", "n2", uid="second")))
    assert fleet.ledger.apply(MoveRequested(MOVE, name("a-2")), LATER).verdict is NOT_SETTLED


def test_nothing_is_reserved_before_the_cluster_was_read() -> None:
    with pytest.raises(NotReadyError):
        Ledger().apply(MoveRequested(MOVE, ONE), LATER)


def test_reserved_room_is_exclusive() -> None:
    fleet = two_nodes(total=4)
    fleet.did(fleet.ledger.apply(MoveRequested(MOVE, ONE), LATER).effects)
    other = plain_pod("b", amount(2))
    assert fleet.ledger.filter(other, ["n2"]).refused == {"n2": "Insufficient cpu"}
    assert fleet.ledger.apply(BindRequested(other, "n2"), LATER).verdict is NO_FREE_CPU


def by_hand(number: int, **more: object) -> MigrationFacts:
    """One of several migrations of ``a`` that a person has made, to the node of its number."""
    facts = migration("a", PENDING, to=f"n{number}", number=number, is_ours=False)
    return replace(facts, **more)  # type: ignore[arg-type] # names of fields


def booked(fleet: Fleet) -> dict[str, float]:
    """The CPUs reserved on the nodes that ``a`` may be moved to."""
    return {each: fleet.ledger.nodes[each].reserved.cpu.as_cores for each in ("n2", "n3", "n4")}


def with_four_nodes() -> Fleet:
    """``a`` is on n1, and people want it on each of the others."""
    fleet = two_nodes()
    for number in (2, 3, 4):
        fleet.apply(NodeSeen(node(f"n{number}")))
        fleet.apply(MigrationSeen(by_hand(number)), LATER)
    return fleet


def test_oldest_migration_reserves_room() -> None:
    fleet = with_four_nodes()
    assert booked(fleet) == {"n2": 2, "n3": 0, "n4": 0}
    fleet.apply(MigrationSeen(by_hand(2, version=2, phase=FAILED)), LATER)
    assert booked(fleet) == {"n2": 0, "n3": 2, "n4": 0}
    fleet.apply(MigrationSeen(by_hand(3, version=2, is_terminating=True)), LATER)
    assert booked(fleet) == {"n2": 0, "n3": 0, "n4": 2}


def test_begun_migration_precedes_oldest() -> None:
    fleet = with_four_nodes()
    fleet.apply(MigrationSeen(by_hand(4, version=2, target_pod=name("a-target"))), LATER)
    assert booked(fleet) == {"n2": 0, "n3": 0, "n4": 2}


def test_a_booking_follows_its_vm() -> None:
    fleet = reserved_move()
    fleet.resize("a", amount(3))
    assert on_both(fleet) == (3, 3)


def test_a_refused_creation_ends_booking_and_order() -> None:
    fleet = reserved_move()
    fleet.apply(MigrationCreateEnded(ONE, WriteOutcome.REFUSED))
    fleet.apply(MigrationCreateEnded(ONE, WriteOutcome.REFUSED))
    assert (on_both(fleet), dict(fleet.ledger.migrations)) == ((2, 0), {})
    assert fleet.ask("a", amount(3), number=1).migrate is False


def test_unknown_creation_keeps_everything() -> None:
    fleet = reserved_move()
    assert fleet.apply(MigrationCreateEnded(ONE, WriteOutcome.UNKNOWN)) == (ReadMigration(ONE),)
    assert on_both(fleet) == (2, 2)
    fleet.apply(MigrationSeen(migration("a", PENDING, to="n2")), LATER)
    fleet.apply(MigrationCreateEnded(ONE, WriteOutcome.REFUSED))
    assert fleet.ledger.apply(MigrationCreateEnded(ONE, WriteOutcome.UNKNOWN), LATER) == ()
    assert on_both(fleet) == (2, 2)


def test_unordered_migration_news_is_ignored() -> None:
    fleet = two_nodes()
    assert (
        fleet.ledger.apply(MigrationCreateEnded(ONE, WriteOutcome.DONE), LATER)
        == fleet.ledger.apply(MigrationCreateEnded(ONE, WriteOutcome.UNKNOWN), LATER)
        == ()
    )
    fleet.apply(MigrationCreateEnded(ONE, WriteOutcome.REFUSED))
    fleet.apply(MigrationGone(ONE))
    assert dict(fleet.ledger.migrations) == {}


def test_list_ends_seen_questions_created() -> None:
    fleet = reserved_move()
    facts = [node(), node("n2")], [vm_pod("a", "n1")], list(fleet.vms.values())
    assert fleet.apply(Listed(*facts), LATER) == ()
    assert fleet.ledger.apply(MigrationCreateEnded(ONE, WriteOutcome.DONE), LATER) == ()
    assert fleet.apply(Listed(*facts), LATER) == (ReadMigration(ONE),)
    assert on_both(fleet) == (2, 2)
    fleet.apply(Listed(*facts, [migration("a", to="n2")]), LATER)
    assert on_both(fleet) == (2, 2)
    fleet.apply(Listed(*facts), LATER)
    assert (on_both(fleet), dict(fleet.ledger.migrations)) == ((2, 0), {})
