"""Watches are cut, expire, and go silent on connections that stay open."""

from __future__ import annotations

import pytest

from deploy.local.kubernetes.machine.control_programs import API_SERVER
from tests.kubernetes.failing.commitment import never_over_committed, settled
from tests.kubernetes.failing.faulty_proxy import Answer
from tests.kubernetes.failing.permit_asker import asking
from tests.kubernetes.failing.stage import Stage

pytestmark = pytest.mark.kubernetes


async def test_ledger_recovers_from_cut_watches(stage: Stage) -> None:
    fleet, plane, way = stage.fleet, stage.plane, await stage.way()
    node, beside = await fleet.node(), await fleet.node()
    first, second, third = [await fleet.vm(node) for _ in range(3)]
    ours = await stage.scheduler(way)
    askers = [stage.asker(ours, each) for each in (first, second, third)]
    async with never_over_committed(fleet), asking(askers):
        for _ in range(5):
            way.cut()
            came = await fleet.vm(beside)  # the three may have all of their node, and no scheduler places this one
            way.cut()
            await fleet.remove(came)
    await settled(ours, fleet, askers)

    way.judge = lambda asked: Answer(503) if asked.is_watch else None
    way.cut()
    await fleet.remove(second)
    await fleet.vm(node, slots=2)
    plane.compact()
    plane.kill(API_SERVER)
    plane.start(API_SERVER)
    await stage.ready()
    way.judge = lambda _: None
    await settled(ours, fleet, [askers[0], askers[2]])
