"""While the cluster has room, a VM leaves a node where another could not grow to its bound (B.17)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.ranking.config import RankingConfig, ScoreCurve
from protocol.units import Instant, Seconds
from scheduler_plugin.ledger.events import NodeSeen, PodSeen
from scheduler_plugin.ledger.moves import Move, MoveCause
from scheduler_plugin.planner.beneficiaries import no_room_to_grow
from scheduler_plugin.planner.headroom import LACKING, LASTING, Headroom
from scheduler_plugin.planner.plan import MovePlan
from tests.scheduler_plugin.ledger.fleet import amount, name, plain_pod
from tests.scheduler_plugin.planner import planner_fixture
from tests.scheduler_plugin.planner.planner_fixture import PlannerFixture, node


def wait_for_room(fixture: PlannerFixture) -> None:
    """The planner has seen room in the cluster for long enough."""
    fixture.plan()
    fixture.now = Instant(fixture.now + LASTING)


def crowded(target: float = 10, bound: float = 7, **more: object) -> PlannerFixture:
    """VMs of 2, 2 and 2 on n1 of 10; one may grow to ``bound`` and lacks 1. n2 has been empty for long."""
    fixture = PlannerFixture(node("n1"), node("n2", target), **more)  # type: ignore[arg-type] # names of arguments
    for of, load in (("grows", 2.0), ("busy", 1.0), ("idle", 0.0)):
        fixture.add(of, "n1", 2, load, facts={"maximum": amount(bound if of == "grows" else 2)})
    wait_for_room(fixture)
    return fixture


def test_cheapest_vm_leaves_once_it_has_lasted() -> None:
    fixture = crowded()
    assert (fixture.plan().moves, fixture.plan(after=9).moves) == ((), ())
    why = "node n1 lacks 1 vCPU and 1 GiB for one of its VMs to grow"
    cost = "moving it frees 2 vCPU and 2 GiB and copies 2 GiB; it is idle"
    plan = fixture.plan(after=1)
    assert plan == MovePlan((Move(name("idle"), "uid-idle", "n1", "n2", f"{why}; {cost}", MoveCause.GROWTH),))


@pytest.mark.parametrize(
    ("target", "bound", "moves"),
    [
        (10, 7, {"idle": "n2"}),
        (10, 6, {}),  # it can grow
        (10, 9, {}),  # two VMs would have to leave
        (10, 11, {}),  # it never fits on this node
        (5, 7, {}),  # the target would be more than half full: its watermark is 3.5
    ],
)
def test_one_vm_moves_to_half_empty_node(target: float, bound: float, moves: dict[str, str]) -> None:
    assert crowded(target, bound).moves() == moves


def test_nothing_moves_if_switched_off() -> None:
    fixture = crowded()
    fixture.policy = replace(fixture.policy, makes_room_to_grow=False)
    assert fixture.moves() == {}


def test_share_of_growth_counts_as_in_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner_fixture, "RANKING", RankingConfig(score=ScoreCurve(growth=0.8)))
    assert crowded().moves() == {}
    assert crowded(bound=8).moves() == {"idle": "n2"}


def explained(fixture: PlannerFixture, share: float = 1.0) -> str:
    """The explanation of the VM on n1 that lacks the most room."""
    claims = fixture.ledger.nodes["n1"].claims.values()
    policy, planner, now = fixture.policy, fixture.planner, fixture.now
    return no_room_to_grow(fixture.ledger, claims, share, lambda of: planner.growth_obstacle(of, policy, now))


LACKS = "db/grows could not grow to its maximum, for which node n1 lacks 1 vCPU and 1 GiB: "


def test_explains_who_leaves_for_growth() -> None:
    fixture = crowded()
    (move,) = fixture.settled().moves
    fixture.carry_out(move)
    assert explained(fixture) == f"{LACKS}VM db/idle is migrating from n1 to n2"
    assert explained(fixture, share=0.8) == ""


@pytest.mark.parametrize(
    ("target", "there", "why"),
    [
        (1, 0, "no node has room below 50% of its watermark for 1 vCPU and 1 GiB"),
        (5, 0, "no node has room below 50% of its watermark for any of 3 movable VMs"),
        (10, 9, "no node has room below 50% of its watermark for any of 3 movable VMs"),
    ],
)
def test_explains_why_nothing_moves_for_growth(target: float, there: float, why: str) -> None:
    fixture = crowded(target)
    if there:
        fixture.add("there", "n2", 1, facts={"maximum": amount(there)})
    assert fixture.settled() == MovePlan()
    assert explained(fixture) == f"{LACKS}{why}"
    fixture.tell("busy", amount(2))
    assert fixture.plan(after=1) == MovePlan()
    assert explained(fixture) == f"{LACKS}{why}"


def test_explains_wait_before_move_for_growth() -> None:
    fixture = PlannerFixture(node("n1"), node("n2", is_open=False))
    assert explained(fixture) == ""
    fixture.add("grows", "n1", 4, facts={"maximum": amount(11)})
    fixture.plan()
    full = (
        "no VM moves for growth until at most 85% of the cluster's watermarks have been reserved for an hour, counted"
    )
    assert explained(fixture) == f"{LACKS}{full} from the scheduler's start"
    wait_for_room(fixture)
    assert explained(fixture) == f"{LACKS}a VM may leave once this has lasted for 10 s"
    fixture.policy = replace(fixture.policy, makes_room_to_grow=False)
    assert explained(fixture) == f"{LACKS}migration.makeRoomToGrow is false in the settings"


def test_pressure_comes_before_growth() -> None:
    fixture = crowded(target=5)
    fixture.tell("grows", amount(4))
    fixture.plan()
    assert explained(fixture) == f"{LACKS}its denials, its watermark or its drain come first"
    fixture.fleet.apply(NodeSeen(planner_fixture.node("n1", is_open=False)), fixture.now)  # type: ignore[arg-type] # node facts
    assert explained(fixture) == ""


def test_node_without_target_is_tried_again() -> None:
    fixture = crowded(target=5)
    assert fixture.settled() == MovePlan()
    fixture.fleet.apply(NodeSeen(planner_fixture.node("n2", 10)), fixture.now)  # type: ignore[arg-type] # node facts
    assert fixture.plan(after=9).moves == ()
    assert [move.vm.name for move in fixture.plan(after=1).moves] == ["idle"]


def test_pressure_after_growth_has_to_last_by_itself() -> None:
    fixture = crowded(target=5)
    fixture.settled()
    fixture.tell("grows", amount(4))
    assert fixture.ledger.nodes["n1"].pressure.has_excess
    assert (fixture.plan().moves, fixture.plan(after=9).moves) == ((), ())
    (move,) = fixture.plan(after=1).moves
    assert (move.vm.name, move.cause) == ("idle", MoveCause.WATERMARK)


def test_pending_move_goes_on() -> None:
    fixture = crowded()
    (move,) = fixture.settled().moves
    fixture.carry_out(move)
    fixture.add("grows", "n1", 2, facts={"maximum": amount(6)})
    assert [fixture.plan(after=5).cancels for _ in range(4)] == [(), (), (), ()]


def test_denials_come_first() -> None:
    fixture = crowded()
    fixture.policy = replace(fixture.policy, per_cluster=1, settle_denied=Seconds(3.0))
    fixture.fleet.apply(NodeSeen(planner_fixture.node("n3")), fixture.now)  # type: ignore[arg-type] # node facts
    fixture.add("a", "n3", 4)
    fixture.add("b", "n3", 4)
    fixture.tell("b", amount(8))
    assert [move.cause for move in fixture.settled().moves] == [MoveCause.DENIED_VM]


@pytest.mark.parametrize(("bound", "moves"), [(8, {"idle": "n2"}), (9, {})])
def test_target_keeps_room_for_its_vm(bound: float, moves: dict[str, str]) -> None:
    fixture = crowded()
    fixture.add("there", "n2", 1, facts={"maximum": amount(bound)})
    assert fixture.moves() == moves


@pytest.mark.parametrize(("bound", "moves"), [(10, {"lone": "n2"}), (11, {})])
def test_target_has_room_for_mover_to_grow(bound: float, moves: dict[str, str]) -> None:
    """A VM that fits no node stays, although it lacks room."""
    fixture = PlannerFixture(node("n1"), node("n2"))
    fixture.add("lone", "n1", 3, facts={"maximum": amount(bound)})
    fixture.fleet.apply(PodSeen(plain_pod("pod", amount(1), "n1")), fixture.now)
    wait_for_room(fixture)
    assert fixture.moves() == moves


def test_changed_share_of_growth_takes_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    fixture = crowded()
    fixture.plan()
    monkeypatch.setattr(planner_fixture, "RANKING", RankingConfig(score=ScoreCurve(growth=0.0)))
    assert fixture.plan(after=10).moves == ()


def test_stuck_denial_comes_before_crowded_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    fixture = crowded()
    monkeypatch.setattr("scheduler_plugin.planner.planner.NODES_PER_ROUND", 1)
    fixture.fleet.apply(NodeSeen(planner_fixture.node("n3")), fixture.now)  # type: ignore[arg-type] # node facts
    fixture.add("a", "n3", 4, facts={"maximum": amount(9), "stays_because": "it is pinned"})
    fixture.add("b", "n3", 4, facts={"maximum": amount(9), "stays_because": "it is pinned"})
    fixture.tell("b", amount(8))
    assert [stuck.node for stuck in fixture.settled().stuck] == ["n3"]
    fixture.add("a", "n3", 4, facts={"maximum": amount(9), "stays_because": None})
    assert [move.vm.name for move in fixture.plan(after=1).moves] == ["a"]


def test_node_is_not_its_own_target() -> None:
    fixture = PlannerFixture(node("n1"), node("n2", 3))
    fixture.add("grows", "n1", 1, facts={"maximum": amount(10)})
    fixture.add("idle", "n1", 1)
    wait_for_room(fixture)
    assert "n1" in fixture.ledger.crowded
    assert fixture.moves() == {}


def test_room_lasts_an_hour_after_start() -> None:
    fixture = PlannerFixture(node("n1"), node("n2"))
    headroom, rooms = Headroom(), fixture.ledger.rooms
    assert [headroom.has_lasted(rooms, Instant(seconds)) for seconds in (5.0, 3604.0, 3605.0)] == [False, False, True]


@pytest.mark.parametrize(("cpu", "mem", "is_roomy"), [(11.9, 11.9, True), (12, 11.9, False), (11.9, 12, False)])
def test_cluster_is_full_at_85_percent(cpu: float, mem: float, is_roomy: bool) -> None:
    """Of 14 below the watermarks, 12 are more than 85 %. A cordoned node does not count."""
    fixture = PlannerFixture(node("n1", 20), node("n2", 20, is_open=False))
    headroom, rooms = Headroom(), fixture.ledger.rooms
    headroom.has_lasted(rooms, Instant(0.0))
    fixture.add("large", "n1", amount(cpu, mem))
    headroom.has_lasted(rooms, Instant(1800.0))
    fixture.add("large", "n1", amount(1, 1))
    assert headroom.has_lasted(rooms, Instant(3600.0)) is is_roomy


def test_lack_of_headroom_counts_after_a_while() -> None:
    fixture = PlannerFixture(node("n1", 20))
    headroom, rooms = Headroom(), fixture.ledger.rooms
    headroom.has_lasted(rooms, Instant(5.0))
    fixture.add("large", "n1", amount(12, 12))
    seen = []
    for seconds in (10.0, 5.0 + LACKING - 1, 5.0 + LACKING):
        headroom.has_lasted(rooms, Instant(seconds))
        seen.append(headroom.is_lacking(Instant(seconds)))
    fixture.add("large", "n1", amount(1, 1))
    headroom.has_lasted(rooms, Instant(700.0))
    assert [*seen, headroom.is_lacking(Instant(700.0))] == [False, False, True, False]
