"""Without a Lease, a scheduler decides only once all writes of its predecessor have landed."""

from __future__ import annotations

import pytest

from scheduler_plugin.options import parser
from scheduler_plugin.term import SETTLE
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import NODES, PODS, FakeCluster, Fault, to
from tests.scheduler_plugin.granted import POD, granted
from tests.scheduler_plugin.objects import node, plain_pod
from tests.scheduler_plugin.running import running


@pytest.mark.parametrize("after", [0.5, 5.0, 9.5])
async def test_late_binding_of_a_dead_scheduler_is_counted(after: float) -> None:
    """It was sent, and lands after the successor has listed the cluster."""
    clock, cluster = FakeClock(), granted()
    pod = cluster.put(PODS, plain_pod("late", "6"))
    async with running(cluster, clock) as dead:
        cluster.faults.append(Fault(to("POST", "/binding")))
        await dead.bind(pod, "n1")
    async with running(cluster, clock, identity="next", hold_back=SETTLE) as scheduler:
        await clock.advance(after)
        assert (await scheduler.ask(POD, 8, 4)).status_code == 503
        assert (await scheduler.probe("readyz")).status_code == 503
        assert cluster.arrive(cluster.lost[0])
        await clock.advance(11 - after)
        assert (await scheduler.probe("readyz")).status_code == 200
        assert scheduler.reserved("n1") == "7 cpu, 5Gi"
        assert (await scheduler.ask(POD, 8, 4)).json()["permit"]["vCPUs"] == 4


async def test_nothing_is_written_while_held_back() -> None:
    clock, cluster = FakeClock(), granted()
    async with running(cluster, clock, hold_back=SETTLE):
        await clock.advance(9.0)
        assert {call.method for call in cluster.calls} == {"GET"}


async def test_restore_while_held_back_is_followed() -> None:
    clock, cluster = FakeClock(), granted()
    cluster.put(PODS, plain_pod("back", "6", "1Gi", "n1"))
    kept = cluster.backup()
    async with running(cluster, clock, hold_back=SETTLE) as scheduler:
        cluster.remove(PODS, "default", "back")
        await settle()
        cluster.restore(kept, is_bumped=True)
        await clock.advance(15.0)
        assert scheduler.reserved("n1") == "7 cpu, 5Gi"


async def test_api_server_that_is_away_is_waited_for() -> None:
    """The time starts when the cluster has been listed."""
    clock, cluster = FakeClock(), FakeCluster()
    cluster.put(NODES, node("n1"))
    cluster.go_away()
    async with running(cluster, clock, hold_back=SETTLE) as scheduler:
        await clock.advance(30)
        cluster.come_back()
        await clock.advance(5)
        assert (await scheduler.probe("readyz")).status_code == 503
        await clock.advance(15)
        assert (await scheduler.probe("readyz")).status_code == 200


def test_it_is_held_back_unless_told_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    assert parser().parse_args([]).hold_back == SETTLE
    assert parser().parse_args(["--hold-back=0"]).hold_back == 0
    with pytest.raises(SystemExit):
        parser().parse_args(["--hold-back=61"])
    assert "expected 0 to 60 whole seconds, got '61'" in capsys.readouterr().err
