"""What the tests here call the cluster, which they share with the conformance suite (``tests/conftest.py``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kubernetes.real_kubernetes import RealKubernetes


@pytest.fixture(scope="session")
def home(clusters_home: Path) -> Path:
    """Where the clusters of this run are."""
    return clusters_home


@pytest.fixture(scope="session")
def cluster(real_kubernetes: RealKubernetes) -> RealKubernetes:
    """The cluster. A test leaves its nodes Ready, and gives its objects names of their own."""
    return real_kubernetes
