"""The cluster on which releases are installed, which the modules here share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.adoption.release import Release, bring_images
from tests.kubernetes.real_kubernetes import RealKubernetes, running


@pytest.fixture(scope="package")
def release(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """An empty cluster whose nodes have the images, as if from a registry. A test leaves nothing installed."""
    with running(RealKubernetes("adoption", home), "--nodes", "2") as cluster:
        cluster.kubectl("delete", "crds", "--all")
        bring_images(cluster, tmp_path_factory.mktemp("images"))
        yield Release(cluster)
