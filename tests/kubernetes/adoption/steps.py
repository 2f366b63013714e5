"""Steps of release tests: user actions and checks, on a cluster with the VM of ``vm-deploy.yaml``."""

from __future__ import annotations

import time
from collections.abc import Set
from typing import Any, Final

from protocol.names import ANNOTATION_BOUNDS
from scripts.autoscale.check.finding import Level
from tests.kubernetes.adoption.release import Release
from tests.kubernetes.check.faults import Installation
from tests.kubernetes.real_kubernetes import NotYetError, RealKubernetes, eventually
from tests.kubernetes.vms import bounds

NAME: Final = "postgres14-disk-test"
EMULATED: Final = {"nodes-accelerate"}
"""What is said of a node without KVM once a guest runs on it."""
_NOT_ASKED: Final = ("componentstatuses", "events", "leases.", "namespaces", "nodes.metrics", "pods.metrics")
"""Kinds of which nothing is a part of an installation; and Leases and the namespace, which stay. Programs make Leases,
and what is left of them holds nothing.
"""

_POLICY: Final = "networkpolicy.networking.k8s.io/neonvm-runners"
_KEPT: Final = {"secret/neonvm-runners", _POLICY}
"""The authority that runners of VMs that stay let in, and the fence around them (docs/install.md)."""
_OUR_NAMES: Final = ("autoscal", "neonvm")


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
    """The VM's pods, and their number of container restarts."""
    found = cluster.get("pods", f"--selector=vm.neon.tech/name={NAME}")["items"]
    return [
        (each["metadata"]["uid"], sum(c["restartCount"] for c in each["status"]["containerStatuses"])) for each in found
    ]


def installed(release: Release, *more: str) -> None:
    """As people do it, and asked whether it answers."""
    began = time.monotonic()
    release.helm("install", "--wait", "--timeout=6m", *more)
    print(f"installed after {time.monotonic() - began:.0f} s")
    answers(release)


def answers(release: Release) -> None:
    """To ``helm test``."""
    assert "Phase:          Succeeded" in release.helm("test", "--timeout=2m")


def is_in_order(release: Release, seconds: float = 150.0, *, but: Set[str] = frozenset()) -> None:
    """Check that ``autoscale check`` finds no problem, except those named."""
    said = dict[str, tuple[Level, str]]()

    def nothing_is_wrong() -> bool:
        said.clear()
        found = Installation(release.cluster).check().wrong
        said.update((name, each) for name, each in found.items() if name not in but)
        return not said

    try:
        eventually(nothing_is_wrong, "everything is in order", seconds)
    except NotYetError as error:
        raise AssertionError(f"{error}: {said}") from None


def resized(cluster: RealKubernetes, size: int) -> None:
    """Agent and scheduler bring the VM to a size between whose bounds there is no other."""
    cluster.kubectl("annotate", "--overwrite", f"neonvm/{NAME}", f"{ANNOTATION_BOUNDS}={bounds(str(size), 2 * size)}")
    began = time.monotonic()
    eventually(lambda: cpus(cluster) == size, f"it has {size} CPUs", 180.0)
    print(f"it has {size} CPUs after {time.monotonic() - began:.0f} s")


def deleted(cluster: RealKubernetes) -> None:
    """A VM that is to go waits for its controller."""
    cluster.kubectl("delete", f"neonvm/{NAME}", "--timeout=80s")
    eventually(lambda: pods_of_vm(cluster) == [], "its pod is gone")
    eventually(lambda: _POLICY not in ours_in(cluster), "the fence around its pods is gone")


def taken_out(release: Release) -> None:
    """Check that only the CRDs, the VMs, and Leases without a holder are left of our objects."""
    release.helm("uninstall", "--wait", "--timeout=2m")
    nothing_of_ours_is_left(release)


def nothing_of_ours_is_left(release: Release) -> None:
    left = set[str]()

    def nothing_is_left() -> bool:
        left.clear()
        left.update(ours_in(release.cluster) - _KEPT)
        return not left

    try:
        eventually(nothing_is_left, "nothing of ours is left")
    except NotYetError as error:
        raise AssertionError(f"{error}: {left}") from None
    assert {each["metadata"]["name"] for each in release.objects("crds")} == {
        "virtualmachines.vm.neon.tech",
        "virtualmachinemigrations.vm.neon.tech",
    }


def ours_in(cluster: RealKubernetes) -> set[str]:
    """All objects with our names."""
    kinds = cluster.kubectl("api-resources", "--verbs=list", "--output=name").split()
    asked = ",".join(each for each in kinds if not each.startswith(_NOT_ASKED))
    found = cluster.kubectl("get", asked, "--all-namespaces", "--output=name").split()
    return {each for each in found if each.partition("/")[2].startswith(_OUR_NAMES)}
