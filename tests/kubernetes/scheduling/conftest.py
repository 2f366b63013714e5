"""Our service and its kube-scheduler, on the cluster that all tests of a real Kubernetes share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

import httpx
import pytest

from tests.conformance.cluster import client_of
from tests.kubernetes.real_kubernetes import RealKubernetes
from tests.kubernetes.scheduling.programs import Programs, running
from tests.kubernetes.scheduling.stage import Stage

_NUMBERS: Final = itertools.count(1)


@pytest.fixture(scope="package")
def programs(real_kubernetes: RealKubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Both programs; a test that ends our service starts it again."""
    with running(real_kubernetes, tmp_path_factory.mktemp("scheduling")) as both:
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
    made = Stage(api, programs, f"story-{next(_NUMBERS)}")
    made.set_up()
    yield made
    made.take_down()
