"""One control plane for all stories here; each of them leaves it running and empty."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.kubernetes.failing.bare_control_plane import BareControlPlane, control_plane
from tests.kubernetes.failing.stage import Stage
from tests.kubernetes.failing.stage import stage as new_stage

BEYOND_THE_PERMIT = "exceeds the scheduler's permit"


@pytest.fixture(scope="session")
def plane(clusters_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareControlPlane]:
    """etcd and kube-apiserver, on a machine where a cluster can be."""
    assert clusters_home.is_dir()
    with control_plane(tmp_path_factory.mktemp("plane")) as made:
        yield made


@pytest.fixture
async def stage(plane: BareControlPlane, tmp_path: Path) -> AsyncIterator[Stage]:
    """The control plane, the cluster's objects, and our programs, which no policy has to refuse anything.

    A store that is older than a permit is the exception: until the scheduler has written the permit there again, an
    agent that goes by it is refused.
    """
    before, stores = len(plane.refused_by_fences()), plane.stores
    async with new_stage(plane, tmp_path) as made:
        yield made
    refused = plane.refused_by_fences()[before:]
    restored = plane.stores > stores
    assert [each for each in refused if not (restored and BEYOND_THE_PERMIT in each)] == []
