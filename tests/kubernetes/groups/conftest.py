"""``autoscale-groups`` on a real Kubernetes as it is installed, and all workloads of these tests at once: what the HPA
controller and the recommender take their time for, they take it for all of them together.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from deploy.images.building.image_build import build, native_platform
from deploy.images.building.layers import LayerMaker
from deploy.images.catalogue import IMAGES
from deploy.images.inputs.apt import Origin
from deploy.images.inputs.checkout import Checkout
from protocol.kubernetes.resources import NAMESPACES
from protocol.runtime.clock import SystemClock
from protocol.runtime.credentials import from_kubeconfig
from tests.deploy.manifests import ROOT
from tests.kubernetes.groups import test_hvpas, test_tortoises, test_vm_group_scale, test_what_is_wrong_there
from tests.kubernetes.groups.scene import NAMESPACE, SYSTEM, Scene
from tests.kubernetes.real_kubernetes import RealKubernetes, eventually

MANIFESTS = [
    ROOT / "deploy" / "kubernetes" / name for name in ("groups.yaml", "policies/groups.yaml", "policies/leases.yaml")
]
SCENES = (test_hvpas.SCENE, test_tortoises.SCENE, test_vm_group_scale.SCENE, test_what_is_wrong_there.SCENE)
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
  EmergencyModeGracePeriod: 5s
  TortoiseUpdateInterval: 2s
"""


@pytest.fixture(scope="package")
def scene(cluster: RealKubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The program with its service account, rights and Lease, over everything that the tests of this folder look at."""
    bring_image(cluster, tmp_path_factory.mktemp("groups"))
    installed = manifest()
    with asking(cluster) as api, without_vm_controller(cluster):
        found = Scene(cluster, api)
        try:
            cluster.kubectl("create", "namespace", NAMESPACE)
            cluster.kubectl("apply", "--filename=-", typed=installed)
            for objects in SCENES:
                found.apply(*objects)
            cluster.wait("condition=Available", "deployment/autoscaling-groups", namespace=SYSTEM)
            test_vm_group_scale.begin(found)
            yield found
        finally:
            cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
            cluster.kubectl("delete", "--wait=false", "--ignore-not-found", "--filename=-", typed=installed)
            eventually(
                lambda: api.get(NAMESPACES.path("", NAMESPACE)).status_code == httpx.codes.NOT_FOUND, "it is gone"
            )


@contextmanager
def asking(cluster: RealKubernetes) -> Iterator[httpx.Client]:
    """A client with people's rights."""
    found = from_kubeconfig(cluster.kubeconfig, SystemClock())
    headers = {"Authorization": f"Bearer {found.token()}"}
    with httpx.Client(base_url=found.server, verify=found.tls, headers=headers, trust_env=False, timeout=10) as client:
        yield client


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


def bring_image(cluster: RealKubernetes, folder: Path) -> None:
    """Builds the program's image and puts it on every node."""
    bring_image_of(cluster, "autoscale-groups", folder)


def bring_image_of(cluster: RealKubernetes, name: str, folder: Path) -> None:
    """Builds an image and puts it on every node."""
    platform = native_platform()
    maker = LayerMaker(Checkout(), platform, platform, Origin(), print)
    image = build(IMAGES[name], maker, f"localhost:5001/{name}:dev", folder)
    assert cluster.autoscale("load", str(image.path)).returncode == 0


def manifest() -> str:
    """What is installed, fences included, with the settings of these tests."""
    documents = [each for path in MANIFESTS for each in yaml.safe_load_all(path.read_text())]
    for each in documents:
        if each["kind"] == "ConfigMap":
            each["data"]["settings.yaml"] = SETTINGS
    return yaml.safe_dump_all(documents)
