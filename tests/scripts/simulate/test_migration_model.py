"""Single migrations: their duration, the reservations meanwhile, and the choice of the VM."""

from __future__ import annotations

import pytest

from protocol.units import Instant
from scheduler_plugin.ledger.events import PodGone
from scheduler_plugin.ledger.moves import Move
from scripts.autoscale.simulate.migration_model import NO_MIGRATION, ORDERS
from scripts.autoscale.simulate.vm_table import UNIT
from tests.scripts.simulate.simulation_fixture import GIB, SETTLE, SimulationFixture


def on_the_way(bandwidth: str = "256Mi") -> SimulationFixture:
    """A node with 40 of 64 units has 8 too many: its idle VM number 1, of 10 units, sets out soon."""
    fixture = SimulationFixture([30, 10], [4], order="least-loaded", bandwidth=bandwidth)
    fixture.cores = [5.0, 0.5, 0.5]
    fixture.step()
    assert (fixture.moves.active, fixture.reserved()) == (0, (40, 4))
    fixture.step(SETTLE)
    return fixture


def test_lasting_pressure_moves_the_least_loaded_vm() -> None:
    fixture = on_the_way()
    assert (fixture.moves.started, fixture.moves.active, fixture.nodes[1]) == (1, 1, "node-0")
    assert fixture.vms[1].is_migrating
    assert fixture.reserved() == (40, 14)


def test_move_takes_setup_and_copy_time() -> None:
    fixture = on_the_way()  # 1 GiB at 256 MiB/s, after 5 s
    fixture.step(8.9)
    assert (fixture.moves.active, fixture.reserved()) == (1, (40, 14))
    fixture.step(0.1)
    assert (fixture.moves.active, fixture.moves.failed, fixture.reserved()) == (0, 0, (30, 14))
    moved = fixture.vms[1]
    assert (moved.node, moved.pod, moved.use, moved.is_migrating) == ("node-1", "vm-1-on-0", UNIT * 10, False)
    assert list(fixture.cluster.ledger.claims) == ["vm-0-0", "vm-2-0", "vm-1-on-0"]
    assert (fixture.moves.copied, fixture.moves.disturbed) == (GIB, 0.5 * 9.0)


def test_migrating_vm_grows_after_arrival() -> None:
    fixture = on_the_way()
    fixture.cores[1] = 4.0
    fixture.run_agent(fixture.vms[1])
    assert (fixture.vms[1].use, fixture.vms[1].held) == (UNIT * 10, UNIT * 10)
    fixture.step()
    assert (fixture.vms[1].node, fixture.vms[1].use) == ("node-1", UNIT * 24)
    assert (fixture.reserved(), fixture.cluster.denied) == ((30, 28), 0)


def test_growth_after_move_is_not_in_place() -> None:
    fixture = on_the_way()
    moved, cluster = fixture.vms[1], fixture.cluster
    moved.moved_for_room = True
    fixture.cores[1] = 4.0
    fixture.step()
    assert (moved.node, cluster.growths, cluster.granted, cluster.in_place) == ("node-1", 1, 1, 0)
    fixture.cores[1] = 6.0
    fixture.run_agent(moved)
    assert (cluster.growths, cluster.granted, cluster.in_place) == (2, 2, 1)


def test_reserved_room_on_target_stays_reserved() -> None:
    fixture = SimulationFixture([30, 10], [18], order="least-loaded")
    fixture.cores = [5.0, 0.5, 15.0]
    fixture.step()
    fixture.step(SETTLE)
    fixture.run_agent(fixture.vms[2])
    assert (fixture.vms[2].use, fixture.vms[2].is_denied, fixture.cluster.denied) == (UNIT * 54, True, 1)
    fixture.step()
    assert (fixture.vms[1].node, fixture.reserved()) == ("node-1", (30, 64))


def test_moved_vm_stays_during_cooldown() -> None:
    fixture = SimulationFixture([30, 10], [18], order="least-loaded")
    fixture.cores = [5.0, 0.5, 9.0]
    for seconds in (15.0, SETTLE, 15.0):
        fixture.step(seconds)
    assert fixture.nodes == ["node-0", "node-1", "node-1"]
    arrived_at = fixture.now
    fixture.cluster.ledger.apply(PodGone(fixture.vms.pop(0).pod), fixture.now)
    fixture.run_agent(fixture.vms[1])
    plans = [fixture.step() for _ in range(241)]
    assert fixture.reserved() == (10, 58)
    assert [len(plan.moves) for plan in plans] == [0] * 240 + [1], "after the look that clears the ended one away"
    assert (fixture.now - arrived_at, fixture.moves.started, fixture.moves.repeated) == (3615.0, 2, 0)


def test_slow_copy_times_out_without_effect() -> None:
    fixture = on_the_way(bandwidth="1Mi")
    fixture.step(299.0)
    assert (fixture.moves.active, fixture.reserved()) == (1, (40, 14))
    fixture.step(1.0)
    assert (fixture.moves.failed, fixture.moves.active, fixture.nodes[1], fixture.reserved()) == (
        1,
        0,
        "node-0",
        (40, 4),
    )
    assert not fixture.vms[1].is_migrating
    fixture.step(SETTLE - 1.0)
    assert fixture.moves.active == 0
    fixture.step(1.0)
    assert (fixture.moves.active, fixture.moves.started) == (1, 2)


def test_ledger_forgets_old_migrations() -> None:
    fixture = on_the_way()
    fixture.step()
    assert len(fixture.cluster.ledger.migrations) == 1
    fixture.step(3600.0)
    assert len(fixture.cluster.ledger.migrations) == 0


@pytest.mark.parametrize(
    ("order", "goes"),
    [("least-cost", 1), ("least-loaded", 1), ("oldest-first", 0), ("random", 2), (NO_MIGRATION, None)],
    ids=ORDERS,
)
def test_each_order_selects_another_vm(order: str, goes: int | None) -> None:
    fixture = SimulationFixture([12, 12, 12], [], order=order)
    fixture.cores = [2.0, 0.5, 1.0]
    fixture.step()
    fixture.step(SETTLE)
    assert [vm.index for vm in fixture.vms if vm.is_migrating] == ([] if goes is None else [goes])


def test_node_without_movable_vms_counts_as_stuck() -> None:
    fixture = SimulationFixture([40], [30], order="least-loaded")
    fixture.step()
    plan = fixture.step(SETTLE)
    assert [stuck.node for stuck in plan.stuck] == ["node-0"]
    assert fixture.moves.started == 0


def test_refused_move_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    fixture = SimulationFixture([30, 10], [60], order="least-loaded")
    move = Move(fixture.vms[1].name, "vm-1-0", "node-0", "node-1", "a test says so")
    with pytest.raises(RuntimeError, match=r"the ledger refuses the planner's move "):
        fixture.moves._start(move, Instant(15.0))
