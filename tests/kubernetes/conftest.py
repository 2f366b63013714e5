"""Fixtures of the clusters, which are shared with the conformance suite (``tests/conftest.py``)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from tests.conformance.cluster import client_of
from tests.kubernetes.installed import installed
from tests.kubernetes.real_kubernetes import RealKubernetes


@pytest.fixture(scope="session")
def home(clusters_home: Path) -> Path:
    """Folder of this run's clusters."""
    return clusters_home


@pytest.fixture(scope="session")
def cluster(real_kubernetes: RealKubernetes) -> RealKubernetes:
    """The cluster. A test leaves its nodes Ready, and gives its objects names of their own."""
    return real_kubernetes


@pytest.fixture(scope="session")
def api(real_kubernetes: RealKubernetes) -> Iterator[httpx.Client]:
    """The API server, as people reach it."""
    with client_of(real_kubernetes.kubeconfig) as client:
        yield client


@pytest.fixture(scope="package")
def with_vms(cluster: RealKubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKubernetes]:
    """The cluster with all that VMs and groups of them need, for the modules that run last and one after the other."""
    with installed(cluster, tmp_path_factory.mktemp("images")) as ready:
        yield ready
