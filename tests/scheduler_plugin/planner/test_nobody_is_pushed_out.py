"""What one VM asks for moves no neighbour out, where that would not help it."""

from __future__ import annotations

import pytest

from protocol.units import Resources
from scheduler_plugin.planner import Plan
from tests.scheduler_plugin.ledger.fleet import amount
from tests.scheduler_plugin.planner.planner_fixture import PlannerFixture, node

HUGE = amount(1000)
EDITS = {
    "use and maximum": {"use": HUGE, "most": HUGE},
    "use": {"use": amount(9)},
    "permit and maximum": {"permit": HUGE, "most": HUGE},
    "guest": {"actual": HUGE, "use": HUGE, "most": HUGE},
    "grant of another scheduler": {"granted": HUGE, "most": HUGE},
    "nothing that can be read": {"unreadable": "spec: garbage", "is_bounded": False},
}


def shared(**facts: object) -> PlannerFixture:
    """n1 has VMs of 2, 2 and 2 of 10, below its watermark of 7; the first is edited."""
    fixture = PlannerFixture(node("n1"), node("n2"))
    for each in ("b", "c"):
        fixture.add(each, "n1", 2)
    fixture.add("a", "n1", 2, load=9.0, facts={"actual": amount(2), **facts})
    return fixture


def moved(plan: Plan) -> set[str]:
    return {each.vm.name for each in plan.moves}


@pytest.mark.parametrize("facts", EDITS.values(), ids=EDITS)
def test_an_edit_of_a_vm_moves_no_neighbour(facts: dict[str, object]) -> None:
    assert moved(shared(**facts).settled()) <= {"a"}


@pytest.mark.parametrize("wanted", [HUGE, amount(11), amount(11, 2)], ids=str)
def test_a_vm_that_wants_more_than_its_node_moves_no_neighbour(wanted: Resources) -> None:
    """Its neighbours' leaving would not be enough, and it finds no larger node."""
    fixture = shared(most=HUGE)
    fixture.tell("a", wanted)
    plan = fixture.settled()
    assert plan.moves == ()
    (stuck,) = plan.stuck
    assert stuck.why == "no node has room below its watermark for any of 1 VMs that may move"


def test_what_others_are_kept_for_is_told() -> None:
    fixture = shared(most=HUGE)
    fixture.tell("a", HUGE)
    fixture.add("a", "n1", 2, facts={"most": HUGE, "auto_migration": False})
    fixture.tell("a", HUGE)
    (stuck,) = fixture.settled().stuck
    assert "2 beside a VM that asks for more than the whole node" in stuck.why


def test_it_moves_itself_to_a_larger_node() -> None:
    fixture = PlannerFixture(node("n1"), node("n2", 30))
    for each in ("a", "b", "c"):
        fixture.add(each, "n1", 2, facts={"most": HUGE})
    fixture.tell("a", amount(12))
    assert {move.vm.name: move.target for move in fixture.settled().moves} == {"a": "n2"}


def test_a_vm_that_its_node_can_hold_is_made_room_for() -> None:
    fixture = shared(most=amount(9))
    fixture.tell("a", amount(9))
    assert moved(fixture.settled())
