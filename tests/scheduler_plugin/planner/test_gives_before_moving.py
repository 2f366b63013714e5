"""A VM moves only for room that its neighbours have not given back (B.17)."""

from __future__ import annotations

import pytest
from msgspec import structs

from protocol.guest.sleep import ASLEEP
from protocol.units import ZERO
from scheduler_plugin.ledger.events import VmSeen
from scheduler_plugin.ledger.moves import MoveCause
from scheduler_plugin.planner.beneficiaries import room_being_made
from tests.scheduler_plugin.ledger.fleet import amount, name
from tests.scheduler_plugin.planner.planner_fixture import PlannerFixture, node


def full(target: float = 40) -> PlannerFixture:
    """Three VMs use nine tenths of n1, whose watermark is at seven; there is room on n2."""
    fixture = PlannerFixture(node("n1"), node("n2", target))
    for of, size in (("large", 4), ("small", 2), ("starving", 3)):
        fixture.add(of, "n1", size)
    return fixture


def first_move(fixture: PlannerFixture) -> tuple[float, MoveCause] | None:
    """Time and reason of the first move, planning once a second for two minutes."""
    fixture.plan()
    began = fixture.now
    while fixture.now < began + 120:
        plan = fixture.plan(after=1.0)
        if plan.moves:
            return fixture.now - began, plan.moves[0].cause
    return None


def test_nobody_moves_while_neighbours_promise_enough() -> None:
    fixture = full()
    fixture.tell("large", amount(4), needs=amount(1))
    fixture.fleet.resize("large", amount(1), now=fixture.now)
    fixture.tell("large", amount(1), needs=amount(1))
    assert first_move(fixture) is None


def test_broken_promise_delays_move_by_30_seconds() -> None:
    fixture = full()
    fixture.tell("large", amount(4), needs=amount(1))
    assert first_move(fixture) == (30.0, MoveCause.WATERMARK)


def test_nobody_moves_while_an_idle_vm_falls_asleep() -> None:
    fixture = full()
    may_sleep = amount(0, 4)
    fixture.tell("large", amount(4), needs=may_sleep)
    assert first_move(fixture) == (30.0, MoveCause.WATERMARK)
    fixture = full()
    fixture.tell("large", amount(4), needs=may_sleep)
    asleep = structs.replace(
        fixture.fleet.vms[name("large")], version=9, phase=ASLEEP, use=ZERO, actual=None, wakes_with=amount(4)
    )
    fixture.fleet.vms[name("large")] = asleep
    fixture.fleet.apply(VmSeen(asleep), fixture.now)
    fixture.tell("large", ZERO)
    assert first_move(fixture) is None


def test_vm_moves_for_rest_beyond_promises() -> None:
    fixture = full()
    fixture.tell("large", amount(4), needs=amount(3))
    assert first_move(fixture) == (10.0, MoveCause.WATERMARK)


def test_denied_vm_waits_for_a_promise_first() -> None:
    fixture = full()
    fixture.tell("starving", amount(5, 3), needs=amount(5, 2))  # its own memory would not help it
    fixture.tell("large", amount(4), needs=amount(1))
    claim = fixture.ledger.claims["uid-starving"]
    said = "VM db/large has been asked to give back 3 vCPU and 3 GiB that it does not need"
    assert list(room_being_made(fixture.ledger, claim, fixture.now)) == [said]
    assert first_move(fixture) == (30.0, MoveCause.DENIED_VM)


@pytest.mark.parametrize(("target", "moves"), [(9.0, False), (12.0, True)])
def test_target_keeps_tenth_of_watermark_free(target: float, moves: bool) -> None:
    """A tenth of the target's watermark is left below it."""
    fixture = PlannerFixture(node("n1"), node("n2", target))
    for of in ("a", "b"):
        fixture.add(of, "n1", 4)
    fixture.add("there", "n2", 2)
    assert (first_move(fixture) is not None) is moves


@pytest.mark.parametrize(("source", "target", "there", "moves"), [(100, 8, 0, True), (10, 40, 22, False)])
def test_each_target_keeps_tenth_of_its_own_watermark(source: int, target: int, there: int, moves: bool) -> None:
    """A small empty node accepts a large node's VM; a large node may be nearly full even for a small VM."""
    fixture = PlannerFixture(node("n1", source), node("n2", target))
    for number in range(source * 7 // 40 + 1):
        fixture.add(f"vm{number}", "n1", 4)
    fixture.add("there", "n2", there)
    assert fixture.ledger.nodes["n1"].pressure.has_excess
    assert (first_move(fixture) is not None) is moves
