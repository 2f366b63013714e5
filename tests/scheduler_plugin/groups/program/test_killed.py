"""``kill -9`` at every step of a scaling, before and after each write takes effect; then a successor continues.

Whatever the step: the target is written once, nothing is lost or doubled, and the status continues.
"""

from __future__ import annotations

import pytest

from protocol.kubernetes.objects import child, items, text
from protocol.kubernetes.resources import DEPLOYMENTS, HVPAS
from tests.scheduler_plugin.groups.program.cluster import status_of
from tests.scheduler_plugin.groups.program.running import DEPLOYMENT, FOLLOWED, World, world
from tests.scheduler_plugin.groups.program.test_hvpa import INTERVALS

STEPS = (
    "PATCH hvpas/hvpa-sample/status",
    "PATCH deployments/resource-consumer",
    "PATCH deployments/resource-consumer/scale",
    "POST events",
    "PATCH hvpas/hvpa-sample/status",
    "PATCH hvpas/hvpa-sample/scale",
)
"""The writes of one scaling, in their order."""

SUCCESSION = 15
"""Seconds after which a successor has begun."""


async def settled(run: World) -> None:
    """Three replicas of 500m and 500Mi, with an HPA and a VPA that want no others."""
    await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
    await run.cluster.patch(DEPLOYMENTS, "resource-consumer", {"spec": {"replicas": 3}}, "scale")
    await run.cluster.make(HVPAS, INTERVALS)
    await run.start()
    await run.recommend("hvpa-sample", 3, cpu="500m", memory="500Mi")


def short(write: str) -> str:
    """``PATCH hvpas/hvpa-sample/status`` of a whole path."""
    method, path = write.split()
    return f"{method} {path.partition('/namespaces/default/')[2]}"


async def test_these_are_the_steps() -> None:
    async with world(FOLLOWED) as run:
        await settled(run)
        before = len(run.cluster.writes(whole=True))
        await run.recommend("hvpa-sample", 6, cpu="1500m", memory="1500Mi")
        written = [short(each) for each in run.cluster.writes(whole=True)[before:] if "/leases" not in each]
        assert tuple(written) == STEPS


@pytest.mark.parametrize("is_applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(len(STEPS)), ids=[each.replace("/", " ") for each in STEPS])
async def test_scaling_finishes_once_after_any_kill(step: int, is_applied: bool) -> None:
    async with world(FOLLOWED) as run:
        await settled(run)
        before = len(run.cluster.writes())
        way = run.cluster.connections[0]
        way.cut_at, way.is_applied = way.count + step, is_applied
        await run.recommend("hvpa-sample", 6, cpu="1500m", memory="1500Mi")
        assert way.is_cut
        await run.start("second")
        await run.passes(SUCCESSION)
        status = status_of(await run.cluster.get(HVPAS, "hvpa-sample"))
        on_target = [short(each) for each in run.cluster.writes()[before:] if "deployments" in each]
        assert run.processes["second"].leadership.leads
        assert on_target == ["PATCH deployments/resource-consumer", "PATCH deployments/resource-consumer/scale"]
        assert await run.size() == (5, {"cpu": "1100m", "memory": "1100Mi"})
        assert child(status, "lastScaled", "replicas") == {"from": 3, "to": 5}
        assert ("intent" in status, len(await run.events())) == (False, 1)
        assert {text(each, "type") for each in items(status, "conditions")} >= {"AbleToScale", "ScalingActive"}


async def test_a_successor_keeps_the_delay_of_its_predecessor() -> None:
    async with world(FOLLOWED) as run:
        await settled(run)
        await run.recommend("hvpa-sample", 6, cpu="1500m", memory="1500Mi")
        scaled_at = run.clock.now()
        run.cluster.connections[0].is_cut = True
        await run.start("second")
        while (await run.size())[0] == 5:
            await run.passes(1)
        assert 120 <= run.clock.now() - scaled_at < 136


async def test_overtaken_scaling_is_redecided() -> None:
    async with world(FOLLOWED) as run:
        await settled(run)
        way = run.cluster.connections[0]
        way.cut_at = way.count + STEPS.index("PATCH deployments/resource-consumer")
        await run.recommend("hvpa-sample", 6, cpu="1500m", memory="1500Mi")
        await run.cluster.patch(DEPLOYMENTS, "resource-consumer", {"spec": {"replicas": 8}}, "scale")
        await run.start("second")
        await run.passes(SUCCESSION)
        status = status_of(await run.cluster.get(HVPAS, "hvpa-sample"))
        assert child(status, "lastScaled", "replicas") == {"from": 8, "to": 6}
        assert ("intent" in status, (await run.size())[0]) == (False, 6)
