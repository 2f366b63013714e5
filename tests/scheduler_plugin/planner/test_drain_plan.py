"""VMs that leave a node under pressure, their targets, and why no other VM leaves (S4.8)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.units import Bytes, Instant, Resources
from scheduler_plugin.ledger.events import NodeGone, NodeSeen, PodGone, PodSeen, TimePassed, VmGone, VmSeen
from scheduler_plugin.ledger.facts import MigrationPhase
from scheduler_plugin.ledger.moves import START_TIMEOUT, Move, MoveCause
from scheduler_plugin.planner.cost import ordered_by
from scheduler_plugin.planner.plan import MigrationPolicy, MovePlan, StuckNode
from scheduler_plugin.planner.victims import Victim
from tests.scheduler_plugin.ledger.fleet import amount, migration, name, plain_pod, vm_pod
from tests.scheduler_plugin.ledger.fleet import node as node_with_system
from tests.scheduler_plugin.planner.planner_fixture import PlannerFixture, node, pressed

PENDING, SUCCEEDED, FAILED = MigrationPhase.PENDING, MigrationPhase.SUCCEEDED, MigrationPhase.FAILED


def test_a_fleet_below_its_watermarks_is_left_alone() -> None:
    fixture = PlannerFixture(node("n1"), node("n2"))
    fixture.add("a", "n1", 7)
    assert fixture.settled() == MovePlan()


def test_least_loaded_vm_moves_to_best_node() -> None:
    pressure, cost = "node n1 is 1 vCPU and 1 GiB above its watermark", "frees 2 vCPU and 2 GiB and copies 2 GiB"
    why = f"{pressure}; moving it {cost}; its load is 0.5"
    move = Move(name("b"), "uid-b", "n1", "n2", why, MoveCause.WATERMARK)
    assert pressed().settled() == MovePlan(moves=(move,))


def test_what_is_ordered_counts_as_gone() -> None:
    fixture = pressed()
    (move,) = fixture.settled().moves
    assert fixture.plan().moves == (move,)
    fixture.carry_out(move)
    assert fixture.plan(after=60) == MovePlan()


# Damping -------------------------------------------------------------------------------------------------------------


def test_a_short_spike_moves_nobody() -> None:
    fixture = pressed()
    assert fixture.plan() == MovePlan()
    assert fixture.plan(after=9.9) == MovePlan()
    fixture.fleet.apply(PodSeen(plain_pod("extra", amount(0.5), "n1")))
    assert len(fixture.plan(after=0.1).moves) == 1
    fixture.fleet.resize("c", amount(1))
    fixture.tell("c", amount(1))
    fixture.fleet.apply(PodGone("uid-extra"))
    assert fixture.plan(after=1) == MovePlan()
    fixture.fleet.resize("c", amount(3))
    assert fixture.plan(after=1) == MovePlan()
    assert fixture.plan(after=9) == MovePlan()
    assert len(fixture.plan(after=1).moves) == 1


def test_denying_node_waits_for_second_request() -> None:
    fixture = PlannerFixture(node("n1"), node("n2"))
    fixture.add("a", "n1", 3, load=1.0)
    fixture.add("b", "n1", 4, load=2.0)
    fixture.tell("b", amount(8))
    fixture.fleet.resize("b", amount(7))
    assert fixture.plan() == MovePlan()
    assert fixture.plan(after=2.9) == MovePlan()
    (move,) = fixture.plan(after=0.1).moves
    said = "node n1 lacks 1 vCPU and 1 GiB and denies VMs"
    assert (move.vm, move.cause, move.reason.split(";")[0]) == (name("a"), MoveCause.DENIED_VM, said)


def test_satisfied_vm_leaves_wait_time() -> None:
    fixture = PlannerFixture(node("n1"), node("n2"))
    fixture.add("a", "n1", 3, load=1.0)
    fixture.add("b", "n1", 4, load=2.0)
    fixture.tell("b", amount(8))
    fixture.plan()
    fixture.tell("b", amount(7))
    assert fixture.plan(after=3) == MovePlan()
    assert len(fixture.plan(after=7).moves) == 1


def test_replaced_node_is_replanned() -> None:
    fixture = pressed()
    assert fixture.plan() == MovePlan()
    for of in "abc":
        fixture.fleet.apply(PodGone(f"uid-{of}"))
    fixture.fleet.apply(NodeGone("n1"))
    fixture.fleet.apply(NodeSeen(node_with_system("n1", 11)))
    for of in "ab":
        fixture.add(f"{of}2", "n1", 5)
    (move,) = fixture.plan(after=10).moves
    assert (move.vm, move.reason.split(";")[0]) == (name("a2"), "node n1 is 1 vCPU and 1 GiB above its watermark")
    (move,) = fixture.plan(after=11).moves
    assert (move.vm, move.reason.split(";")[0]) == (name("a2"), "node n1 is 3 vCPU and 3 GiB above its watermark")


# Enough, and not more ------------------------------------------------------------------------------------------------


def test_as_many_move_as_are_needed() -> None:
    fixture = PlannerFixture(
        node("n1"), node("n2"), policy=MigrationPolicy(per_cluster=9, out_per_node=9, in_per_node=9)
    )
    for number in range(9):
        fixture.add(f"v{number}", "n1", 1, load=float(number))
    assert fixture.moves() == {"v0": "n2", "v1": "n2"}


def test_small_vm_stays_if_larger_moves() -> None:
    fixture = PlannerFixture(node("n1"), node("n2"), policy=MigrationPolicy(per_cluster=9, out_per_node=9))
    fixture.add("idle", "n1", 1, load=0.0)
    fixture.add("large", "n1", 4, load=0.5)
    fixture.add("busy", "n1", 5, load=3.0)
    assert fixture.moves() == {"large": "n2"}


def test_who_has_nothing_of_what_is_short_stays() -> None:
    fixture = PlannerFixture(node("n1"), node("n2"))
    fixture.add("cpu only", "n1", Resources(amount(3).cpu, Bytes(0)), load=0.0)
    fixture.add("both", "n1", amount(1, 8), load=1.0)
    fixture.fleet.apply(PodSeen(plain_pod("large", amount(1, 1), "n1")))
    assert fixture.ledger.nodes["n1"].pressure.excess == amount(0, 2)
    assert fixture.settled().moves == ()
    fixture.add("small", "n1", amount(1, 1), load=2.0)
    assert fixture.moves() == {"small": "n2"}


def test_memory_alone_is_reason_enough() -> None:
    fixture = PlannerFixture(node("n1"), node("n2"))
    fixture.add("a", "n1", amount(1, 4), load=1.0)
    fixture.add("b", "n1", amount(1, 4), load=0.0)
    assert fixture.moves() == {"b": "n2"}


def test_target_has_room_for_denied_size() -> None:
    fixture = PlannerFixture(node("n1"), node("tight", 8), node("wide", 20))
    fixture.add("others", "tight", 2)
    fixture.add("a", "n1", 2, load=0.0)
    fixture.add("b", "n1", 7, load=1.0)
    fixture.tell("a", amount(6))
    assert fixture.ledger.claims["uid-a"].unmet == amount(3)
    assert fixture.moves() == {"a": "wide"}


# The order -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "moves"),
    [
        ({"load": 0.6}, {"load": 0.4}, "second"),
        ({"load": 1.08, "mem_used": 1}, {"load": 1.02, "mem_used": 2}, "first"),
        ({"load": 1.02, "mem_used": 2}, {"load": 1.08, "mem_used": 1}, "second"),
        ({"load": 5.0}, {"load": None}, "first"),
        ({"load": None}, {"load": None}, "first"),
        ({"load": 1.0, "mem_used": 1}, {"load": 1.0}, "first"),
    ],
)
def test_least_loaded_then_smallest_copy_first(
    first: dict[str, float | None], second: dict[str, float | None], moves: str
) -> None:
    fixture = PlannerFixture(node("n1"), node("n2"))
    fixture.add("second", "n1", 4, **second)  # type: ignore[arg-type] # names of arguments
    fixture.add("first", "n1", 4, **first)  # type: ignore[arg-type] # names of arguments
    assert list(fixture.moves()) == [moves]


def test_one_large_vm_precedes_several_small() -> None:
    fixture = PlannerFixture(node("n1"), node("n2"), policy=MigrationPolicy(per_cluster=9, out_per_node=9))
    for of, size in (("tiny", 1), ("small", 1), ("fits", 2), ("large", 4)):
        fixture.add(of, "n1", size, load=0.1, mem_used=size)
    fixture.add("busy", "n1", 1, load=0.9)
    assert fixture.moves() == {"fits": "n2"}


def test_dirty_rate_raises_copy_cost() -> None:
    fixture = PlannerFixture(node("n1"), node("n2"))
    for of, mem in (("writes", 1.0), ("reads", 1.5)):
        fixture.add(of, "n1", 4, load=0.0, mem_used=mem)
    assert list(fixture.moves()) == ["writes"]
    failed = migration("writes", phase=FAILED, ended_at=1.0)
    fixture.migration(failed)
    fixture.migration(replace(failed, version=2, dirty_rate=Bytes.parse("200Mi")))
    assert list(fixture.moves()) == ["reads"]


def test_another_order_may_be_given() -> None:
    def oldest_first(victim: Victim, _: Resources | None) -> tuple[float, ...]:
        return (float(victim.index),)

    assert pressed(select=ordered_by(oldest_first)).moves() == {"a": "n2"}


# Who may not move ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "pod", "why"),
    [
        ({"stays_because": "not autoscaled"}, {}, "not autoscaled"),
        ({}, {"scheduler": "other"}, "placed by another scheduler"),
        ({"phase": "Migrating"}, {}, "in phase Migrating"),
        ({"phase": "Scaling"}, {}, "in phase Scaling"),
        ({"pod": None}, {}, "not running in one pod"),
        ({"pod": name("other")}, {}, "not running in one pod"),
    ],
)
def test_immovable_vm_is_explained_on_node(facts: dict[str, object], pod: dict[str, object], why: str) -> None:
    fixture = PlannerFixture(node("n1"), node("n2"))
    fixture.add("a", "n1", 8, facts=facts, pod=pod)
    assert fixture.settled() == MovePlan(stuck=(StuckNode("n1", f"no VM may move: 1 {why}"),))


def test_resizing_vm_is_not_moved() -> None:
    fixture = PlannerFixture(node("n1"), node("n2"))
    fixture.add("a", "n1", 4, load=0.0, facts={"phase": "Scaling"})
    fixture.add("b", "n1", 4, load=1.0)
    assert fixture.moves() == {"b": "n2"}


def test_unsettled_vms_stay() -> None:
    fixture = PlannerFixture(node("n1"), node("n2"), policy=MigrationPolicy(per_cluster=9, out_per_node=9))
    for of in ("double", "deleted"):
        fixture.add(of, "n1", 4)
    fixture.fleet.apply(PodSeen(vm_pod("double", "n2", "uid-second")))
    fixture.fleet.apply(VmGone(name("deleted")))
    fixture.fleet.apply(PodSeen(vm_pod("unknown", "n1")))
    fixture.fleet.apply(VmSeen(fixture.fleet.vms[name("deleted")]), fixture.now)
    fixture.fleet.apply(VmGone(name("deleted")))
    assert fixture.settled().stuck == (
        StuckNode("n1", "no VM may move: 1 not known to the scheduler, 2 not running in one pod"),
    )


def test_manually_moved_vm_is_left_alone() -> None:
    fixture = PlannerFixture(node("n1"), node("n2"), policy=MigrationPolicy(per_cluster=9, out_per_node=9))
    fixture.add("a", "n1", 5)
    fixture.fleet.apply(PodSeen(plain_pod("b", amount(5), "n1")))
    fixture.migration(migration("a", PENDING, is_ours=False))
    assert fixture.settled() == MovePlan()
    fixture.fleet.apply(PodSeen(plain_pod("c", amount(6), "n1")))
    assert fixture.settled().stuck == (StuckNode("n1", "no VM may move: 1 already migrating"),)
    fixture.fleet.apply(TimePassed(), Instant(fixture.now + START_TIMEOUT))
    assert fixture.settled().stuck == (StuckNode("n1", "no VM may move: 1 in a migration that has not started"),)


def test_a_node_full_of_other_pods_says_so() -> None:
    fixture = PlannerFixture(node("n1"), node("n2"))
    fixture.fleet.apply(PodSeen(plain_pod("b", amount(8), "n1")))
    assert fixture.settled().stuck == (StuckNode("n1", "no VM is on it"),)


# Where to ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [node("n2", 4), node("n2", is_open=False)], ids=["above its watermark", "cordoned"])
def test_no_move_without_target(target: object) -> None:
    fixture = PlannerFixture(node("n1"), target)
    fixture.add("a", "n1", 4)
    fixture.add("b", "n1", 4)
    why = "no node has room below 90% of its watermark for any of 2 movable VMs"
    assert fixture.settled() == MovePlan(stuck=(StuckNode("n1", why),))


def test_unplaceable_vm_yields_to_next() -> None:
    fixture = PlannerFixture(node("n1"), node("n2", 4))
    fixture.add("large", "n1", 5, load=0.0)
    fixture.add("small", "n1", 2, load=1.0)
    fixture.add("busy", "n1", 1, load=2.0)
    assert fixture.moves() == {"small": "n2"}


def test_two_nodes_are_not_promised_the_same_room() -> None:
    fixture = PlannerFixture(node("n1"), node("n2"), node("n3", 7))
    for of in ("n1", "n2"):
        fixture.add(f"from-{of}", of, 4, load=0.0)
        fixture.add(f"busy-{of}", of, 4, load=1.0)
    assert fixture.moves() == {"from-n1": "n3"}


def test_a_node_under_pressure_takes_nobody() -> None:
    fixture = PlannerFixture(node("n1"), node("n2", 20))
    fixture.add("a", "n1", 8, load=0.0)
    fixture.add("b", "n2", amount(14.5, 1), load=0.0, facts={"stays_because": "not autoscaled"})
    assert [stuck.node for stuck in fixture.settled().stuck] == ["n1", "n2"]
