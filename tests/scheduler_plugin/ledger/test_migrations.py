"""In any order of events, each node keeps one reservation of a migrating VM, and none when the VM is gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations

import pytest

from protocol.units import ZERO
from scheduler_plugin.ledger.events import Listed, PodGone, PodSeen, VmGone, VmSeen
from scheduler_plugin.ledger.facts import MigrationFacts, PodFacts
from tests.scheduler_plugin.ledger.fleet import (
    LATER,
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
    DONE,
    FAILED,
    ONE,
    PENDING,
    RUNNING,
    STARTED,
    SUCCEEDED,
    Event,
    hear,
    on_both,
    reserved_move,
    target_pod,
    two_nodes,
)

Streams = Mapping[str, tuple[Event, ...]]
SUCCESS: Streams = {"target": (target_pod("n2"), target_pod("n2", owner=None)), "vmm": (STARTED, DONE), "vm": ("vm",)}
FAILURE: Streams = {"target": (target_pod("n2"), "uid-t"), "vmm": (STARTED, BROKEN)}


def interleavings(streams: Streams) -> list[tuple[str, ...]]:
    """Every order in which the events of independent watches may arrive."""
    return sorted(set(permutations([which for which, events in streams.items() for _ in events])))


@pytest.mark.parametrize("doubled", [False, True])
@pytest.mark.parametrize("is_ours", [False, True])
@pytest.mark.parametrize("order", interleavings(SUCCESS), ids="-".join)
def test_success_leaves_one_reservation(order: tuple[str, ...], is_ours: bool, doubled: bool) -> None:
    fleet = reserved_move() if is_ours else two_nodes()
    streams = {which: list(events) for which, events in SUCCESS.items()}
    for which in order:
        event = streams[which].pop(0)
        for _ in range(2 if doubled else 1):
            hear(fleet, event)
            assert on_both(fleet)[0] == 2
            assert on_both(fleet)[1] in ((2,) if is_ours else (0, 2))
    assert (on_both(fleet), fleet.ledger.nodes["n1"].migrating) == ((2, 2), amount(2))
    fleet.apply(PodGone("uid-a"))
    assert (on_both(fleet), fleet.ledger.nodes["n2"].migrating) == ((0, 2), ZERO)
    hear(fleet, "migration")
    hear(fleet, STARTED)
    assert (on_both(fleet), dict(fleet.ledger.migrations)) == ((0, 2), {})


@pytest.mark.parametrize("order", interleavings(FAILURE), ids="-".join)
def test_failure_keeps_source_in_any_order(order: tuple[str, ...]) -> None:
    fleet = reserved_move()
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
def test_restart_in_any_phase_matches(
    pods: tuple[PodFacts, ...], facts: MigrationFacts, reserved: tuple[float, float], leaving: float
) -> None:
    fleet = Fleet(node(), node("n2"))
    known = vm("a", amount(2), pod=name("a-pod"))
    for _ in range(2):
        fleet.apply(Listed([node(), node("n2")], pods, [known], [facts]), LATER)
        assert (on_both(fleet), fleet.ledger.nodes["n1"].migrating) == (reserved, amount(leaving))


def test_handed_over_source_stays_leaving() -> None:
    fleet = reserved_move()
    events: tuple[Event, ...] = (target_pod("n2"), STARTED, "vm", target_pod("n2", owner=None), DONE)
    for event in events:
        hear(fleet, event)
    assert fleet.ledger.nodes["n1"].migrating == amount(2)
    assert fleet.ledger.claims["uid-t"].is_migrating is False


def test_dead_source_keeps_booking_until_failure() -> None:
    fleet = reserved_move()
    fleet.apply(PodGone("uid-a"))
    assert on_both(fleet) == (0, 2)
    hear(fleet, migration("a", FAILED, to="n2"))
    assert on_both(fleet) == (0, 0)


def test_cancelled_migration_drops_booking_first() -> None:
    fleet = reserved_move()
    hear(fleet, migration("a", PENDING, to="n2", is_terminating=True))
    assert (on_both(fleet), fleet.ledger.nodes["n1"].migrating) == ((2, 0), amount(2))
    hear(fleet, "migration")
    assert fleet.ledger.nodes["n1"].migrating == ZERO


def test_stale_news_changes_nothing() -> None:
    fleet = reserved_move()
    hear(fleet, replace(DONE, version=5))
    hear(fleet, STARTED)
    assert fleet.ledger.migrations[ONE].phase is SUCCEEDED
    hear(fleet, "migration")
    hear(fleet, STARTED)
    assert dict(fleet.ledger.migrations) == {}


def test_another_migration_of_the_same_name_begins_anew() -> None:
    fleet = reserved_move()
    hear(fleet, DONE)
    hear(fleet, replace(migration("a", PENDING, to="n2"), uid="another"))
    assert (fleet.ledger.migrations[ONE].phase, on_both(fleet)) == (PENDING, (2, 2))


def test_sourceless_migration_means_running_pod() -> None:
    fleet = two_nodes()
    hear(fleet, migration("a", PENDING, is_ours=False))
    assert (fleet.ledger.claims["uid-a"].is_migrating, fleet.ledger.migrations[ONE].source) == (True, "n1")


def test_two_migrations_book_once() -> None:
    fleet = reserved_move()
    second = migration("a", PENDING, to="n2", number=2)
    hear(fleet, second)
    assert on_both(fleet) == (2, 2)
    hear(fleet, "migration")
    assert (on_both(fleet), "reservation of db/a-2" in fleet.ledger.claims) == ((2, 2), True)


def test_manual_target_reserves_room() -> None:
    fleet = two_nodes()
    hear(fleet, migration("a", PENDING, to="n2", is_ours=False))
    assert on_both(fleet) == (2, 2)


def test_freed_room_goes_to_waiting_vm() -> None:
    """With and without a change of its reservation by that permit."""
    for wanted in (amount(2), amount(3)):
        fleet = two_nodes()
        fleet.apply(PodSeen(plain_pod("large", amount(9), "n2")))
        hear(fleet, migration("a", PENDING, to="n2", is_ours=False))
        fleet.apply(PodGone("uid-large"))
        assert fleet.on("n2") == ZERO
        fleet.grant("a", wanted)
        assert fleet.on("n2") == wanted


def test_migration_before_vm_books_later() -> None:
    fleet = Fleet(node(), node("n2"))
    hear(fleet, migration("a", PENDING, to="n2"))
    assert on_both(fleet) == (0, 0)
    fleet.apply(VmSeen(vm("a", amount(2))), LATER)
    assert on_both(fleet) == (0, 2)
    fleet.apply(VmGone(name("a")))
    assert on_both(fleet) == (0, 0)
