"""Resources of a pod's containers, which only ``pods/resize`` can change. Pure.

- A resize changes CPU and memory of existing containers; the pod keeps its QoS class. All other fields of the request
  are ignored.
- A container cannot request more than its limit, nor a scheduled pod more than its node's allocatable resources.
- Only the kubelet reports the outcome (``status.containerStatuses``, conditions).
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Final

from deploy.local.apiserver.apimachinery.errors import FORBIDDEN, REQUIRED, Cause
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject, field
from protocol.units import ZERO, QuantityError, Resources, parse_quantity
from protocol.wire.container_amounts import counted

CONTAINER_LISTS: Final = ("containers", "initContainers")
"""The fields of a pod's spec that list its containers."""

_RESIZED: Final = ("resources", "resizePolicy")
_RESIZABLE: Final = frozenset({"cpu", "memory"})


def class_of(pod: JsonObject) -> str:
    """A pod's QoS class: ``Guaranteed``, ``Burstable`` or ``BestEffort``."""
    resources = [container.get("resources") or {} for container in field(pod, ("spec", "containers")) or []]
    if not any(amounts.get("requests") or amounts.get("limits") for amounts in resources):
        return "BestEffort"
    # Missing requests default to the limits.
    guaranteed = all(
        (amounts.get("limits") or {}).keys() >= _RESIZABLE
        and amounts.get("requests", amounts["limits"]) == amounts["limits"]
        for amounts in resources
    )
    return "Guaranteed" if guaranteed else "Burstable"


def with_resources_of(before: JsonObject, body: JsonObject) -> JsonObject:
    """The pod ``before`` with the resources of ``body``."""
    spec: JsonObject = before.get("spec") or {}
    lists = {name: _with_resources(spec.get(name) or [], field(body, ("spec", name)) or []) for name in CONTAINER_LISTS}
    return {
        **before,
        "spec": {**spec, **{name: containers for name, containers in lists.items() if containers or name in spec}},
    }


def _with_resources(old: list[JsonObject], new: list[JsonObject]) -> list[JsonObject]:
    # `resize_faults` rejects added and removed containers.
    if _names(old) != _names(new):
        return new
    return [
        {key: value for key, value in was.items() if key not in _RESIZED}
        | {key: now[key] for key in _RESIZED if key in now}
        for was, now in zip(old, new, strict=True)
    ]


def _names(containers: list[JsonObject]) -> list[str]:
    return [container.get("name", "") for container in containers]


def resize_faults(before: JsonObject, body: JsonObject) -> Iterator[Cause]:
    """Errors of a resize: forbidden changes, and requests above limits."""
    for name in CONTAINER_LISTS:
        if _names(field(before, ("spec", name)) or []) != _names(field(body, ("spec", name)) or []):
            yield Cause(f"spec.{name}", f"Forbidden: {name} may not be added or removed on resize", FORBIDDEN)
            return
    if _without_resources(before) != _without_resources(body):
        yield Cause("spec", "Forbidden: only cpu and memory resources are mutable", FORBIDDEN)
        return
    for path, old, new in _container_pairs(before, body):
        # Only sidecars keep running; other init containers have ended or will end soon.
        if path.startswith("spec.init") and old != new and old.get("restartPolicy") != "Always":
            yield Cause(path, "Forbidden: resources of non-sidecar init containers are immutable", FORBIDDEN)
        yield from limit_faults(f"{path}.resources", new)
        for part in ("requests", "limits"):
            yield from _part_faults(f"{path}.resources.{part}", _amounts(old, part), _amounts(new, part))
    # The kubelet created the pod's control groups for its QoS class.
    if class_of(before) != class_of(body):
        yield Cause("spec", "Invalid value: Pod QOS Class may not change as a result of resizing")


def excess(pod: JsonObject, node: JsonObject | None) -> str:
    """The reason why a resized pod does not fit on its node; empty if it fits or is not scheduled.

    ``node`` is None if it does not exist.
    """
    name = field(pod, ("spec", "nodeName"))
    if not name:
        return ""
    if node is None:
        return f'node "{name}" not found'
    try:
        requested, allocatable = _requested(pod), _size(field(node, ("status", "allocatable")) or {})
    except QuantityError as error:
        return str(error)
    shortages = [
        f"{what}, requested: {wanted.value}, allocatable: {available.value}"
        for what, wanted, available in (
            ("cpu", requested.cpu, allocatable.cpu),
            ("memory", requested.mem, allocatable.mem),
        )
        if wanted.value > available.value
    ]
    return f"node didn't have enough allocatable resources: {'; '.join(shortages)}" if shortages else ""


def _requested(pod: JsonObject) -> Resources:
    """The requests that kube-scheduler counts for a newly created pod."""
    containers, inits = (field(pod, ("spec", kind)) or [] for kind in CONTAINER_LISTS)
    running = (_size(_amounts(container, "requests")) for container in containers)
    starting = ((_size(_amounts(init, "requests")), init.get("restartPolicy") == "Always") for init in inits)
    requests, _ = counted(running, starting, ZERO, Resources.at_least)
    return requests + _size(field(pod, ("spec", "overhead")) or {})


def _size(amounts: JsonObject) -> Resources:
    return Resources.parse(amounts.get("cpu", 0), amounts.get("memory", 0))


def _part_faults(path: str, old: JsonObject, new: JsonObject) -> Iterator[Cause]:
    gone = sorted(old.keys() - new.keys())
    if gone:
        yield Cause(path, f"Forbidden: {', '.join(gone)} cannot be removed", FORBIDDEN)
    others = sorted(name for name in new.keys() - _RESIZABLE if old.get(name) != new[name])
    if others:
        yield Cause(path, f"Forbidden: only cpu and memory are resizable, not {', '.join(others)}", FORBIDDEN)


def limit_faults(path: str, container: JsonObject) -> Iterator[Cause]:
    """Errors of a container with resources at ``path``: invalid requests, or requests above limits."""
    requests, limits = _amounts(container, "requests"), _amounts(container, "limits")
    for name in sorted(requests):
        wanted, most = _quantity(requests[name]), _quantity(limits.get(name))
        why = ""
        if wanted is None:
            why = f"{name} must be a quantity"
        elif name not in limits and not _may_be_overcommitted(name):
            why = "Limit must be set for non overcommitable resources"
            yield Cause(f"{path}.limits", f"Required value: {why}", REQUIRED)
            continue
        elif most is not None and wanted != most and not _may_be_overcommitted(name):
            why = f"must be equal to {name} limit of {limits[name]}"
        elif most is not None and wanted > most:
            why = f"must be less than or equal to {name} limit of {limits[name]}"
        if why:
            yield Cause(f"{path}.requests", f'Invalid value: "{requests[name]}": {why}')


def _may_be_overcommitted(name: str) -> bool:
    """Return True if the resource may be overcommitted: Kubernetes' own except huge pages, but no devices."""
    return ("/" not in name or "kubernetes.io/" in name) and not name.startswith("hugepages-")


def _quantity(value: object) -> Fraction | None:
    return _known_quantity(value) if isinstance(value, str | int | float) else None


@lru_cache(maxsize=4096, typed=True)
def _known_quantity(value: str | float) -> Fraction | None:
    try:
        return parse_quantity(value)
    except QuantityError:
        return None


def _amounts(container: JsonObject, part: str) -> JsonObject:
    return field(container, ("resources", part)) or {}


def _container_pairs(before: JsonObject, body: JsonObject) -> Iterator[tuple[str, JsonObject, JsonObject]]:
    """Path, old and new state of each container that exists in both."""
    for name in CONTAINER_LISTS:
        old = {container.get("name"): container for container in field(before, ("spec", name)) or []}
        for index, new in enumerate(field(body, ("spec", name)) or []):
            if new.get("name") in old:
                yield f"spec.{name}[{index}]", old[new.get("name")], new


def _without_resources(pod: JsonObject) -> JsonObject:
    """The pod's spec without the resources of its containers."""
    spec: JsonObject = pod.get("spec") or {}
    lists = {
        name: [
            {key: value for key, value in container.items() if key != "resources"} for container in spec.get(name) or []
        ]
        for name in CONTAINER_LISTS
    }
    return {**spec, **lists}
