"""One control plane and one build of the original's programs for all stories here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kubernetes.failing.bare_control_plane import BareControlPlane, control_plane
from tests.kubernetes.neon import objects, originals
from tests.kubernetes.neon.places import Places
from tests.kubernetes.neon.stage import Stage
from tests.kubernetes.neon.stage import stage as new_stage


@dataclass(frozen=True, slots=True)
class World:
    """The control plane, the pods' network around it, and the original's programs."""

    plane: BareControlPlane
    places: Places
    binaries: Path


@pytest.fixture(scope="session")
def world(clusters_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A cluster in which the original can be installed, on a machine where a cluster can be."""
    assert clusters_home.is_dir()
    binaries = asyncio.run(originals.binaries())
    with control_plane(tmp_path_factory.mktemp("plane")) as plane:
        plane.apply(objects.installation(binaries))
        plane.ready("/apis/k8s.cni.cncf.io/v1/network-attachment-definitions")
        plane.apply([objects.network()])
        yield World(plane, Places(plane), binaries)


@pytest.fixture
async def stage(world: World, tmp_path: Path) -> AsyncIterator[Stage]:
    """A cluster whose VMs are run by NeonVM's own controller; our policies must reject nothing."""
    async with new_stage(world.plane, world.places, world.binaries, tmp_path) as made:
        await made.original_controller()
        yield made
    assert world.plane.refused_by_fences() == []
