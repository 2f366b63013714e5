"""Requests of pods through a whole migration: the target arrives with what the VM holds, and follows it then (B.10)."""

from __future__ import annotations

from pathlib import Path

from protocol.kubernetes.objects import name_of
from protocol.units import Resources
from tests.kubernetes.scheduling.books import requests_of
from tests.local.moving.world import FOREIGN, LARGE, SMALL, World, world_in


async def requested(world: World) -> dict[str, Resources]:
    """Requests of each pod of the VM."""
    return {name_of(pod).name: requests_of(pod) for pod in await world.pods() if name_of(pod) != FOREIGN}


async def test_requests_follow_moved_vm(tmp_path: Path) -> None:
    async with world_in(tmp_path, follows=True) as world:
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
