"""``autoscale-groups`` installed on a real Kubernetes, with the workloads of all tests at once, because the HPA
controller and the recommender take minutes for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx2 as httpx
import pytest
import yaml

from protocol.kubernetes.resources import NAMESPACES
from tests.deploy.manifests import ROOT
from tests.kubernetes.groups import (
    test_hvpas,
    test_reported_problems,
    test_tortoises,
    test_vm_group_scale,
    test_when_load_doubles,
)
from tests.kubernetes.groups.external_metrics import API, external_metrics
from tests.kubernetes.groups.scene import NAMESPACE, SYSTEM, Scene
from tests.kubernetes.installed import bring_image
from tests.kubernetes.object_watch import asking
from tests.kubernetes.real_kubernetes import RealKubernetes, eventually

MANIFESTS = [
    ROOT / "deploy" / "kubernetes" / name for name in ("groups.yaml", "policies/groups.yaml", "policies/leases.yaml")
]
SCENES = (
    test_hvpas.SCENE,
    test_tortoises.SCENE,
    test_vm_group_scale.SCENE,
    test_reported_problems.SCENE,
    test_when_load_doubles.SCENE,
)
SETTINGS = """
lease: {namespace: kube-system, name: autoscale-groups, durationSeconds: 9, renewSeconds: 2}
intervalSeconds: 2
tortoise:
  GatheringDataPeriodType: daily
  RangeOfMinMaxReplicasRecommendationHours: 24
  TimeZone: UTC
  MinimumMinReplicas: 1
  PreferredMaxReplicas: 3
  MinimumCPURequest: 10m
  MinimumMemoryRequest: 8Mi
  # The metrics of new pods take a while on a busy machine.
  EmergencyModeGracePeriod: 30s
  # Not faster than the HPA controller, which would leave the replicas of an emergency to be learned, and doubled.
  TortoiseUpdateInterval: 15s
  HPAExternalMetricExclusionRegex: legacy_.*
"""


@pytest.fixture(scope="package")
def scene(cluster: RealKubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The program with its service account, rights and Lease, and all workloads of this folder's tests."""
    folder = tmp_path_factory.mktemp("groups")
    bring_image(cluster, "autoscale-groups", folder)
    installed = manifest()
    with asking(cluster) as api, without_vm_controller(cluster):
        found = Scene(cluster, api)
        try:
            cluster.kubectl("create", "namespace", NAMESPACE)
            cluster.kubectl("apply", "--filename=-", typed=installed)
            cluster.apply(*external_metrics(folder))
            for objects in SCENES:
                found.apply(*objects)
            cluster.wait("condition=Available", "deployment/autoscaling-groups", namespace=SYSTEM)
            cluster.wait("condition=Available", API)
            test_vm_group_scale.begin(found)
            yield found
        finally:
            cluster.kubectl("delete", API, "--ignore-not-found")
            cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
            cluster.kubectl("delete", "--wait=false", "--ignore-not-found", "--filename=-", typed=installed)
            eventually(
                lambda: api.get(NAMESPACES.path("", NAMESPACE)).status_code == httpx.codes.NOT_FOUND, "it is gone"
            )


@contextmanager
def without_vm_controller(cluster: RealKubernetes) -> Iterator[None]:
    """VMs of these tests are played: what runs real ones would make pods of them."""
    size = ("scale", "deployment/neonvm-controller", f"--namespace={SYSTEM}")
    there = cluster.try_kubectl(*size, "--replicas=0").returncode == 0
    try:
        yield
    finally:
        if there:
            cluster.kubectl(*size, "--replicas=2")


def manifest() -> str:
    """The installed manifests, policies included, with the settings of these tests."""
    documents = [each for path in MANIFESTS for each in yaml.safe_load_all(path.read_text())]
    for each in documents:
        if each["kind"] == "ConfigMap":
            each["data"]["settings.yaml"] = SETTINGS
    return yaml.safe_dump_all(documents)
