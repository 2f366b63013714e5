"""One real Kubernetes of two nodes for all tests that change nothing of it but objects."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.real_kubernetes import RealKubernetes, refuse_unless_possible, running


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the clusters of this run are, on a machine where there can be any."""
    folder = tmp_path_factory.mktemp("clusters")
    refuse_unless_possible(folder)
    return folder


@pytest.fixture(scope="session")
def cluster(home: Path) -> Iterator[RealKubernetes]:
    """The cluster. A test leaves its nodes Ready, and gives its objects names of their own."""
    with running(RealKubernetes(f"test-{os.getpid()}", home), "--nodes", "2") as up:
        yield up
