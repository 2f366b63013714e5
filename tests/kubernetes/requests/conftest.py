"""Our service, told to let requests of pods follow their VMs, on the cluster that all tests share."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.deploy.manifests import Document
from tests.kubernetes.real_kubernetes import RealKubernetes
from tests.kubernetes.scheduling.programs import Programs, running
from tests.kubernetes.scheduling.stage import Stage, new_stage


class FollowingPrograms(Programs):
    """The programs of the manifest with one setting more."""

    def more_settings(self) -> Document:
        """See ``Programs``."""
        return {"permits": {"asPodRequests": True}}


@pytest.fixture(scope="package")
def programs(real_kubernetes: RealKubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Our service and its kube-scheduler."""
    with running(real_kubernetes, tmp_path_factory.mktemp("requests"), FollowingPrograms) as both:
        yield both


@pytest.fixture
def stage(api: httpx.Client, programs: Programs) -> Iterator[Stage]:
    """A place for one story."""
    with new_stage(api, programs, "requests") as made:
        yield made
