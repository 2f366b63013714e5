"""Our service with requests that follow VMs, on the cluster that all tests share."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2 as httpx
import pytest

from tests.kubernetes.real_kubernetes import RealKubernetes
from tests.kubernetes.requests.following import FollowingPrograms
from tests.kubernetes.requests.real_pod import RealPod, real_pod
from tests.kubernetes.scheduling.programs import Programs, running
from tests.kubernetes.scheduling.stage import Stage, new_stage


@pytest.fixture(scope="package")
def programs(real_kubernetes: RealKubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FollowingPrograms]:
    """Our service and its kube-scheduler."""
    with running(real_kubernetes, tmp_path_factory.mktemp("requests"), FollowingPrograms) as both:
        assert isinstance(both, FollowingPrograms)
        yield both


@pytest.fixture
def real(stage: Stage, programs: FollowingPrograms, real_kubernetes: RealKubernetes) -> Iterator[RealPod]:
    """A VM whose pod a kubelet runs."""
    programs.follow(True)
    yield real_pod(stage, real_kubernetes, programs)
    programs.follows, programs.limits = True, False
    programs.set_overrides()


@pytest.fixture
def stage(api: httpx.Client, programs: Programs) -> Iterator[Stage]:
    """A place for one story."""
    with new_stage(api, programs, "requests") as made:
        yield made
