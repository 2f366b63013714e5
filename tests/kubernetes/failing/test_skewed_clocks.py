"""Programs whose calendars are minutes apart, and processes that sleep and wake as leaders of the past."""

from __future__ import annotations

import signal
from collections.abc import Awaitable
from datetime import UTC, datetime

import pytest

from protocol.units import Resources
from tests.kubernetes.failing.fleet import until
from tests.kubernetes.failing.stage import Stage
from tests.kubernetes.failing.terms import writes_out_of_term

pytestmark = pytest.mark.kubernetes
MINUTES = 600.0


async def test_only_leader_writes_despite_clock_skew(stage: Stage) -> None:
    fleet, way, began = stage.fleet, await stage.way(), datetime.now(UTC)
    ahead = await stage.neonvm(way, MINUTES)
    await until(ahead.leads, "the first leads")
    behind = await stage.neonvm(way, -MINUTES)
    await until(behind.stands_by, "the second stands by")

    def each_has_one() -> Awaitable[bool]:
        return fleet.has_pods_of(*names)

    names = [await fleet.bare_vm()]
    await until(each_has_one, "the first makes the pod of a VM")
    ahead.program.send_signal(signal.SIGSTOP)
    names += [await fleet.bare_vm() for _ in range(3)]
    await until(behind.leads, "the second leads", 20.0)
    await until(each_has_one, "the second makes the pods of the others")
    names += [await fleet.bare_vm() for _ in range(3)]
    ahead.program.send_signal(signal.SIGCONT)
    await until(ahead.has_ended, "the first has lost its Lease", 20.0)
    await until(each_has_one, "each has one pod")
    assert writes_out_of_term(stage.plane.written(), "neonvm-controller", began) == []


@pytest.mark.parametrize("ahead", [MINUTES, -MINUTES])
async def test_scheduler_with_skewed_clock_keeps_permits(stage: Stage, ahead: float) -> None:
    fleet = stage.fleet
    vm = await fleet.vm(await fleet.node())
    ours = await stage.scheduler(await stage.way(), ahead)
    agent = stage.asker(ours, vm)
    assert await agent.ask(Resources.parse("2", "8Gi")) == 200
    assert (await fleet.permits())[vm.name] == agent.granted == Resources.parse("2", "8Gi")
