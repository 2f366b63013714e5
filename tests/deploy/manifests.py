"""Every manifest that we ship, read from its file: documents, pods, containers, and who refers to whom."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests import plain_yaml

Document = dict[str, Any]

ROOT: Final = Path(__file__).resolve().parents[2]

POLICIES: Final = tuple(
    f"deploy/kubernetes/chart/autoscale/policies/{name}.yaml"
    for name in ("agents", "groups", "injector", "leases", "neonvm-controller", "network", "scheduler")
)
"""The fences around all programs."""

FILES: Final = (
    "deploy/neonvm.yaml",
    "deploy/scheduler-deploy.yaml",
    "deploy/kubernetes/agent-daemonset.yaml",
    "deploy/kubernetes/agent-sidecar.yaml",
    "deploy/kubernetes/dashboard.yaml",
    "deploy/kubernetes/expander.yaml",
    "deploy/kubernetes/groups.yaml",
    "deploy/kubernetes/injector.yaml",
    "deploy/kubernetes/neonvm-controller.yaml",
    "deploy/kubernetes/neonvm-devices.yaml",
    "deploy/kubernetes/neonvm-network.yaml",
    "deploy/kubernetes/neonvm-policy.yaml",
    *POLICIES,
    "vm-deploy.yaml",
)
"""What people apply, in the order in which it can be applied."""

WITH_CERTIFICATES: Final = tuple(
    f"deploy/kubernetes/with-certificates/{name}.yaml"
    for name in ("injector", "scheduler", "scheduler-leader", "agent-daemonset")
)
"""What kustomize applies instead of the files of the same names."""

WITH_PODS: Final = tuple(
    f"deploy/kubernetes/with-pods/{name}.yaml" for name in ("injector", "groups", "scheduler", "agent-daemonset")
)
"""What serves postgres in ordinary pods, too."""

NOT_APPLIED: Final = (
    "deploy/kubernetes/kind.yaml",
    "deploy/kustomization.yaml",
    *(f"deploy/kubernetes/chart/autoscale/{name}.yaml" for name in ("Chart", "values")),
    *(
        f"deploy/kubernetes/chart/autoscale/{name}/*.yaml"
        for name in ("templates", "settings", "definitions", "monitoring")
    ),
    "deploy/local/crds/*.yaml",
    "deploy/local/kubernetes/add_ons/*.yaml",
    "deploy/local/kubernetes/manifests/*.yaml",
)
"""kind's own file, the parts of ``deploy/neonvm.yaml``, what is not rendered yet, what only the Prometheus operator
knows, and what only local clusters get."""

SIDECAR: Final = ("autoscaling-agent-sidecar", "pod.yaml", "default")
"""The ConfigMap and key that hold the sidecar's part of a pod, and the namespace in which such pods run."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod: its spec, or the part of one that we ship."""

    owner: str
    namespace: str
    spec: Document
    labels: dict[str, str]

    @property
    def containers(self) -> list[Document]:
        """Its containers."""
        return list(self.spec["containers"])


@cache
def _read(file: str) -> tuple[Document, ...]:
    return tuple(plain_yaml.load_all((ROOT / file).read_text()))


def documents(*files: str) -> list[Document]:
    """The objects of those files, of all where none is named."""
    return [document for file in files or FILES for document in _read(file)]


def name_of(document: Document) -> str:
    """``Kind/namespace/name``, for people and as a key."""
    metadata = document["metadata"]
    return f"{document['kind']}/{metadata.get('namespace', '')}/{metadata['name']}"


def one(kind: str, name: str) -> Document:
    """The only object of that kind and name."""
    (found,) = (each for each in documents() if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def pods_of(found: list[Document]) -> list[Pod]:
    """The pods of the Deployments and DaemonSets among those objects."""
    return [
        Pod(name_of(each), each["metadata"]["namespace"], template["spec"], template["metadata"]["labels"])
        for each in found
        if (template := each.get("spec", {}).get("template")) is not None
    ]


def pods() -> list[Pod]:
    """The pods of all Deployments and DaemonSets, and the sidecar's part of one."""
    name, key, namespace = SIDECAR
    part = plain_yaml.load(one("ConfigMap", name)["data"][key])
    return [*pods_of(documents()), Pod(f"sidecar of {name}", namespace, part["spec"], {})]


def container(name: str) -> Document:
    """The only container of that name."""
    (found,) = (each for pod in pods() for each in pod.containers if each["name"] == name)
    return found
