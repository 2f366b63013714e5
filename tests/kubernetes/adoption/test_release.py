"""From an empty cluster to a VM that grows, through an upgrade and back, and out again, while clients are at work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.names import ANNOTATION_BOUNDS
from tests.deploy.manifests import ROOT
from tests.kubernetes.adoption.load import busy
from tests.kubernetes.adoption.release import (
    NAMESPACE,
    NEXT,
    Release,
    bring_images,
    edit_settings,
    settings_of,
    telling,
)
from tests.kubernetes.flat_client import flat_client
from tests.kubernetes.real_kubernetes import RealKubernetes, eventually, running
from tests.kubernetes.vms import bounds

pytestmark = pytest.mark.kubernetes

NAME = "postgres14-disk-test"
TEN_MINUTES = 600.0
OURS = ("deployments", "daemonsets", "clusterroles", "clusterrolebindings", "configmaps", "services", "pods")


@pytest.fixture(scope="module")
def release(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """An empty cluster whose nodes have the images, as if from a registry."""
    with running(RealKubernetes("adoption", home), "--nodes", "2") as cluster:
        cluster.kubectl("delete", "crds", "--all")
        bring_images(cluster, tmp_path_factory.mktemp("images"))
        yield Release(cluster)


def vm(cluster: RealKubernetes) -> dict[str, Any]:
    found: dict[str, Any] = cluster.get("neonvm", NAME)
    return found


def cpus(cluster: RealKubernetes) -> float:
    said = str(vm(cluster).get("status", {}).get("cpus", "0"))
    return float(said.removesuffix("m")) / (1000 if said.endswith("m") else 1)


def is_available(cluster: RealKubernetes) -> bool:
    said = {each["type"]: each["status"] for each in vm(cluster).get("status", {}).get("conditions", [])}
    return said.get("Available") == "True"


def pods_of_vm(cluster: RealKubernetes) -> list[tuple[str, int]]:
    """Which pods the VM has, and how often their containers began anew."""
    found = cluster.get("pods", f"--selector=vm.neon.tech/name={NAME}")["items"]
    return [
        (each["metadata"]["uid"], sum(c["restartCount"] for c in each["status"]["containerStatuses"])) for each in found
    ]


def test_two_schedulers_answer_over_tls_and_so_does_the_webhook(release: Release) -> None:
    """The agents' port, the extender and the webhook are asked by the pod of ``helm test``."""
    values = ("certificates.enabled=true", "scheduler.replicas=2", "agent.node.enabled=false")
    more = ("agent.sidecar.enabled=true", "policies.enabled=true")
    with telling(release.cluster):
        release.helm("install", "--create-namespace", "--wait", "--timeout=3m", f"--set={','.join((*values, *more))}")
        assert "Phase:          Succeeded" in release.helm("test", "--timeout=2m")
        release.helm("uninstall", "--wait", "--timeout=2m")


def test_from_an_empty_cluster_to_growth_through_an_upgrade_and_out_again(release: Release) -> None:
    with telling(release.cluster):
        from_nothing_to_nothing(release)


def from_nothing_to_nothing(release: Release) -> None:
    cluster, began = release.cluster, time.monotonic()
    release.helm("install", "--create-namespace", "--wait", "--timeout=3m")
    print(f"installed after {time.monotonic() - began:.0f} s")
    assert "Phase:          Succeeded" in release.helm("test", "--timeout=2m")
    cluster.kubectl("apply", f"--filename={ROOT / 'vm-deploy.yaml'}")
    eventually(lambda: is_available(cluster), "the VM is available", 240.0)
    print(f"the database answers after {time.monotonic() - began:.0f} s")
    with flat_client(cluster) as place, busy(place, vm(cluster)["status"]["extraNetIP"], 3) as load:
        eventually(lambda: cpus(cluster) > 1, "it grows", 120.0)
        grown = time.monotonic() - began
        print(f"it grows after {grown:.0f} s")
        assert grown < TEN_MINUTES
        pods = pods_of_vm(cluster)
        upgraded_and_back(release)
        taken_out(release)
        assert (pods_of_vm(cluster), load.failures) == (pods, [])
        before = load.answers
        eventually(lambda: load.answers > before, "its clients are answered without us")
        print(f"{load.answers} answers, none failed; the longest wait was {load.longest:.1f} s")
    taken_over_again(release, pods)


def upgraded_and_back(release: Release) -> None:
    """Under load, to a version that resizes the VM, and back to one that does. An upgrade keeps what was edited."""
    cluster, shipped = release.cluster, settings_of(release.cluster)
    changed = edit_settings(cluster, "cooldownSeconds: 300", "cooldownSeconds: 301")
    notes = release.helm("upgrade", "--reset-then-reuse-values", f"--set=image.tag={NEXT}", "--wait", "--timeout=4m")
    assert "kept as they are there, whatever the values say: autoscaling-scheduler-config" in " ".join(notes.split())
    assert settings_of(cluster) == changed
    eventually(lambda: release.tags() == {NEXT}, "all programs are the new ones")
    resized(cluster, 2)
    release.helm("rollback", "--wait", "--timeout=4m")
    eventually(lambda: release.tags() == {"dev"}, "all programs are the old ones")
    assert settings_of(cluster) == shipped, "a roll-back is to all that the revision had"
    resized(cluster, 3)


def resized(cluster: RealKubernetes, size: int) -> None:
    """Agent and scheduler bring the VM to a size between whose bounds there is no other."""
    cluster.kubectl("annotate", "--overwrite", f"neonvm/{NAME}", f"{ANNOTATION_BOUNDS}={bounds(str(size), 2 * size)}")
    eventually(lambda: cpus(cluster) == size, f"it has {size} CPUs", 120.0)


def taken_out(release: Release) -> None:
    """Nothing of ours is left but the kinds and the VM."""
    cluster = release.cluster
    release.helm("uninstall", "--wait", "--timeout=2m")
    eventually(lambda: not any(release.objects(kind) for kind in OURS), "nothing of ours is left", 60.0)
    assert {each["metadata"]["name"] for each in release.objects("crds")} == {
        "virtualmachines.vm.neon.tech",
        "virtualmachinemigrations.vm.neon.tech",
    }
    assert is_available(cluster)


def taken_over_again(release: Release, pods: list[tuple[str, int]]) -> None:
    """A VM that is to go waits for its controller; a new release takes over what the old one left."""
    cluster = release.cluster
    release.helm("install", "--wait", "--timeout=3m")
    assert pods_of_vm(cluster) == pods
    cluster.kubectl("delete", f"neonvm/{NAME}", "--timeout=80s")
    eventually(lambda: pods_of_vm(cluster) == [], "its pod is gone")
    release.helm("uninstall", "--wait", "--timeout=2m")
    assert cluster.get("pods", f"--namespace={NAMESPACE}")["items"] == []
