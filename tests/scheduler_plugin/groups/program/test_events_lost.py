"""Events may be in a store of their own, which may be down for hours: groups scale without them."""

from __future__ import annotations

from protocol.kubernetes.resources import HVPAS
from tests.scheduler_plugin.groups.program.cluster import status_of
from tests.scheduler_plugin.groups.program.running import world
from tests.scheduler_plugin.groups.program.test_killed import settled
from tests.scheduler_plugin.groups.program.vm_group_story import story


async def test_lost_event_delays_no_scaling() -> None:
    async with world() as run:
        await settled(run)
        run.cluster.connections[0].refuse = {"/events": 500}
        await run.recommend("hvpa-sample", 6, cpu="1500m", memory="1500Mi")
        status = status_of(await run.cluster.get(HVPAS, "hvpa-sample"))
        assert (await run.size(), "intent" in status) == ((5, {"cpu": "1100m", "memory": "1100Mi"}), False)


async def test_lost_events_delay_no_vms() -> None:
    async with story() as run:
        way = run.cluster.connection()
        way.refuse = {"/events": 500}
        await run.start(way)
        await run.create()
        await run.pass_time(8)
        assert (await run.vms(), await run.offered()) == (
            {"primary": "primary", "replica-0": "replica", "replica-1": "replica"},
            ["replica-0", "replica-1"],
        )
