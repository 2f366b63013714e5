"""One attempt at a cluster: who tries what with which request, and what refuses it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from deploy.local.apiserver.patch.merge import merge_patch
from protocol.kubernetes.resources import Resource
from tests.kubernetes.attacks.world import HOME, Obj, Who

RBAC: Final = "RBAC"
BINDINGS: Final = Resource("", "v1", "bindings", "Binding")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request: ``who`` tries ``what``, and is refused by RBAC or the policy of that name, or by nothing."""

    who: Who
    what: str
    refused_by: str
    verb: str
    kind: Resource
    name: str
    body: Obj = field(default_factory=dict)
    namespace: str = HOME
    subresource: str = ""

    def __str__(self) -> str:
        return f"{self.who.name}: {self.what}"


def patches(kind: Resource, name: str, who: Who, rows: dict[str, tuple[Any, str]], **where: str) -> list[Attempt]:
    """Merge patches on one object: what is tried, the patch, and what refuses it."""
    return [Attempt(who, what, by, "patch", kind, name, body, **where) for what, (body, by) in rows.items()]


def use(cpu: object, slots: int) -> Obj:
    """A size of a VM."""
    return {"spec": {"guest": {"cpus": {"use": cpu}, "memorySlots": {"use": slots}}}}


def noted(key: str, value: str | None = "x") -> Obj:
    """An annotation."""
    return {"metadata": {"annotations": {key: value}}}


def event(kind: str, component: str = "autoscaler-agent") -> Obj:
    """An Event about the object ``mine``, as the component writes it."""
    about = {"apiVersion": "vm.neon.tech/v1", "kind": kind, "namespace": HOME, "name": "mine"}
    said = {"reason": "ResizeRefused", "message": "no", "type": "Warning", "source": {"component": component}}
    metadata = {"generateName": "mine.", "namespace": HOME}
    return {"apiVersion": "v1", "kind": "Event", "metadata": metadata, "involvedObject": about, **said}


def condition(name: str) -> Obj:
    """A condition of a pod that is true."""
    return {"status": {"conditions": [{"type": name, "status": "True"}]}}


def binding_of(name: str, **metadata: Any) -> Obj:
    """A binding of a pod to the second node."""
    about = {"name": name, **metadata}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": about, "target": {"kind": "Node", "name": "node-b"}}


def changed(found: Obj, change: Obj) -> Obj:
    """An object with a merge patch."""
    merged: Obj = merge_patch(found, change)
    return merged


def resources(of: Obj, container: str, **found: Obj) -> Obj:
    """A patch of the resources of one container."""
    containers = [
        {**each, "resources": {**each.get("resources", {}), **found}} if each["name"] == container else each
        for each in of["spec"]["containers"]
    ]
    return {"spec": {"containers": containers}}
