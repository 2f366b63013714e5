"""One control plane for all that is tried here; what passes stays in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.failing.bare_control_plane import BareControlPlane, control_plane


@pytest.fixture(scope="package")
def plane(clusters_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareControlPlane]:
    """etcd and kube-apiserver, on a machine where a cluster can be."""
    assert clusters_home.is_dir()
    with control_plane(tmp_path_factory.mktemp("attacked")) as made:
        yield made
