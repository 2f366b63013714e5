"""A clock, and a cluster in which a VM holds a permit."""

from __future__ import annotations

import pytest

from tests.fake_clock import FakeClock
from tests.scheduler_plugin.fake_cluster import FakeCluster
from tests.scheduler_plugin.granted import granted


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def cluster() -> FakeCluster:
    return granted()
