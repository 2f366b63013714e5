"""Pods of targets: selectors, the primary among them, and the fields to cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final

from protocol import names
from protocol.kubernetes.objects import (
    Json,
    JsonObject,
    annotations_of,
    child,
    controller_of,
    is_large_selector,
    items,
    labels_of,
    name_of,
    text,
    uid_of,
)
from protocol.kubernetes.objects import texts as strings
from protocol.kubernetes.resources import REPLICA_SETS, STATEFUL_SETS, Resource
from protocol.messages import ObjectName
from protocol.pod_database import is_pod_database

_CLUSTER: Final = "cnpg.io/cluster"

_ROLE_LABELS: Final = (
    names.LABEL_CNPG_ROLE,
    names.LABEL_ROLE,
    "spilo-role",  # Zalando's operator
    "postgres-operator.crunchydata.com/role",
    "kubeblocks.io/role",
)
"""Labels of operators with an instance's role."""

_PATRONI_LABEL: Final = "role"
_PATRONI_ROLES: Final = frozenset({"master", "primary", "replica", "standby_leader"})
"""Patroni's own label and its values, also of StackGres and old releases of CloudNativePG."""

_PRIMARY: Final = frozenset({"master", "primary"})
"""Patroni before version 4 says ``master``."""


def pod_selector(target: JsonObject) -> Json:
    """Label selector of the pods of a Deployment, StatefulSet, ReplicaSet or Cluster."""
    spec = child(target, "spec")
    # A Cluster has no selector in its spec, and before CloudNativePG 1.28.4 none in its status.
    if "instances" in spec:
        return {"matchLabels": {_CLUSTER: name_of(target).name, "cnpg.io/podRole": "instance"}}
    return child(spec, "selector")


def primary_of(pods: Sequence[JsonObject], kind: Resource) -> JsonObject | None:
    """The primary's pod, or the first pod of a StatefulSet without role labels; None if unknown."""
    roles = [_role(labels_of(pod)) for pod in pods]
    if any(roles):
        primaries = [pod for pod, role in zip(pods, roles, strict=True) if role in _PRIMARY]
    else:
        primaries = [pod for pod in pods if kind is STATEFUL_SETS and name_of(pod).name.endswith("-0")]
    # During a failover there may be two.
    return primaries[0] if len(primaries) == 1 else None


def _role(labels: Mapping[str, str]) -> str:
    """The role of the pod with these labels; empty if unknown."""
    role = next((labels[label] for label in _ROLE_LABELS if labels.get(label)), "")
    # Other pods may use the general label for something else.
    return role or next(iter(_PATRONI_ROLES & {labels.get(_PATRONI_LABEL, "")}), "")


def is_of_other(pod: JsonObject, target: JsonObject, get: Callable[[Resource, ObjectName], JsonObject | None]) -> bool:
    """Return True if another object than ``target`` controls the pod, directly or by a ReplicaSet.

    A selector may match such pods, too: a canary's pods have the labels of the main Deployment and one more.
    """
    owner = controller_of(pod)
    if text(owner, "kind") == REPLICA_SETS.kind and text(owner, "uid") != uid_of(target):
        replica_set = get(REPLICA_SETS, ObjectName(name_of(pod).namespace, text(owner, "name")))
        owner = controller_of(replica_set or {}) or owner
    # Without a controller it will be adopted by any controller that selects it.
    return bool(owner) and text(owner, "uid") != uid_of(target)


def selector_of(target: JsonObject) -> str:
    """Label selector of the target's pods as text, as in ``/scale``; empty if there is none."""
    if from_status := text(target, "status", "selector"):
        return from_status
    selector = pod_selector(target)
    equal = sorted(f"{key}={value}" for key, value in strings(selector, "matchLabels").items())
    return ",".join([*equal, *map(_requirement, items(selector, "matchExpressions"))])


def _requirement(obj: JsonObject) -> str:
    key, operator, values = text(obj, "key"), text(obj, "operator"), obj.get("values")
    if operator in {"Exists", "DoesNotExist"}:
        return key if operator == "Exists" else f"!{key}"
    return f"{key} {operator.lower()} ({','.join(map(str, values if isinstance(values, list) else ()))})"


MOST: Final = 100
"""Maximum labels, containers and conditions to cache of an object. Anyone may create pods with 80,000 labels."""

_SIZED: Final = ("cpu", "memory")
_STATUS: Final = ("name", "allocatedResources", "resources", "state", "lastState")
_METADATA: Final = ("name", "namespace", "uid", "resourceVersion", "generation", "deletionTimestamp")
_OWNER: Final = ("kind", "name", "uid")
_ANNOTATIONS: Final = (
    names.ANNOTATION_BOUNDS,
    names.ANNOTATION_CONTAINER,
    names.ANNOTATION_FIRST_REQUESTS,
    names.ANNOTATION_FLOOR,
)


def trimmed_pod(pod: JsonObject) -> Json:
    """The pod with only the fields on sizes and OOM kills, a tenth of it: there may be tens of thousands of pods."""
    metadata, status = child(pod, "metadata"), child(pod, "status")
    containers = _sizes(items(pod, "spec", "containers"))
    # Only sidecars run as long as the pod.
    inits = [
        container for container in items(pod, "spec", "initContainers") if container.get("restartPolicy") == "Always"
    ]
    sidecars = [{**container, "restartPolicy": "Always"} for container in _sizes(inits)]
    # Drop `Ready` unless it is True.
    conditions = [
        condition
        for condition in items(status, "conditions")
        if text(condition, "type").startswith("PodResize")
        or (text(condition, "type"), text(condition, "status")) == ("Ready", "True")
    ][:MOST]
    statuses = [_only(container_status, _STATUS) for container_status in items(status, "containerStatuses")[:MOST]]
    trimmed: Json = {"phase": text(status, "phase"), "conditions": conditions, "containerStatuses": statuses}
    spec: Json = {"containers": containers, **({"initContainers": sidecars} if sidecars else {})}
    annotations = _only(annotations_of(pod), _ANNOTATIONS) if is_pod_database(pod) else {}
    about = _only(metadata, _METADATA)
    about |= {"ownerReferences": _shared(*owner)} if (owner := _controller(pod)) else {}
    about |= {"labels": dict(islice(labels_of(pod).items(), MOST))} if "labels" in metadata else {}
    about |= {"annotations": annotations} if annotations else {}
    return {"metadata": about, "spec": spec, "status": trimmed}


def _controller(pod: JsonObject) -> tuple[str, ...]:
    owner = controller_of(pod)
    # No real one is longer, and anyone may create pods with references of a megabyte.
    return tuple(text(owner, name)[:253] for name in _OWNER) if owner else ()


@lru_cache(10_000)
def _shared(*owner: str) -> list[Json]:
    """The owner references of all pods with this controller, one object for all of them."""
    return [{**dict(zip(_OWNER, owner, strict=True)), "controller": True}]


def trimmed_workload(workload: JsonObject) -> Json:
    """The object with its template's sizes only: anyone may create workloads whose templates take 25 MiB in memory.

    A large selector is dropped too; then no pods are known.
    """
    containers = _sizes(items(workload, "spec", "template", "spec", "containers"))
    template: Json = {"template": {"spec": {"containers": containers}}} if containers else {}
    spec = child(workload, "spec")
    selector = {} if is_large_selector(child(spec, "selector")) else _only(spec, ("selector",))
    return {**workload, "spec": {**_only(spec, ("replicas",)), **selector, **template}}


def _sizes(containers: Sequence[JsonObject]) -> list[Json]:
    return [
        {
            **_only(container, ("name",)),
            **({"resources": _resources(child(container, "resources"))} if "resources" in container else {}),
        }
        for container in containers[:MOST]
    ]


def _resources(resources: JsonObject) -> Json:
    return {part: _only(child(resources, part), _SIZED) for part in ("requests", "limits") if part in resources}


def _only(fields: Mapping[str, object], names: tuple[str, ...]) -> Json:
    return {name: fields[name] for name in names if name in fields}
