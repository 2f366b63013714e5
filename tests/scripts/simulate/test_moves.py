"""Single migrations: how long they take, what is reserved meanwhile, and who goes."""

from __future__ import annotations

import pytest

from protocol.units import Instant
from scheduler_plugin.ledger import Move
from scripts.autoscale.simulate.cast import UNIT
from scripts.autoscale.simulate.moves import NOBODY, ORDERS
from tests.scripts.simulate.stage import GIB, Stage


def on_the_way(order: str = "least-loaded", bandwidth: str = "256Mi") -> Stage:
    """A node with 40 of 64 units has 8 too many: its idle VM number 1, of 10 units, sets out after half a minute."""
    stage = Stage([30, 10], [4], order=order, bandwidth=bandwidth)
    stage.cores = [5.0, 0.5, 0.5]
    stage.step()
    assert (stage.moves.active, stage.reserved()) == (0, (40, 4))
    stage.step()
    return stage


def test_pressure_that_lasts_sends_the_least_loaded_vm_and_reserves_both_nodes() -> None:
    stage = on_the_way()
    assert (stage.moves.started, stage.moves.active, stage.nodes[1]) == (1, 1, "node-0")
    assert stage.vms[1].is_migrating
    assert stage.reserved() == (40, 14)


def test_a_move_takes_its_set_up_and_the_time_to_copy_and_then_belongs_to_the_target_alone() -> None:
    stage = on_the_way()  # 1 GiB at 256 MiB/s, after 5 s
    stage.step(8.9)
    assert (stage.moves.active, stage.reserved()) == (1, (40, 14))
    stage.step(0.1)
    assert (stage.moves.active, stage.moves.failed, stage.reserved()) == (0, 0, (30, 14))
    moved = stage.vms[1]
    assert (moved.node, moved.pod, moved.use, moved.is_migrating) == ("node-1", "vm-1-on-0", UNIT * 10, False)
    assert list(stage.cluster.ledger.claims) == ["vm-0-0", "vm-2-0", "vm-1-on-0"]
    assert (stage.moves.copied, stage.moves.disturbed) == (GIB, 0.5 * 9.0)


def test_a_vm_whose_load_grows_on_its_way_keeps_its_size_and_grows_where_it_arrives() -> None:
    stage = on_the_way()
    stage.cores[1] = 4.0
    stage.agent_looks(stage.vms[1])
    assert (stage.vms[1].use, stage.vms[1].held) == (UNIT * 10, UNIT * 10)
    stage.step()
    assert (stage.vms[1].node, stage.vms[1].use) == ("node-1", UNIT * 24)
    assert (stage.reserved(), stage.cluster.denied) == ((30, 28), 0)


def test_a_target_that_fills_up_meanwhile_does_not_get_the_room_that_is_booked() -> None:
    stage = Stage([30, 10], [20], order="least-loaded")
    stage.cores = [5.0, 0.5, 15.0]
    stage.step()
    stage.step()
    stage.agent_looks(stage.vms[2])
    assert (stage.vms[2].use, stage.vms[2].is_denied, stage.cluster.denied) == (UNIT * 54, True, 1)
    stage.step()
    assert (stage.vms[1].node, stage.reserved()) == ("node-1", (30, 64))


def test_who_has_just_moved_rests_even_where_it_is_crowded_again() -> None:
    stage = Stage([30, 10], [20], order="least-loaded")
    stage.cores = [5.0, 0.5, 9.0]
    for _ in range(3):
        stage.step()
    assert stage.nodes == ["node-0", "node-1", "node-1"]
    arrived_at = stage.now
    stage.cluster.ledger.lose_pod(stage.vms.pop(0).pod)
    stage.agent_looks(stage.vms[1])
    plans = [stage.step() for _ in range(20)]
    assert stage.reserved() == (10, 58)
    assert [len(plan.moves) for plan in plans] == [0] * 19 + [1]
    assert (stage.now - arrived_at, stage.moves.started, stage.moves.again) == (300.0, 2, 1)


def test_a_copy_that_takes_too_long_fails_at_the_time_out_and_leaves_everything_as_it_was() -> None:
    stage = on_the_way(bandwidth="1Mi")
    stage.step(299.0)
    assert (stage.moves.active, stage.reserved()) == (1, (40, 14))
    stage.step(1.0)
    assert (stage.moves.failed, stage.moves.active, stage.nodes[1], stage.reserved()) == (1, 0, "node-0", (40, 4))
    assert not stage.vms[1].is_migrating
    stage.step(59.0)
    assert stage.moves.active == 0
    stage.step(1.0)
    assert (stage.moves.active, stage.moves.started) == (1, 2)


def test_a_migration_that_ended_long_ago_is_forgotten_by_the_ledger() -> None:
    stage = on_the_way()
    stage.step()
    assert len(stage.cluster.ledger.migrations) == 1
    stage.step(300.0)
    assert len(stage.cluster.ledger.migrations) == 0


@pytest.mark.parametrize(
    ("order", "goes"), [("least-loaded", 1), ("oldest-first", 0), ("random", 2), (NOBODY, None)], ids=ORDERS
)
def test_each_order_sends_another_vm_of_the_same_node(order: str, goes: int | None) -> None:
    stage = Stage([12, 12, 12], [], order=order)
    stage.cores = [2.0, 0.5, 1.0]
    stage.step()
    stage.step()
    assert [vm.index for vm in stage.vms if vm.is_migrating] == ([] if goes is None else [goes])


def test_a_node_that_nobody_can_leave_is_counted_as_stuck() -> None:
    stage = Stage([40], [30], order="least-loaded")
    stage.step()
    plan = stage.step()
    assert [stuck.node for stuck in plan.stuck] == ["node-0"]
    assert stage.moves.started == 0


def test_a_move_that_the_ledger_refuses_is_a_bug_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage([30, 10], [60], order="least-loaded")
    move = Move(stage.vms[1].name, "vm-1-0", "node-0", "node-1", "a test says so")
    with pytest.raises(RuntimeError, match=r"the planner's own move .* is refused"):
        stage.moves._set_out(move, Instant(15.0))
