"""Requests of pods through a whole migration: the target arrives with what the VM holds, and follows it then (B.10)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from protocol.kubernetes.objects import Json, name_of, text
from protocol.units import Resources
from scheduler_plugin.settings.document import parse_settings
from tests.kubernetes.scheduling.books import requests_of
from tests.local.moving.parts import SETTINGS
from tests.local.moving.world import FOREIGN, LARGE, SMALL, World, world_in

FIRST: Final[Json] = {"cpu": "100m", "memory": "128Mi"}
FOLLOWING: Final = parse_settings(f"{SETTINGS}permits: {{asPodRequests: true}}\n")
ALLOCATABLE: Final = Resources.parse("8", "16Gi")


async def requested(world: World) -> dict[str, Resources]:
    """What each pod of the VM requests. No node is ever promised twice."""
    pods, on = await world.pods(), dict.fromkeys(world.nodes, Resources.parse(0, 0))
    for pod in pods:
        on[text(pod, "spec", "nodeName")] += requests_of(pod)
    assert all(each.within(ALLOCATABLE) for each in on.values()), on
    return {name_of(pod).name: requests_of(pod) for pod in pods if name_of(pod) != FOREIGN}


async def test_requests_go_with_a_vm_that_moves_and_follow_it_there(tmp_path: Path) -> None:
    async with world_in(tmp_path, pod_requests=FIRST) as world:
        assert world.scheduler.parts is not None
        world.scheduler.parts.context.feed.use(FOLLOWING)
        await world.passes(6)
        assert await requested(world) == {world.source.name: SMALL}
        await world.sending()
        (target,) = (await requested(world)).keys() - {world.source.name}
        assert await requested(world) == {world.source.name: SMALL, target: SMALL}
        world.guests.moving.arrive()
        await world.finish()
        assert await requested(world) == {target: SMALL}
        world.agents.demand.cores = 2.0
        await world.passes(12)
        assert (world.size, await requested(world)) == (LARGE, {target: LARGE})
