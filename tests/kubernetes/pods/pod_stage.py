"""A cluster with CloudNativePG and postgres pods: creates, loads and inspects them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from deploy.local.kubernetes.programs.postgres_image import postgres_image
from protocol.names import ANNOTATION_BOUNDS
from protocol.pod_database import PREFIX
from protocol.units import Resources
from tests.kubernetes.adoption.release import NAMESPACE, Release
from tests.kubernetes.pods import images
from tests.kubernetes.pods.load import Server
from tests.kubernetes.pods.postgres import bounds, volumes
from tests.kubernetes.real_kubernetes import RealKubernetes, eventually
from tests.kubernetes.scheduling.books import requests_of

Obj = dict[str, Any]

OPERATOR: Final = ("deployment/cnpg-controller-manager", "cnpg-system")
NODES: Final = ("node-1", "node-2")


@dataclass(frozen=True, slots=True)
class PodStage:
    """The cluster of these tests, with the release."""

    release: Release

    @property
    def cluster(self) -> RealKubernetes:
        """The cluster itself."""
        return self.release.cluster

    def pod(self, name: str) -> Obj:
        """The pod from the API server."""
        found: Obj = self.cluster.get("pod", name)
        return found

    def server(self, pod: str, password: str = "") -> Server:
        """The database in the pod."""
        return Server(self.cluster, self.pod(pod)["status"]["podIP"], password)

    def bound(self, pod: str, most: Resources, least: Resources | None = None) -> None:
        """From now on the pod's agent keeps its size between these."""
        self.cluster.kubectl("annotate", "--overwrite", f"pod/{pod}", f"{ANNOTATION_BOUNDS}={bounds(most, least)}")

    def explained(self, pod: str) -> Any:
        """The explanation of the pod's agent for its size."""
        node = self.pod(pod)["spec"]["nodeName"]
        selector = "--selector=app.kubernetes.io/name=autoscaling-agent"
        agents = self.cluster.get("pods", f"--namespace={NAMESPACE}", selector)["items"]
        (agent,) = (each["metadata"]["name"] for each in agents if each["spec"]["nodeName"] == node)
        return self.cluster.explained(f"{NAMESPACE}/{agent}", 9101, f"/explain/default/{PREFIX}{pod}")

    def scheduler_explains(self, pod: str) -> Any:
        """The scheduler's explanation: the pod's reservation, and why it gets no more."""
        return self._of_scheduler(f"/explain/default/{PREFIX}{pod}")

    def _of_scheduler(self, path: str) -> Any:
        selector = "--selector=app.kubernetes.io/name=autoscaling-scheduler"
        (pod,) = self.cluster.get("pods", f"--namespace={NAMESPACE}", selector)["items"]
        return self.cluster.explained(f"{NAMESPACE}/{pod['metadata']['name']}", 10297, path)

    def reserved(self, node: str) -> Resources:
        """The node's reservations in the scheduler's ledger."""
        nodes = self._of_scheduler("/nodes")["nodes"]
        (found,) = (each["reserved"] for each in nodes if each["name"] == node)
        return Resources.parse(found["cpu"], found["mem"])

    def requested(self, node: str) -> Resources:
        """Requests of the node's pods, according to the API."""
        there = self.cluster.get("pods", "--all-namespaces", f"--field-selector=spec.nodeName={node}")["items"]
        return Resources.sum(requests_of(each) for each in there if each["status"]["phase"] in {"Pending", "Running"})

    def until_books_agree(self) -> None:
        """Wait until our scheduler's ledger matches the API's objects."""
        for node in NODES:
            eventually(lambda each=node: self.reserved(each) == self.requested(each), f"the book of {node}", 30.0)  # type: ignore[misc]


def container(pod: Obj) -> Obj:
    """The postgres container in the pod's spec."""
    return next(dict(each) for each in pod["spec"]["containers"] if each["name"] == "postgres")


def status(pod: Obj) -> Obj:
    """The container's status; empty before it runs."""
    found = pod["status"].get("containerStatuses", [])
    return next((dict(each) for each in found if each["name"] == "postgres"), {})


def desired(pod: Obj) -> Resources:
    """Requests of postgres."""
    requests = container(pod)["resources"]["requests"]
    return Resources.parse(requests["cpu"], requests["memory"])


def actual(pod: Obj) -> Resources:
    """Resources of postgres according to the kubelet."""
    requests = status(pod)["resources"]["requests"]
    return Resources.parse(requests["cpu"], requests["memory"])


def objections(pod: Obj) -> dict[str, str]:
    """The kubelet's conditions about a resize: their reasons by type."""
    found = pod["status"].get("conditions", [])
    return {
        each["type"]: each.get("reason", "")
        for each in found
        if each["type"].startswith("PodResize") and each["status"] == "True"
    }


def restarts(pod: Obj) -> int:
    """Number of restarts of its containers."""
    return sum(each["restartCount"] for each in pod["status"].get("containerStatuses", []))


@contextmanager
def with_operator(cluster: RealKubernetes, folder: Path) -> Iterator[None]:
    """CloudNativePG runs, and nodes have the image and the volumes for its postgres."""
    for archive in (images.operator_image(folder), postgres_image(folder, print)):
        done = cluster.autoscale("load", str(archive))
        assert done.returncode == 0, done.stderr
    cluster.apply(*volumes(cluster))
    cluster.kubectl("apply", "--server-side", "--filename=-", typed=images.operator_manifest())
    name, namespace = OPERATOR
    cluster.wait("condition=Available", name, namespace=namespace)
    yield
