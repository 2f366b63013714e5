"""An installation as people make it, with the injector, on the cluster that all tests of a real Kubernetes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.deploy.manifests import ROOT
from tests.kubernetes.check.faults import SYSTEM, Installation
from tests.kubernetes.installed import bring_image, installed
from tests.kubernetes.real_kubernetes import RealKubernetes

INJECTOR = f"--filename={ROOT / 'deploy/kubernetes/injector.yaml'}"


@pytest.fixture(scope="package")
def installation(cluster: RealKubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Everything runs, and nothing is wrong with it."""
    folder = tmp_path_factory.mktemp("installation")
    before = Installation(cluster).check("--pre")
    assert before.wrong == {}, before.said
    with installed(cluster, folder):
        try:
            bring_image(cluster, "autoscale-injector", folder)
            cluster.kubectl("apply", "--server-side", INJECTOR)
            cluster.wait("condition=Available", "deployment/autoscaling-injector", namespace=SYSTEM)
            yield Installation(cluster)
        finally:
            cluster.kubectl("delete", "--ignore-not-found", "--wait=false", INJECTOR)
