"""A migration's room is booked before it starts, and every order of events leaves one reservation on each node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations

import pytest

from protocol.units import ZERO
from scheduler_plugin.ledger import (
    Booking,
    ClaimState,
    CreateMigration,
    Ledger,
    MigrationFacts,
    MigrationPhase,
    Move,
    NotReadyError,
    PodFacts,
    ReadMigration,
    Reservation,
    RoomFreed,
)
from scheduler_plugin.ledger import moves as moves_module
from scheduler_plugin.ledger.following import NOT_SETTLED, ON_THE_WAY, OTHER_VM, OVER, STAYS_AWAY, TAKEN
from scheduler_plugin.placement import CORDONED, FITS, NO_FREE_CPU, UNKNOWN_NODE, NeverFits
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

PENDING, RUNNING = MigrationPhase.PENDING, MigrationPhase.RUNNING
SUCCEEDED, FAILED = MigrationPhase.SUCCEEDED, MigrationPhase.FAILED
MOVE = Move(name("a"), "uid-a", "n1", "n2", "node n1 is full")
ONE, BOOKED = name("a-1"), "booking of db/a-1"


def two_nodes(*, total: float = 10) -> Fleet:
    """The VM ``a`` with 2 CPUs and 2Gi runs on n1; n2 is empty."""
    return Fleet(node(), node("n2", total), vm("a", amount(2), pod=name("a-pod")), vm_pod("a", "n1"))


def target_pod(on: str | None = None, *, owner: str | None = "a-1", uid: str = "uid-t") -> PodFacts:
    """The target pod of the first migration; ``owner`` is None once the VM owns it."""
    return PodFacts(uid, name("a-target"), amount(0.1), name("a"), on, migration=None if owner is None else name(owner))


def booked() -> Fleet:
    fleet = two_nodes()
    assert fleet.ledger.book_move(MOVE, ONE, LATER).verdict is FITS
    return fleet


def on_both(fleet: Fleet) -> tuple[float, float]:
    """The CPUs reserved on n1 and n2; memory is the same."""
    books = fleet.ledger.nodes
    found = [books[each].reserved if each in books else ZERO for each in ("n1", "n2")]
    assert all(each == amount(each.cpu.as_cores) for each in found)
    return found[0].cpu.as_cores, found[1].cpu.as_cores


# Booking -------------------------------------------------------------------------------------------------------------


def test_a_move_books_the_room_and_orders_the_source_before_anything_is_created() -> None:
    fleet = two_nodes()
    booking = fleet.ledger.book_move(MOVE, ONE, LATER)
    fleet.did(booking.effects)
    assert booking == Booking(FITS, effects=(CreateMigration(ONE, MOVE),))
    assert on_both(fleet) == (2, 2)
    assert fleet.ledger.claims[BOOKED].state is ClaimState.BOOKED
    assert fleet.ask("a", amount(3), number=1).migrate is True
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
def test_a_move_that_is_not_possible_is_refused_and_changes_nothing(move: Move, verdict: object) -> None:
    fleet = two_nodes()
    fleet.did(fleet.ledger.see_node(node("closed", is_open=False)))
    fleet.did(fleet.ledger.see_pod(plain_pod("plain", amount(1), "n1")))
    answer = fleet.ledger.book_move(move, ONE, LATER)
    assert (answer.verdict, answer.effects) == (verdict, ())
    assert (dict(fleet.ledger.migrations), on_both(fleet)) == ({}, (3, 0))


def test_a_full_target_is_refused_with_numbers() -> None:
    fleet = two_nodes(total=2)
    answer = fleet.ledger.book_move(MOVE, ONE, LATER)
    detail = "pod needs 2 cpu, 2Gi; node n2 has 1 cpu, 1Gi free of 1 cpu, 1Gi"
    assert answer == Booking(NeverFits("the node has less cpu than the pod needs"), detail)


def test_a_vm_that_is_on_its_way_a_name_that_is_taken_and_a_second_pod_are_refused() -> None:
    fleet = booked()
    assert fleet.ledger.book_move(MOVE, name("a-2"), LATER).verdict is ON_THE_WAY
    fleet.did(fleet.ledger.see_migration(migration("a", FAILED), LATER))
    assert fleet.ledger.book_move(MOVE, ONE, LATER).verdict is TAKEN
    fleet.did(fleet.ledger.see_pod(vm_pod("a", "n2", uid="second")))
    assert fleet.ledger.book_move(MOVE, name("a-2"), LATER).verdict is NOT_SETTLED


def test_nothing_is_booked_before_the_cluster_was_read() -> None:
    with pytest.raises(NotReadyError):
        Ledger().book_move(MOVE, ONE, LATER)


def test_what_is_booked_is_not_given_to_anybody_else() -> None:
    fleet = two_nodes(total=4)
    fleet.did(fleet.ledger.book_move(MOVE, ONE, LATER).effects)
    other = plain_pod("b", amount(2))
    assert fleet.ledger.filter(other, ["n2"]).refused == {"n2": "not enough free cpu"}
    assert fleet.ledger.reserve(other, "n2").verdict is NO_FREE_CPU


def test_a_booking_follows_its_vm() -> None:
    fleet = booked()
    fleet.resize("a", amount(3))
    assert on_both(fleet) == (3, 3)


# What became of the creation -----------------------------------------------------------------------------------------


def test_a_refused_creation_ends_booking_and_order() -> None:
    fleet = booked()
    fleet.did(fleet.ledger.migration_refused(ONE))
    fleet.did(fleet.ledger.migration_refused(ONE))
    assert (on_both(fleet), dict(fleet.ledger.migrations)) == ((2, 0), {})
    assert fleet.ask("a", amount(3), number=1).migrate is False


def test_a_creation_of_unknown_outcome_keeps_everything_until_it_is_read() -> None:
    fleet = booked()
    assert fleet.did(fleet.ledger.migration_unsure(ONE)) == (ReadMigration(ONE),)
    assert on_both(fleet) == (2, 2)
    fleet.did(fleet.ledger.see_migration(migration("a", PENDING, to="n2"), LATER))
    fleet.did(fleet.ledger.migration_refused(ONE))
    assert fleet.ledger.migration_unsure(ONE) == ()
    assert on_both(fleet) == (2, 2)


def test_news_of_a_migration_that_nobody_ordered_says_nothing() -> None:
    fleet = two_nodes()
    assert fleet.ledger.migration_created(ONE) == fleet.ledger.migration_unsure(ONE) == ()
    fleet.did(fleet.ledger.migration_refused(ONE))
    fleet.did(fleet.ledger.lose_migration(ONE))
    assert dict(fleet.ledger.migrations) == {}


def test_a_list_without_it_ends_what_was_seen_and_asks_after_what_was_only_created() -> None:
    fleet = booked()
    facts = [node(), node("n2")], [vm_pod("a", "n1")], list(fleet.vms.values())
    assert fleet.did(fleet.ledger.resync(*facts, LATER)) == ()
    assert fleet.ledger.migration_created(ONE) == ()
    assert fleet.did(fleet.ledger.resync(*facts, LATER)) == (ReadMigration(ONE),)
    assert on_both(fleet) == (2, 2)
    fleet.did(fleet.ledger.resync(*facts, LATER, [migration("a", to="n2")]))
    assert on_both(fleet) == (2, 2)
    fleet.did(fleet.ledger.resync(*facts, LATER))
    assert (on_both(fleet), dict(fleet.ledger.migrations)) == ((2, 0), {})


# The target pod ------------------------------------------------------------------------------------------------------


def test_a_target_pod_fits_the_booked_node_only_and_takes_the_booking_over() -> None:
    fleet = two_nodes(total=3)
    fleet.did(fleet.ledger.see_node(node("n3")))
    fleet.did(fleet.ledger.book_move(MOVE, ONE, LATER).effects)
    found = fleet.ledger.filter(target_pod(), ["n1", "n2", "n3"])
    where = "the migration goes to node n2"
    assert (found.fits, found.refused, found.never) == (["n2"], {}, {"n1": where, "n3": where})
    assert fleet.ledger.reserve(target_pod(), "n3").verdict == NeverFits(where)
    assert fleet.ledger.reserve(target_pod(), "n2") == Reservation(FITS, needs_bind=True)
    fleet.did(())
    assert (on_both(fleet), BOOKED in fleet.ledger.claims) == ((2, 2), False)
    assert fleet.ledger.reserve(target_pod(), "n2") == Reservation(FITS, needs_bind=True)
    assert fleet.ledger.filter(target_pod(), ["n1", "n2"]).fits == ["n2"]


def test_a_target_pod_whose_bind_is_refused_leaves_the_booking_as_it_was() -> None:
    fleet = two_nodes(total=3)
    fleet.did(fleet.ledger.book_move(MOVE, ONE, LATER).effects)
    fleet.ledger.reserve(target_pod(), "n2")
    fleet.did(fleet.ledger.bind_refused("uid-t", "n2"))
    assert (on_both(fleet), BOOKED in fleet.ledger.claims) == ((2, 2), True)


def test_a_target_pod_that_goes_leaves_the_booking_for_the_next_one() -> None:
    fleet = booked()
    fleet.did(fleet.ledger.see_pod(target_pod("n2")))
    assert (on_both(fleet), BOOKED in fleet.ledger.claims) == ((2, 2), False)
    fleet.did(fleet.ledger.lose_pod("uid-t"))
    assert (on_both(fleet), BOOKED in fleet.ledger.claims) == ((2, 2), True)


def test_a_target_pod_that_somebody_bound_elsewhere_takes_the_reservation_along() -> None:
    fleet = booked()
    fleet.did(fleet.ledger.see_node(node("n3")))
    fleet.did(fleet.ledger.see_pod(target_pod("n3")))
    assert (on_both(fleet), fleet.on("n3")) == ((2, 0), amount(2))
    assert fleet.ledger.migrations[ONE].goal == "n3"


def test_without_a_booking_a_target_pod_goes_anywhere_but_where_its_vm_is() -> None:
    fleet = two_nodes()
    fleet.did(fleet.ledger.see_migration(migration("a", is_ours=False), LATER))
    found = fleet.ledger.filter(target_pod(), ["n1", "n2", "n9"])
    assert (found.fits, found.never) == (["n2"], {"n1": "the VM is to leave this node"})
    assert fleet.ledger.reserve(target_pod(), "n1").verdict is STAYS_AWAY
    assert fleet.ledger.reserve(target_pod(), "n2").verdict is FITS
    assert on_both(fleet) == (2, 2)


def test_a_target_pod_waits_until_its_migration_and_its_vm_are_known() -> None:
    fleet = Fleet(node(), node("n2"))
    with pytest.raises(NotReadyError, match="VirtualMachine db/a of pod db/a-target is not known yet"):
        fleet.ledger.filter(target_pod(), ["n2"])
    fleet.did(fleet.ledger.see_vm(vm("a", amount(2)), LATER))
    with pytest.raises(NotReadyError, match="migration db/a-1 of pod db/a-target is not known yet"):
        fleet.ledger.reserve(target_pod(), "n2")
    with pytest.raises(NotReadyError, match="migration db/a-1 of pod db/a-target is not known yet"):
        fleet.ledger.filter(target_pod(), ["n2"])


@pytest.mark.parametrize(
    "facts", [migration("a", SUCCEEDED, to="n2"), migration("a", FAILED), migration("a", PENDING, is_leaving=True)]
)
def test_a_target_pod_of_a_migration_that_is_over_fits_nowhere(facts: MigrationFacts) -> None:
    fleet = two_nodes()
    fleet.did(fleet.ledger.see_migration(facts, LATER))
    assert fleet.ledger.reserve(target_pod(), "n2").verdict is OVER
    fleet.ledger.filter(target_pod(), ["n2"])
    assert fleet.ledger.waiting == 1


def test_nobody_takes_a_booking_by_naming_the_migration_of_another_vm() -> None:
    fleet = booked()
    fleet.did(fleet.ledger.see_vm(vm("b", amount(8)), LATER))
    thief = PodFacts("uid-b", name("b-pod"), amount(0.1), name("b"), migration=ONE)
    assert fleet.ledger.reserve(thief, "n2").verdict is OTHER_VM
    ordinary = PodFacts("uid-c", name("c-pod"), amount(1), None, migration=ONE)
    assert fleet.ledger.reserve(ordinary, "n2").verdict is OTHER_VM
    assert on_both(fleet) == (2, 2)


Event = MigrationFacts | PodFacts | str

# Every order of events -----------------------------------------------------------------------------------------------


def hear(fleet: Fleet, event: Event) -> None:
    """One event: a fact, the loss of a pod by UID, or of the migration by its name; ``vm`` is the VM's hand-over."""
    if isinstance(event, MigrationFacts):
        fleet.did(fleet.ledger.see_migration(event, LATER))
    elif isinstance(event, PodFacts):
        fleet.did(fleet.ledger.see_pod(event))
    elif event == "vm":
        fleet.did(fleet.ledger.see_vm(vm("a", amount(2), version=9, pod=name("a-target")), LATER))
    elif event == "migration":
        fleet.did(fleet.ledger.lose_migration(ONE))
    else:
        fleet.did(fleet.ledger.lose_pod(event))


STARTED = migration("a", RUNNING, to="n2", version=2, target_pod="a-target")
DONE = migration("a", SUCCEEDED, to="n2", version=3, target_pod="a-target")
BROKEN = migration("a", FAILED, to="n2", version=3, target_pod="a-target")
Streams = Mapping[str, tuple[Event, ...]]
SUCCESS: Streams = {"target": (target_pod("n2"), target_pod("n2", owner=None)), "vmm": (STARTED, DONE), "vm": ("vm",)}
FAILURE: Streams = {"target": (target_pod("n2"), "uid-t"), "vmm": (STARTED, BROKEN)}


def interleavings(streams: Streams) -> list[tuple[str, ...]]:
    """Every order in which the events of independent watches may be heard."""
    return sorted(set(permutations([which for which, events in streams.items() for _ in events])))


@pytest.mark.parametrize("doubled", [False, True])
@pytest.mark.parametrize("is_ours", [False, True])
@pytest.mark.parametrize("order", interleavings(SUCCESS), ids="-".join)
def test_a_success_leaves_one_reservation_whatever_is_heard_first(
    order: tuple[str, ...], is_ours: bool, doubled: bool
) -> None:
    fleet = booked() if is_ours else two_nodes()
    streams = {which: list(events) for which, events in SUCCESS.items()}
    for which in order:
        event = streams[which].pop(0)
        for _ in range(2 if doubled else 1):
            hear(fleet, event)
            assert on_both(fleet)[0] == 2
            assert on_both(fleet)[1] in ((2,) if is_ours else (0, 2))
    assert (on_both(fleet), fleet.ledger.nodes["n1"].migrating) == ((2, 2), amount(2))
    fleet.did(fleet.ledger.lose_pod("uid-a"))
    assert (on_both(fleet), fleet.ledger.nodes["n2"].migrating) == ((0, 2), ZERO)
    hear(fleet, "migration")
    hear(fleet, STARTED)
    assert (on_both(fleet), dict(fleet.ledger.migrations)) == ((0, 2), {})


@pytest.mark.parametrize("order", interleavings(FAILURE), ids="-".join)
def test_a_failure_leaves_the_source_alone_whatever_is_heard_first(order: tuple[str, ...]) -> None:
    fleet = booked()
    streams = {which: list(events) for which, events in FAILURE.items()}
    for which in order:
        hear(fleet, streams[which].pop(0))
        assert on_both(fleet)[0] == 2
    assert (on_both(fleet), fleet.ledger.nodes["n1"].migrating) == ((2, 0), ZERO)
    assert fleet.ask("a", amount(3), number=1).permit == amount(3)


@pytest.mark.parametrize(
    ("pods", "facts", "reserved", "leaving"),
    [
        ((vm_pod("a", "n1"),), migration("a", PENDING, to="n2"), (2, 2), 2),
        ((vm_pod("a", "n1"), target_pod()), migration("a", RUNNING, to="n2"), (2, 2), 2),
        ((vm_pod("a", "n1"), target_pod("n2")), STARTED, (2, 2), 2),
        ((vm_pod("a", "n1"), target_pod("n2", owner=None)), STARTED, (2, 2), 2),
        ((vm_pod("a", "n1"), target_pod("n2", owner=None)), DONE, (2, 2), 0),
        ((target_pod("n2", owner=None),), DONE, (0, 2), 0),
        ((vm_pod("a", "n1"), target_pod("n2")), BROKEN, (2, 2), 0),
        ((vm_pod("a", "n1"),), BROKEN, (2, 0), 0),
        ((vm_pod("a", "n1"),), migration("a", PENDING, is_ours=False), (2, 0), 2),
    ],
)
def test_a_restart_in_any_phase_finds_the_same_books(
    pods: tuple[PodFacts, ...], facts: MigrationFacts, reserved: tuple[float, float], leaving: float
) -> None:
    fleet = Fleet(node(), node("n2"))
    known = vm("a", amount(2), pod=name("a-pod"))
    for _ in range(2):
        fleet.did(fleet.ledger.resync([node(), node("n2")], pods, [known], LATER, [facts]))
        assert (on_both(fleet), fleet.ledger.nodes["n1"].migrating) == (reserved, amount(leaving))


def test_a_source_that_was_handed_over_stays_leaving_until_its_pod_goes() -> None:
    fleet = booked()
    events: tuple[Event, ...] = (target_pod("n2"), STARTED, "vm", target_pod("n2", owner=None), DONE)
    for event in events:
        hear(fleet, event)
    assert fleet.ledger.nodes["n1"].migrating == amount(2)
    assert fleet.ledger.claims["uid-t"].is_migrating is False


def test_a_source_that_dies_leaves_the_booking_until_the_migration_has_failed() -> None:
    fleet = booked()
    fleet.did(fleet.ledger.lose_pod("uid-a"))
    assert on_both(fleet) == (0, 2)
    hear(fleet, migration("a", FAILED, to="n2"))
    assert on_both(fleet) == (0, 0)


def test_a_cancelled_migration_keeps_its_order_until_it_is_undone_and_its_booking_no_longer() -> None:
    fleet = booked()
    hear(fleet, migration("a", PENDING, to="n2", is_leaving=True))
    assert (on_both(fleet), fleet.ledger.nodes["n1"].migrating) == ((2, 0), amount(2))
    hear(fleet, "migration")
    assert fleet.ledger.nodes["n1"].migrating == ZERO


def test_older_facts_than_those_known_and_late_news_of_the_dead_change_nothing() -> None:
    fleet = booked()
    hear(fleet, replace(DONE, version=5))
    hear(fleet, STARTED)
    assert fleet.ledger.migrations[ONE].phase is SUCCEEDED
    hear(fleet, "migration")
    hear(fleet, STARTED)
    assert dict(fleet.ledger.migrations) == {}


def test_another_migration_of_the_same_name_begins_anew() -> None:
    fleet = booked()
    hear(fleet, DONE)
    hear(fleet, replace(migration("a", PENDING, to="n2"), uid="another"))
    assert (fleet.ledger.migrations[ONE].phase, on_both(fleet)) == (PENDING, (2, 2))


def test_a_migration_that_says_nothing_of_its_source_means_the_pod_that_runs_the_vm() -> None:
    fleet = two_nodes()
    hear(fleet, migration("a", PENDING, is_ours=False))
    assert (fleet.ledger.claims["uid-a"].is_migrating, fleet.ledger.migrations[ONE].source) == (True, "n1")


def test_two_migrations_of_one_vm_book_once_on_one_node() -> None:
    fleet = booked()
    second = migration("a", PENDING, to="n2", number=2)
    hear(fleet, second)
    assert on_both(fleet) == (2, 2)
    hear(fleet, "migration")
    assert (on_both(fleet), "booking of db/a-2" in fleet.ledger.claims) == ((2, 2), True)


def test_a_person_who_names_a_node_gets_the_room_booked() -> None:
    fleet = two_nodes()
    hear(fleet, migration("a", PENDING, to="n2", is_ours=False))
    assert on_both(fleet) == (2, 2)


def test_a_migration_seen_before_its_vm_books_once_the_vm_is_known() -> None:
    fleet = Fleet(node(), node("n2"))
    hear(fleet, migration("a", PENDING, to="n2"))
    assert on_both(fleet) == (0, 0)
    fleet.did(fleet.ledger.see_vm(vm("a", amount(2)), LATER))
    assert on_both(fleet) == (0, 2)
    fleet.did(fleet.ledger.lose_vm(name("a")))
    assert on_both(fleet) == (0, 0)


# The target in between -----------------------------------------------------------------------------------------------


def test_a_booked_node_that_is_deleted_keeps_nothing_and_says_so() -> None:
    fleet = booked()
    fleet.did(fleet.ledger.lose_node("n2"))
    assert ("n2" in fleet.ledger.nodes, fleet.ledger.migrations[ONE].trouble) == (False, "node n2 is gone")
    fleet.did(fleet.ledger.see_node(node("n2")))
    assert (on_both(fleet), fleet.ledger.migrations[ONE].trouble) == ((2, 2), None)


def test_a_booked_node_that_is_cordoned_keeps_nothing_and_says_so() -> None:
    fleet = booked()
    fleet.did(fleet.ledger.see_node(node("n2", is_open=False)))
    assert (on_both(fleet), fleet.ledger.migrations[ONE].trouble) == ((2, 0), "node n2: the node takes no new pods")
    assert fleet.ledger.reserve(target_pod(), "n2").verdict is CORDONED


def test_a_target_that_filled_up_while_it_was_away_is_not_pushed_over() -> None:
    fleet = booked()
    fleet.did(fleet.ledger.lose_node("n2"))
    fleet.did(fleet.ledger.see_pod(plain_pod("b", amount(8), "n2")))
    fleet.did(fleet.ledger.see_node(node("n2")))
    assert (on_both(fleet), fleet.ledger.migrations[ONE].trouble) == ((2, 8), "node n2: not enough free cpu")
    assert fleet.ledger.reserve(target_pod(), "n2").verdict is NO_FREE_CPU


def test_a_booking_that_ends_wakes_who_waits_for_its_room() -> None:
    fleet = two_nodes(total=3)
    fleet.did(fleet.ledger.book_move(MOVE, ONE, LATER).effects)
    assert not fleet.ledger.filter(plain_pod("b", amount(2)), ["n2"]).fits
    assert fleet.did(fleet.ledger.migration_refused(ONE)) == (RoomFreed("n2"),)


def test_a_booking_takes_nobodys_name() -> None:
    fleet = booked()
    assert fleet.ledger.uid_of(ONE) is None
    fleet.did(fleet.ledger.see_pod(PodFacts("uid-x", ONE, amount(1), None, "n1")))
    fleet.did(fleet.ledger.migration_refused(ONE))
    assert fleet.ledger.uid_of(ONE) == "uid-x"


def test_a_vm_replaced_by_one_of_the_same_name_keeps_what_is_booked_until_the_migration_ends() -> None:
    fleet = booked()
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
