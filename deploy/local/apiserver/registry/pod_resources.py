"""The resources of a pod's containers: changed in place through ``pods/resize``, and through nothing else. Pure.

Rules that hold here:

- A resize changes CPU and memory of containers, adds none and removes none; the pod keeps its class of service. What it
  says of anything else is passed over.
- Init containers are resized only as sidecars (``restartPolicy: Always``).
- What the kubelet makes of it (``status.containerStatuses``, conditions) is the kubelet's to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from deploy.local.apiserver.apimachinery.errors import Cause
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject, field

_LISTS: Final = ("containers", "initContainers")
_TAKEN: Final = ("resources", "resizePolicy")
_RESIZABLE: Final = frozenset({"cpu", "memory"})
_FORBIDDEN: Final = "FieldValueForbidden"


def service_class(containers: list[JsonObject]) -> str:
    """A pod's class of service: ``Guaranteed``, ``Burstable`` or ``BestEffort``."""
    resources = [container.get("resources") or {} for container in containers]
    if not any(one.get("requests") or one.get("limits") for one in resources):
        return "BestEffort"
    guaranteed = all(
        (one.get("limits") or {}).keys() >= _RESIZABLE and one.get("requests", one["limits"]) == one["limits"]
        for one in resources
    )
    return "Guaranteed" if guaranteed else "Burstable"


def with_resources_of(before: JsonObject, body: JsonObject) -> JsonObject:
    """The pod ``before`` with all that a resize takes from ``body``; containers that are others are taken as they are,
    for ``faults`` to refuse.
    """
    spec: JsonObject = before.get("spec") or {}
    lists = {name: _with_resources(spec.get(name) or [], field(body, ("spec", name)) or []) for name in _LISTS}
    return {**before, "spec": {**spec, **{name: each for name, each in lists.items() if each or name in spec}}}


def _with_resources(old: list[JsonObject], new: list[JsonObject]) -> list[JsonObject]:
    if _names(old) != _names(new):
        return new
    return [
        {key: value for key, value in was.items() if key not in _TAKEN}
        | {key: now[key] for key in _TAKEN if key in now}
        for was, now in zip(old, new, strict=True)
    ]


def _names(containers: list[JsonObject]) -> list[str]:
    return [each.get("name", "") for each in containers]


def faults(subresource: str, before: JsonObject, body: JsonObject) -> Iterator[Cause]:
    """What an update of a pod through ``subresource`` (``""``: the pod's own path) may not change."""
    check = {"": _unchanged, "resize": _resized}.get(subresource)
    return iter(()) if check is None else check(before, body)


def _unchanged(before: JsonObject, body: JsonObject) -> Iterator[Cause]:
    """An ordinary update may not touch the resources of a container that stays."""
    for path, old, new in _pairs(before, body):
        if old.get("resources") != new.get("resources"):
            yield Cause(f"{path}.resources", "Forbidden: may be changed only through pods/resize", _FORBIDDEN)


def _resized(before: JsonObject, body: JsonObject) -> Iterator[Cause]:
    for name in _LISTS:
        if _names(field(before, ("spec", name)) or []) != _names(field(body, ("spec", name)) or []):
            yield Cause(f"spec.{name}", f"Forbidden: {name} may not be added or removed on resize", _FORBIDDEN)
            return
    if _bare(before) != _bare(body):
        yield Cause("spec", "Forbidden: only cpu and memory resources are mutable", _FORBIDDEN)
        return
    for path, old, new in _pairs(before, body):
        if path.startswith("spec.init") and old != new and old.get("restartPolicy") != "Always":
            yield Cause(path, "Forbidden: resources of non-sidecar init containers are immutable", _FORBIDDEN)
        for part in ("requests", "limits"):
            yield from _part_faults(f"{path}.resources.{part}", _amounts(old, part), _amounts(new, part))
    if _class_of(before) != _class_of(body):
        yield Cause("spec", "Invalid value: Pod QOS Class may not change as a result of resizing")


def _part_faults(path: str, old: JsonObject, new: JsonObject) -> Iterator[Cause]:
    gone = sorted(old.keys() - new.keys())
    if gone:
        yield Cause(path, f"Forbidden: {', '.join(gone)} cannot be removed", _FORBIDDEN)
    others = sorted(name for name in new.keys() - _RESIZABLE if old.get(name) != new[name])
    if others:
        yield Cause(path, f"Forbidden: only cpu and memory are resizable, not {', '.join(others)}", _FORBIDDEN)


def _amounts(container: JsonObject, part: str) -> JsonObject:
    return field(container, ("resources", part)) or {}


def _class_of(pod: JsonObject) -> str:
    return service_class(field(pod, ("spec", "containers")) or [])


def _pairs(before: JsonObject, body: JsonObject) -> Iterator[tuple[str, JsonObject, JsonObject]]:
    """Each container that is there before and after, with its path."""
    for name in _LISTS:
        old = {each.get("name"): each for each in field(before, ("spec", name)) or []}
        for index, new in enumerate(field(body, ("spec", name)) or []):
            if new.get("name") in old:
                yield f"spec.{name}[{index}]", old[new.get("name")], new


def _bare(pod: JsonObject) -> JsonObject:
    """The pod's spec without the resources of its containers."""
    spec: JsonObject = pod.get("spec") or {}
    lists = {
        name: [{key: value for key, value in each.items() if key != "resources"} for each in spec.get(name) or []]
        for name in _LISTS
    }
    return {**spec, **lists}
