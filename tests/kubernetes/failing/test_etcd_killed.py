"""etcd is killed and started again while agents ask; the API server stays."""

from __future__ import annotations

import pytest

from deploy.local.kubernetes.machine.control_programs import STORE
from tests.kubernetes.failing.commitment import never_over_committed, settled
from tests.kubernetes.failing.fleet import until
from tests.kubernetes.failing.permit_asker import all_granted, asking
from tests.kubernetes.failing.stage import Stage

pytestmark = pytest.mark.kubernetes


async def test_etcd_kills_lose_no_permit(stage: Stage) -> None:
    fleet, plane = stage.fleet, stage.plane
    node = await fleet.node()
    vms = [await fleet.vm(node) for _ in range(6)]
    ours = await stage.scheduler(await stage.way())
    askers = [stage.asker(ours, each) for each in vms]
    async with never_over_committed(fleet), asking(askers):
        await until(all_granted(askers), "agents are permitted something")
        for _ in range(3):
            plane.kill(STORE)
            plane.start(STORE)
            await until(all_granted(askers), "agents are permitted something again", 20.0)
    await settled(ours, fleet, askers)
