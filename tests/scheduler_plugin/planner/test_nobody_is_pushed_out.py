"""One VM's requests and edits move its neighbours only if that helps it."""

from __future__ import annotations

import pytest

from protocol.units import Resources
from scheduler_plugin.ledger.events import PodGone
from scheduler_plugin.planner.plan import MovePlan
from tests.scheduler_plugin.ledger.fleet import amount
from tests.scheduler_plugin.planner.planner_fixture import PlannerFixture, node

HUGE = amount(1000)
EDITS = {
    "use and maximum": {"use": HUGE, "maximum": HUGE},
    "use": {"use": amount(9)},
    "permit and maximum": {"permit": HUGE, "maximum": HUGE},
    "guest": {"actual": HUGE, "use": HUGE, "maximum": HUGE},
    "grant of another scheduler": {"granted": HUGE, "maximum": HUGE},
    "an unreadable value": {"unreadable": "spec: garbage", "is_bounded": False},
}


def shared(**facts: object) -> PlannerFixture:
    """n1 has VMs of 2, 2 and 2 of 10, below its watermark of 7; the first is edited."""
    fixture = PlannerFixture(node("n1"), node("n2"))
    for each in ("b", "c"):
        fixture.add(each, "n1", 2)
    fixture.add("a", "n1", 2, load=9.0, facts={"actual": amount(2), **facts})
    return fixture


def moved(plan: MovePlan) -> set[str]:
    return {each.vm.name for each in plan.moves}


@pytest.mark.parametrize("facts", EDITS.values(), ids=EDITS)
def test_an_edit_of_a_vm_moves_no_neighbour(facts: dict[str, object]) -> None:
    assert moved(shared(**facts).settled()) <= {"a"}


@pytest.mark.parametrize("wanted", [HUGE, amount(11), amount(11, 2)], ids=str)
def test_vm_larger_than_node_gets_whole_node(wanted: Resources) -> None:
    """No node is larger, so its neighbours leave. After that nothing more can be done for it."""
    fixture = shared(maximum=HUGE)
    for _ in range(2):
        fixture.tell("a", wanted)
        (move,) = fixture.settled().moves
        assert move.vm.name in ("b", "c")
        fixture.ledger.apply(PodGone(f"uid-{move.vm.name}"), fixture.now)
    fixture.tell("a", wanted)
    plan = fixture.settled()
    assert plan.moves == ()
    assert plan.stuck[0].why == "no node has room below its watermark for any of 1 movable VMs"
    assert fixture.ledger.claims["uid-a"].reserved == wanted.at_most(amount(10))


def test_no_move_for_vm_with_whole_node() -> None:
    fixture = shared(maximum=HUGE, actual=amount(10), use=amount(10), auto_migration=False)
    plan = fixture.settled()
    assert plan.moves == ()
    assert "2 on a node where one VM requests more than the whole node" in plan.stuck[0].why


def test_it_moves_itself_to_a_larger_node() -> None:
    fixture = PlannerFixture(node("n1"), node("n2", 30))
    for each in ("a", "b", "c"):
        fixture.add(each, "n1", 2, facts={"maximum": HUGE})
    fixture.tell("a", amount(12))
    assert {move.vm.name: move.target for move in fixture.settled().moves} == {"a": "n2"}


def test_room_is_made_on_sufficient_node() -> None:
    fixture = shared(maximum=amount(9))
    fixture.tell("a", amount(9))
    assert moved(fixture.settled())
