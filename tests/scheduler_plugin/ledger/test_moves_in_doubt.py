"""Targets that go, fill up or are replaced while a migration is under way, and news that comes late."""

from __future__ import annotations

import pytest

from scheduler_plugin.ledger import (
    PodFacts,
    RoomFreed,
)
from scheduler_plugin.ledger import moves as moves_module
from scheduler_plugin.placement import CORDONED, NO_FREE_CPU
from tests.scheduler_plugin.ledger.fleet import (
    LATER,
    NOW,
    Fleet,
    amount,
    migration,
    name,
    node,
    plain_pod,
    vm,
    vm_pod,
)
from tests.scheduler_plugin.ledger.moving import (
    BROKEN,
    MOVE,
    ONE,
    PENDING,
    hear,
    on_both,
    reserved_move,
    target_pod,
    two_nodes,
)


def test_a_reserved_node_that_is_deleted_keeps_nothing_and_says_so() -> None:
    fleet = reserved_move()
    fleet.did(fleet.ledger.lose_node("n2"))
    assert ("n2" in fleet.ledger.nodes, fleet.ledger.migrations[ONE].problem) == (False, "node n2 is gone")
    fleet.did(fleet.ledger.see_node(node("n2")))
    assert (on_both(fleet), fleet.ledger.migrations[ONE].problem) == ((2, 2), None)


def test_a_reserved_node_that_is_cordoned_keeps_nothing_and_says_so() -> None:
    fleet = reserved_move()
    fleet.did(fleet.ledger.see_node(node("n2", is_open=False)))
    assert (on_both(fleet), fleet.ledger.migrations[ONE].problem) == ((2, 0), "node n2: the node takes no new pods")
    assert fleet.ledger.reserve(target_pod(), "n2").verdict is CORDONED


def test_a_target_that_filled_up_while_it_was_away_is_not_pushed_over() -> None:
    fleet = reserved_move()
    fleet.did(fleet.ledger.lose_node("n2"))
    fleet.did(fleet.ledger.see_pod(plain_pod("b", amount(8), "n2")))
    fleet.did(fleet.ledger.see_node(node("n2")))
    assert (on_both(fleet), fleet.ledger.migrations[ONE].problem) == ((2, 8), "node n2: not enough free cpu")
    assert fleet.ledger.reserve(target_pod(), "n2").verdict is NO_FREE_CPU


def test_a_booking_that_ends_wakes_who_waits_for_its_room() -> None:
    fleet = two_nodes(total=3)
    fleet.did(fleet.ledger.reserve_move(MOVE, ONE, LATER).effects)
    assert not fleet.ledger.filter(plain_pod("b", amount(2)), ["n2"]).fits
    assert fleet.did(fleet.ledger.migration_refused(ONE)) == (RoomFreed("n2"),)


def test_a_booking_takes_nobodys_name() -> None:
    fleet = reserved_move()
    assert fleet.ledger.uid_of(ONE) is None
    fleet.did(fleet.ledger.see_pod(PodFacts("uid-x", ONE, amount(1), None, "n1")))
    fleet.did(fleet.ledger.migration_refused(ONE))
    assert fleet.ledger.uid_of(ONE) == "uid-x"


def test_a_vm_replaced_by_one_of_the_same_name_keeps_what_is_reserved_until_the_migration_ends() -> None:
    fleet = reserved_move()
    fleet.did(fleet.ledger.see_vm(vm("a", amount(1), uid="second"), LATER))
    assert on_both(fleet) == (2, 2)
    hear(fleet, BROKEN)
    assert on_both(fleet) == (2, 0)


def test_only_so_many_of_the_dead_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves_module, "REMEMBERED_GONE", 1)
    fleet = two_nodes()
    for number in (1, 2):
        fleet.did(fleet.ledger.see_migration(migration("a", PENDING, number=number), NOW))
        fleet.did(fleet.ledger.lose_migration(name(f"a-{number}")))
    fleet.did(fleet.ledger.see_migration(migration("a", PENDING, number=2), NOW))
    assert dict(fleet.ledger.migrations) == {}
    fleet.did(fleet.ledger.see_migration(migration("a", PENDING, number=1), NOW))
    assert list(fleet.ledger.migrations) == [ONE]


def test_a_pod_that_is_first_named_in_the_answer_to_a_write_gets_its_order() -> None:
    fleet = Fleet(node(), vm("a", amount(2)), vm_pod("a", "n1"))
    hear(fleet, migration("a", PENDING, is_ours=False))
    decision = fleet.ask("a", amount(2), number=1)
    assert decision.persist is not None
    assert not decision.migrate
    answer = vm("a", amount(2), permit=amount(2), version=2, pod=name("a-pod"))
    fleet.did(fleet.ledger.permit_stored(decision.persist.revision, answer))
    assert fleet.ledger.claims["uid-a"].is_migrating
