"""Cooldowns of VMs, migrations to cancel, and objects to delete."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.messages import ObjectName
from protocol.units import Seconds
from scheduler_plugin.ledger.events import (
    MigrationCreateEnded,
    MigrationGone,
    NodeGone,
    NodeSeen,
    PodGone,
    PodSeen,
    WriteOutcome,
)
from scheduler_plugin.ledger.facts import MigrationFacts, MigrationPhase, PodFacts
from scheduler_plugin.planner.plan import Cancel, MigrationPolicy, MovePlan
from scheduler_plugin.planner.victims import MoveDelays
from tests.scheduler_plugin.ledger.fleet import LATER, amount, migration, name
from tests.scheduler_plugin.ledger.fleet import node as node_with_system
from tests.scheduler_plugin.planner.planner_fixture import WALL, PlannerFixture, node

PENDING, RUNNING = MigrationPhase.PENDING, MigrationPhase.RUNNING
SUCCEEDED, FAILED = MigrationPhase.SUCCEEDED, MigrationPhase.FAILED


def over(number: int, phase: MigrationPhase, ago: float) -> MigrationFacts:
    """A migration of the VM ``a`` that ended this many seconds before the fixture's start."""
    return replace(migration("a", phase, number=number, ended_at=WALL - ago), source_pod=name(f"earlier-{number}"))


def pressed(*earlier: MigrationFacts, drains: bool = False, **more: object) -> PlannerFixture:
    """Only the VM ``a`` could leave the full node n1; ``earlier`` migrations of it are known."""
    fixture = PlannerFixture(node("n1", is_open=not drains), node("n2", 20), **more)  # type: ignore[arg-type] # names of arguments
    fixture.add("a", "n1", 8)
    for facts in earlier:
        fixture.migration(facts)
    return fixture


def moves_first_after(fixture: PlannerFixture) -> float:
    """Seconds from the fixture's start until the VM moves, planning once a second; objects to delete are gone in the
    next round.
    """
    plan = fixture.plan()
    while not plan.moves:
        for ended in plan.forget:
            fixture.fleet.apply(MigrationGone(ended))
        assert (plan.cancels, fixture.now < LATER + 10_000) == ((), True)
        plan = fixture.plan(after=1.0)
    return fixture.now - LATER


# Rest ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("earlier", "seconds"),
    [
        ((), 10),
        ((over(1, SUCCEEDED, 100),), 3501),
        ((over(1, FAILED, 20),), 40),
        ((over(1, FAILED, 200), over(2, FAILED, 20)), 100),
        ((over(2, FAILED, 20), over(3, FAILED, 40), over(1, FAILED, 200)), 220),
        ((over(1, FAILED, 500), over(2, SUCCEEDED, 400), over(3, FAILED, 20)), 40),
        ((over(1, FAILED, 20), over(2, SUCCEEDED, 10)), 3591),
        (tuple(over(number, FAILED, 0) for number in range(9)), 3600),
        ((replace(over(1, SUCCEEDED, 0), ended_at=None, created_at=WALL - 50),), 3551),
    ],
)
def test_vm_rests_longer_after_failures(earlier: tuple[MigrationFacts, ...], seconds: float) -> None:
    assert moves_first_after(pressed(*earlier)) == seconds


@pytest.mark.parametrize(
    ("earlier", "seconds"),
    [
        ((over(1, SUCCEEDED, 0),), 10),
        ((over(1, FAILED, 0),), 60),
        ((over(1, FAILED, 5), over(2, SUCCEEDED, 0)), 10),
    ],
)
def test_drained_node_waits_only_after_failures(earlier: tuple[MigrationFacts, ...], seconds: float) -> None:
    assert moves_first_after(pressed(*earlier, drains=True)) == seconds


@pytest.mark.parametrize(("drains", "seconds"), [(False, 60), (True, 10)], ids=["over its watermark", "cordoned"])
def test_cordon_settles_sooner_than_peak(drains: bool, seconds: float) -> None:
    patient = MigrationPolicy(settle=Seconds(60.0))
    assert moves_first_after(pressed(drains=drains, policy=patient)) == seconds


def test_vm_with_deleted_migration_rests() -> None:
    fixture = pressed()
    (move,) = fixture.settled().moves
    fixture.carry_out(move)
    fixture.migration(migration("a", PENDING, to="n2"))
    assert fixture.plan().moves == ()
    fixture.fleet.apply(MigrationGone(name("a-1")))
    assert moves_first_after(fixture) == 310


def test_vm_with_deleting_migration_rests() -> None:
    fixture = pressed()
    (move,) = fixture.settled().moves
    fixture.carry_out(move)
    fixture.migration(migration("a", PENDING, to="n2", is_terminating=True))
    fixture.plan()
    fixture.migration(migration("a", FAILED, to="n2", is_terminating=True, version=3))
    fixture.plan()
    fixture.fleet.apply(MigrationGone(name("a-1")))
    assert moves_first_after(fixture) == 310


def test_unmade_order_does_not_blame_vm() -> None:
    fixture = pressed()
    (move,) = fixture.settled().moves
    fixture.carry_out(move)
    fixture.plan()
    fixture.fleet.apply(MigrationCreateEnded(name("a-1"), WriteOutcome.REFUSED))
    assert moves_first_after(fixture) == 20


@pytest.mark.parametrize("looks", [0, 1])
def test_lost_target_does_not_blame_vm(looks: int) -> None:
    fixture = pressed()
    (move,) = fixture.settled().moves
    fixture.carry_out(move)
    fixture.migration(migration("a", PENDING, to="n2"))
    fixture.fleet.apply(NodeSeen(node("n3", 20)))  # type: ignore[arg-type] # node() makes nodes
    fixture.fleet.apply(NodeGone("n2"))
    fixture.plan()
    fixture.migration(migration("a", PENDING, to="n2", is_terminating=True, version=3))
    for _ in range(looks):
        fixture.plan()
    fixture.fleet.apply(MigrationGone(name("a-1")))
    assert moves_first_after(fixture) == 20


def test_an_ended_migration_that_is_deleted_has_ended() -> None:
    fixture = pressed(over(1, FAILED, 60))
    fixture.plan()
    fixture.fleet.apply(MigrationGone(name("a-1")))
    assert moves_first_after(fixture) == 10


def test_how_long_vms_rest_is_a_setting() -> None:
    rest = MoveDelays(cooldown=Seconds(1), backoff=Seconds(100), max_backoff=Seconds(150))
    two = (over(1, FAILED, 0), over(2, FAILED, 0))
    assert moves_first_after(pressed(*two, policy=MigrationPolicy(delays=rest))) == 150


# What must not go on -------------------------------------------------------------------------------------------------


def ordered(*, out: int = 1, sizes: tuple[float, ...] = (8,)) -> PlannerFixture:
    """VMs v0, v1... on n1; migrations of those that must leave it are ordered and have not begun."""
    fixture = PlannerFixture(
        node("n1"), node("n2", 40), policy=MigrationPolicy(settle=Seconds(10.0), per_cluster=9, out_per_node=out)
    )
    for number, size in enumerate(sizes):
        fixture.add(f"v{number}", "n1", size, load=float(number))
    for move in fixture.settled().moves:
        fixture.carry_out(move)
    return fixture


def cancelled(plan: MovePlan) -> dict[str, str]:
    return {cancel.migration.name: cancel.why for cancel in plan.cancels}


def test_needless_move_is_cancelled_after_while() -> None:
    fixture = ordered(sizes=(4, 4))
    assert fixture.plan(after=60).cancels == ()
    fixture.fleet.resize("v1", amount(1))
    fixture.tell("v1", amount(1))
    assert fixture.plan().cancels == ()
    assert fixture.plan(after=9.9).cancels == ()
    plan = fixture.plan(after=0.1)
    assert plan == MovePlan(cancels=(Cancel(name("v0-1"), "node n1 no longer needs it"),))
    fixture.fleet.apply(MigrationCreateEnded(name("v0-1"), WriteOutcome.REFUSED))
    assert fixture.plan(after=60) == MovePlan()
    assert fixture.ledger.nodes["n1"].migrating == amount(0)


def test_what_is_needed_again_in_between_goes_on() -> None:
    fixture = ordered(sizes=(4, 4))
    for size in (1, 4):
        fixture.fleet.resize("v1", amount(size))
        fixture.tell("v1", amount(size))
        assert fixture.plan(after=9).cancels == ()
    assert fixture.plan(after=9).cancels == ()


def test_newest_needless_moves_are_cancelled() -> None:
    fixture = ordered(out=2, sizes=(2, 2, 6))
    assert list(fixture.ledger.migrations) == [name("v0-1"), name("v1-1")]
    fixture.fleet.resize("v2", amount(4))
    fixture.tell("v2", amount(4))
    fixture.plan()
    assert list(cancelled(fixture.plan(after=10))) == ["v1-1"]


@pytest.mark.parametrize(
    "facts",
    [
        migration("v0", RUNNING, to="n2"),
        migration("v0", PENDING, to="n2", is_terminating=True),
        migration("v0", PENDING, to="n2", is_ours=False),
    ],
    ids=["begun", "being cancelled", "a person's"],
)
def test_begun_or_foreign_moves_are_kept(facts: MigrationFacts) -> None:
    fixture = ordered(sizes=(4, 4))
    fixture.migration(replace(facts, source_pod=name("v0-pod")))
    fixture.fleet.resize("v1", amount(1))
    fixture.tell("v1", amount(1))
    fixture.plan()
    assert fixture.plan(after=60).cancels == ()


def test_placed_target_means_begun() -> None:
    fixture = ordered(sizes=(4, 4))
    target = PodFacts("uid-t", name("v0-target"), amount(0.1), name("v0"), "n2", migration=name("v0-1"))
    fixture.fleet.apply(PodSeen(target))
    fixture.fleet.resize("v1", amount(1))
    fixture.tell("v1", amount(1))
    fixture.plan()
    assert fixture.plan(after=60).cancels == ()


def test_uncordoned_node_stops_draining() -> None:
    fixture = PlannerFixture(node("n1", is_open=False), node("n2"))
    fixture.add("a", "n1", 1)
    (move,) = fixture.settled().moves
    fixture.carry_out(move)
    assert fixture.plan(after=60).cancels == ()
    fixture.fleet.apply(NodeSeen(node_with_system("n1", 11)))
    fixture.plan()
    assert cancelled(fixture.plan(after=10)) == {"a-1": "node n1 no longer needs it"}


def test_gone_source_is_left_to_controller() -> None:
    fixture = ordered(sizes=(4, 4))
    fixture.fleet.apply(PodGone("uid-v0"))
    fixture.plan()
    assert fixture.plan(after=60).cancels == ()


def test_impossible_target_cancels_move() -> None:
    fixture = ordered()
    fixture.fleet.apply(NodeGone("n2"))
    assert cancelled(fixture.plan()) == {"v0-1": "it cannot be placed on its target: node n2 is gone"}
    fixture.migration(migration("v0", PENDING, to="n2", is_terminating=True))
    assert fixture.plan().cancels == ()


def test_what_does_not_end_is_cancelled() -> None:
    fixture = ordered()
    fixture.migration(migration("v0", RUNNING, to="n2"))
    assert fixture.plan(after=329.9).cancels == ()
    assert cancelled(fixture.plan(after=0.2)) == {"v0-1": "it did not finish within 300 s"}


# What may be forgotten -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("earlier", "forgotten"),
    [
        ((over(1, SUCCEEDED, 3599),), []),
        ((over(1, SUCCEEDED, 3600),), ["a-1"]),
        ((over(1, FAILED, 7199),), []),
        ((over(1, FAILED, 7200),), ["a-1"]),
        ((over(1, FAILED, 20), over(2, SUCCEEDED, 10)), ["a-1"]),
        ((replace(over(1, SUCCEEDED, 4000), is_ours=False),), []),
        ((replace(over(1, SUCCEEDED, 4000), is_terminating=True),), []),
        ((migration("a", RUNNING, to="n2"),), []),
    ],
)
def test_irrelevant_ended_migrations_are_forgotten(earlier: tuple[MigrationFacts, ...], forgotten: list[str]) -> None:
    fixture = PlannerFixture(node("n1"), node("n2"))
    fixture.add("a", "n1", 1)
    for facts in earlier:
        fixture.migration(facts)
    assert fixture.plan() == MovePlan(forget=tuple(ObjectName("db", each) for each in forgotten))


def test_ended_migration_stays_during_the_next_one() -> None:
    """NeonVM's controller would cancel the next one, and delete the pod in which the VM has run since the first."""
    fixture = pressed(over(1, SUCCEEDED, 4000), drains=True)
    fixture.migration(migration("a", PENDING, number=2, to="n2"))
    assert fixture.plan().forget == ()
    fixture.migration(migration("a", FAILED, number=2, version=2, ended_at=WALL))
    assert fixture.plan().forget == (name("a-1"),)


@pytest.mark.parametrize("is_ours", [True, False])
def test_vm_waits_for_deletion_of_ended_migration(is_ours: bool) -> None:
    fixture = pressed(replace(over(1, SUCCEEDED, 4000), is_ours=is_ours, is_terminating=not is_ours), drains=True)
    planned = fixture.settled()
    assert planned.moves == ()
    assert "with a finished migration that is still being deleted" in planned.stuck[0].why
    fixture.migration(replace(over(1, SUCCEEDED, 4000), is_terminating=True, version=2))
    assert fixture.plan(after=1.0).moves == ()
    fixture.fleet.apply(MigrationGone(name("a-1")))
    assert [move.vm for move in fixture.plan(after=1.0).moves] == [name("a")]


def test_failures_of_gone_vm_are_forgotten() -> None:
    fixture = PlannerFixture(node("n1"))
    fixture.migration(over(1, FAILED, 7200))
    assert fixture.plan().forget == (name("a-1"),)
