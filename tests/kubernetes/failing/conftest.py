"""One control plane for all stories here; each of them leaves it running and empty."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from tests.kubernetes.failing.bare_control_plane import BareControlPlane, control_plane
from tests.kubernetes.failing.faulty_proxy import FaultyProxy, faulty_proxy
from tests.kubernetes.failing.fleet import Fleet


@pytest.fixture(scope="session")
def plane(clusters_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareControlPlane]:
    """etcd and kube-apiserver, on a machine where a cluster can be."""
    assert clusters_home.is_dir()
    with control_plane(tmp_path_factory.mktemp("plane")) as made:
        yield made


@pytest.fixture
async def fleet(plane: BareControlPlane) -> AsyncIterator[Fleet]:
    """The cluster's objects, over a way that never fails; all are removed afterwards."""
    async with faulty_proxy(plane) as way:
        headers = {"Authorization": f"Bearer {plane.pki.admin_token}"}
        async with httpx.AsyncClient(
            base_url=way.url, verify=plane.client_tls(), headers=headers, trust_env=False, timeout=20.0
        ) as http:
            found = Fleet(http)
            yield found
            await found.clear()


@pytest.fixture
async def proxy(plane: BareControlPlane) -> AsyncIterator[FaultyProxy]:
    """The way of the program under test."""
    async with faulty_proxy(plane) as made:
        yield made
