"""Kubernetes objects as this package handles them: plain JSON, read through accessors that never surprise.

Rules that hold here:

- An object is the ``Json`` that the API gave; nothing is dropped, so that it may be handed on whole (the extender gets
  whole pods). Only these accessors reach into one.
- A missing or null field reads as empty. A field of the wrong type reads as empty too: the API server validates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.messages import ObjectName
from protocol.names import MIGRATION_PLURAL, VM_GROUP, VM_PLURAL, VM_VERSION

Json = dict[str, object]
"""One JSON object."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object: where its API lives and what it is called there."""

    prefix: str
    plural: str
    namespaced: bool
    api_version: str
    kind: str

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The URL path of the collection, of one object, or of a subresource."""
        scope = ("namespaces", namespace) if self.namespaced and namespace else ()
        return "/".join((self.prefix, *scope, self.plural, *(part for part in (name, subresource) if part)))


def _core(plural: str, kind: str, namespaced: bool = True) -> Kind:
    return Kind("/api/v1", plural, namespaced, "v1", kind)


def _neonvm(plural: str, kind: str) -> Kind:
    return Kind(f"/apis/{VM_GROUP}/{VM_VERSION}", plural, True, f"{VM_GROUP}/{VM_VERSION}", kind)


PODS: Final = _core("pods", "Pod")
NODES: Final = _core("nodes", "Node", namespaced=False)
EVENTS: Final = _core("events", "Event")
NAMESPACES: Final = _core("namespaces", "Namespace", namespaced=False)
SERVICE_ACCOUNTS: Final = _core("serviceaccounts", "ServiceAccount")
VIRTUAL_MACHINES: Final = _neonvm(VM_PLURAL, "VirtualMachine")
MIGRATIONS: Final = _neonvm(MIGRATION_PLURAL, "VirtualMachineMigration")
CRDS: Final = Kind(
    "/apis/apiextensions.k8s.io/v1",
    "customresourcedefinitions",
    False,
    "apiextensions.k8s.io/v1",
    "CustomResourceDefinition",
)


def child(source: Mapping[str, object], *path: str) -> Json:
    """The JSON object at ``path``; empty where there is none."""
    found: object = source
    for step in path:
        found = found.get(step) if isinstance(found, Mapping) else None
    return dict(found) if isinstance(found, Mapping) else {}


def text(source: Mapping[str, object], *path: str) -> str:
    """The text at ``path``; empty where there is none."""
    found = child(source, *path[:-1]).get(path[-1])
    return found if isinstance(found, str) else ""


def texts(source: Mapping[str, object], *path: str) -> dict[str, str]:
    """The mapping of texts at ``path`` (labels, annotations, selectors)."""
    return {key: value for key, value in child(source, *path).items() if isinstance(value, str)}


def whole(source: Mapping[str, object], *path: str) -> int:
    """The whole number at ``path``; 0 where there is none."""
    found = child(source, *path[:-1]).get(path[-1])
    return found if isinstance(found, int) and not isinstance(found, bool) else 0


def flag(source: Mapping[str, object], *path: str) -> bool:
    """Whether there is ``true`` at ``path``."""
    return child(source, *path[:-1]).get(path[-1]) is True


def items(source: Mapping[str, object], *path: str) -> list[Json]:
    """The JSON objects of the list at ``path``."""
    found = child(source, *path[:-1]).get(path[-1])
    return [dict(item) for item in found if isinstance(item, Mapping)] if isinstance(found, Sequence) else []


def name_of(source: Mapping[str, object]) -> ObjectName:
    """Namespace (empty for cluster-wide kinds) and name."""
    return ObjectName(text(source, "metadata", "namespace"), text(source, "metadata", "name"))


def uid_of(source: Mapping[str, object]) -> str:
    """What tells two objects of one name apart."""
    return text(source, "metadata", "uid")


def labels_of(source: Mapping[str, object]) -> dict[str, str]:
    """The object's labels."""
    return texts(source, "metadata", "labels")


def annotations_of(source: Mapping[str, object]) -> dict[str, str]:
    """The object's annotations."""
    return texts(source, "metadata", "annotations")


def is_leaving(source: Mapping[str, object]) -> bool:
    """Whether deletion of the object has begun."""
    return bool(text(source, "metadata", "deletionTimestamp"))


def node_of(pod: Mapping[str, object]) -> str:
    """The node that a pod is bound to; empty while it is not."""
    return text(pod, "spec", "nodeName")


def pod_phase(pod: Mapping[str, object]) -> str:
    """Pending, Running, Succeeded or Failed."""
    return text(pod, "status", "phase")


def is_over(pod: Mapping[str, object]) -> bool:
    """Whether the pod has ended and will not run again."""
    return pod_phase(pod) in {"Succeeded", "Failed"}
