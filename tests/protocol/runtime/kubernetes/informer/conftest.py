"""The cluster that an informer follows."""

from __future__ import annotations

import pytest

from tests.scheduler_plugin.fake_cluster import NODES, FakeCluster
from tests.scheduler_plugin.objects import node


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster()
    cluster.put(NODES, node("a", "1"))
    return cluster
