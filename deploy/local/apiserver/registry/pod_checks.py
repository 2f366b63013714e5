"""Validation of new pods and of pod updates. Pure.

- Of containers, only names, images, and requests against limits are validated, the most frequent errors. Kubernetes
  validates every field.
- Plain updates may change only images and the fields in ``_CHANGEABLE``; ``pods/resize`` changes resources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from deploy.local.apiserver.apimachinery.errors import DUPLICATE, FORBIDDEN, REQUIRED, Cause
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject
from deploy.local.apiserver.apimachinery.names import label_errors
from deploy.local.apiserver.registry import pod_resources
from deploy.local.apiserver.registry.pod_resources import CONTAINER_LISTS

_IMMUTABLE: Final = (
    "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing "
    "tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def check(before: JsonObject | None, body: JsonObject) -> Iterator[Cause]:
    """Errors in a pod, and in the changes of an update by any path, except changes of containers."""
    old, spec = _spec(before or {}), _spec(body)
    # Skipped if unchanged: most writes change only the status.
    if before is None or any(old.get(name) != spec.get(name) for name in CONTAINER_LISTS):
        yield from _container_faults(spec)
    if before is None:
        return
    changed = sorted(name for name in old.keys() | spec.keys() if old.get(name) != spec.get(name))
    for name in changed:
        yield from _CHANGEABLE.get(name, lambda *_: iter(()))(old.get(name), spec.get(name))
    immutable = [name for name in changed if name not in _CHANGEABLE and name not in CONTAINER_LISTS]
    yield from _immutable_faults(name for name in immutable if not _is_relaxed(name, old.get(name), spec.get(name)))


def check_path(subresource: str, before: JsonObject, body: JsonObject) -> Iterator[Cause]:
    """Errors in container changes that ``subresource`` (empty: the pod itself) does not allow."""
    if subresource == "resize":
        yield from pod_resources.resize_faults(before, body)
    elif not subresource:
        yield from _changed_containers(_spec(before), _spec(body))


def _spec(pod: JsonObject) -> JsonObject:
    return pod.get("spec") or {}


def _immutable_faults(names: Iterator[str]) -> Iterator[Cause]:
    listing = ", ".join(names)
    if listing:
        yield Cause("spec", f"{_IMMUTABLE}\nchanged: {listing}", FORBIDDEN)


def _container_faults(spec: JsonObject) -> Iterator[Cause]:
    if not spec.get("containers"):
        yield Cause("spec.containers", "Required value", REQUIRED)
    # Names are unique across init containers and containers.
    taken: set[str] = set()
    for kind in CONTAINER_LISTS:
        for index, container in enumerate(spec.get(kind) or ()):
            path, name = f"spec.{kind}[{index}]", container.get("name")
            yield from _one_container(path, container)
            if name in taken:
                yield Cause(f"{path}.name", f'Duplicate value: "{name}"', DUPLICATE)
            elif name:
                taken.add(name)


def _one_container(path: str, container: JsonObject) -> Iterator[Cause]:
    name = container.get("name")
    if not name:
        yield Cause(f"{path}.name", "Required value", REQUIRED)
    else:
        yield from (Cause(f"{path}.name", f'Invalid value: "{name}": {why}') for why in label_errors(name))
    if not container.get("image"):
        yield Cause(f"{path}.image", "Required value", REQUIRED)
    yield from pod_resources.limit_faults(f"{path}.resources", container)


def _changed_containers(old: JsonObject, new: JsonObject) -> Iterator[Cause]:
    for kind in CONTAINER_LISTS:
        if len(old.get(kind) or ()) != len(new.get(kind) or ()):
            yield Cause(f"spec.{kind}", "Forbidden: pod updates may not add or remove containers", FORBIDDEN)
            return
    yield from _immutable_faults(
        kind for kind in CONTAINER_LISTS if _without_images(old, kind) != _without_images(new, kind)
    )


def _without_images(spec: JsonObject, kind: str) -> list[JsonObject]:
    return [
        # Some clients write empty fields, others omit them.
        {key: value for key, value in container.items() if key != "image" and value not in (None, [], {})}
        for container in spec.get(kind) or ()
    ]


def _is_relaxed(name: str, old: Any, new: Any) -> bool:
    """Return True if a negative grace period changes to 1, its effective value."""
    return name == "terminationGracePeriodSeconds" and isinstance(old, int) and old < 0 and new == 1


def _deadline_faults(old: int | None, new: int | None) -> Iterator[Cause]:
    why = ""
    if new is None:
        why = "must not update from a positive integer to nil value"
    elif old is not None and old < new:
        why = "must be less than or equal to previous value"
    if why:
        displayed = "null" if new is None else new
        yield Cause("spec.activeDeadlineSeconds", f"Invalid value: {displayed}: {why}")


def _toleration_faults(old: list[JsonObject] | None, new: list[JsonObject] | None) -> Iterator[Cause]:
    # The only change allowed is of `tolerationSeconds`, so the comparison ignores it.
    remaining = [_without_duration(toleration) for toleration in new or ()]
    if any(_without_duration(toleration) not in remaining for toleration in old or ()):
        why = "existing toleration can not be modified except its tolerationSeconds"
        yield Cause("spec.tolerations", f"Forbidden: {why}", FORBIDDEN)


def _without_duration(toleration: JsonObject) -> JsonObject:
    return {key: value for key, value in toleration.items() if key != "tolerationSeconds" and value}


def _gate_faults(old: list[JsonObject] | None, new: list[JsonObject] | None) -> Iterator[Cause]:
    existing = {gate.get("name") for gate in old or ()}
    for index, gate in enumerate(new or ()):
        if gate.get("name") not in existing:
            why = f"only deletion is allowed, but found new scheduling gate '{gate.get('name', '')}'"
            yield Cause(f"spec.schedulingGates[{index}].name", f"Forbidden: {why}", FORBIDDEN)


_CHANGEABLE: Final[dict[str, Callable[[Any, Any], Iterator[Cause]]]] = {
    "activeDeadlineSeconds": _deadline_faults,
    "tolerations": _toleration_faults,
    "schedulingGates": _gate_faults,
}
"""Fields of a pod's spec that an update may change other than the containers, and the check of each change."""
