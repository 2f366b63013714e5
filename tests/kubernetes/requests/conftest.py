"""Our service, told to let requests of pods follow their VMs, on the cluster that all tests share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

import httpx
import pytest

from tests.conformance.cluster import client_of
from tests.deploy.manifests import Document
from tests.kubernetes.real_kubernetes import RealKubernetes
from tests.kubernetes.scheduling.programs import Programs, running
from tests.kubernetes.scheduling.stage import Stage

_NUMBERS: Final = itertools.count(1)


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


@pytest.fixture(scope="package")
def api(real_kubernetes: RealKubernetes) -> Iterator[httpx.Client]:
    """The API server, as people reach it."""
    with client_of(real_kubernetes.kubeconfig) as client:
        yield client


@pytest.fixture
def stage(api: httpx.Client, programs: Programs) -> Iterator[Stage]:
    """A place for one story."""
    programs.mend()
    made = Stage(api, programs, f"requests-{next(_NUMBERS)}")
    made.set_up()
    yield made
    made.take_down()
