"""Our service and its kube-scheduler, on the cluster that all tests of a real Kubernetes share."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2 as httpx
import pytest

from tests.kubernetes.real_kubernetes import RealKubernetes
from tests.kubernetes.scheduling.programs import Programs, running
from tests.kubernetes.scheduling.stage import Stage, new_stage


@pytest.fixture(scope="package")
def programs(real_kubernetes: RealKubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Both programs; a test that ends our service starts it again."""
    with running(real_kubernetes, tmp_path_factory.mktemp("scheduling")) as both:
        yield both


@pytest.fixture
def stage(api: httpx.Client, programs: Programs) -> Iterator[Stage]:
    """A place for one story."""
    with new_stage(api, programs, "story") as made:
        yield made
