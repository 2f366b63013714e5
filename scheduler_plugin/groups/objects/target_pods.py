"""Pods as groups see them: what is kept of one, which target it belongs to, and what ran out of memory in it (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from protocol.kubernetes.objects import Json, JsonObject, child, is_leaving, is_over, items, text, texts
from protocol.kubernetes.timestamps import parse_timestamp
from scheduler_plugin.groups.core.workload import NOTHING, ResourceList, SizedContainer, Workload, by_name
from scheduler_plugin.groups.objects.amounts import read_container

OUT_OF_MEMORY: Final = "OOMKilled"
"""The reason with which a kubelet reports a container that the kernel killed for lack of memory."""

_STATUS: Final = ("name", "allocatedResources", "resources", "state", "lastState")
_METADATA: Final = ("name", "namespace", "uid", "resourceVersion", "labels", "deletionTimestamp")


def kept_pod(pod: JsonObject) -> Json:
    """The fields that sizes and kills are read from: a tenth of a pod, since there may be tens of thousands."""
    metadata, status = child(pod, "metadata"), child(pod, "status")
    containers = [_only(container, ("name", "resources")) for container in items(pod, "spec", "containers")]
    sidecars = [
        _only(container, ("name", "resources", "restartPolicy"))
        for container in items(pod, "spec", "initContainers")
        # Only sidecars run as long as the pod; other init containers have ended.
        if container.get("restartPolicy") == "Always"
    ]
    conditions = [condition for condition in items(status, "conditions") if _is_kept(condition)]
    statuses = [_only(container_status, _STATUS) for container_status in items(status, "containerStatuses")]
    trimmed: Json = {"phase": text(status, "phase"), "conditions": conditions, "containerStatuses": statuses}
    spec: Json = {"containers": containers, **({"initContainers": sidecars} if sidecars else {})}
    return {"metadata": _only(metadata, _METADATA), "spec": spec, "status": trimmed}


def _is_kept(condition: JsonObject) -> bool:
    kind = text(condition, "type")
    # `Ready` only while it holds: nothing needs its other states.
    return kind.startswith("PodResize") or (kind == "Ready" and text(condition, "status") == "True")


def _only(found: JsonObject, names: tuple[str, ...]) -> Json:
    return {name: found[name] for name in names if name in found}


def selects(selector: JsonObject, labels: Mapping[str, str]) -> bool:
    """Return True if a label selector (``matchLabels``, ``matchExpressions``) selects; one that is empty selects
    nothing here.

    >>> selects({"matchLabels": {"app": "web"}}, {"app": "web", "tier": "1"}), selects({}, {"app": "web"})
    (True, False)
    """
    equal, expressions = texts(selector, "matchLabels"), items(selector, "matchExpressions")
    if not equal and not expressions:
        return False
    return equal.items() <= labels.items() and all(_holds(expression, labels) for expression in expressions)


def _holds(requirement: JsonObject, labels: Mapping[str, str]) -> bool:
    key, operator, values = text(requirement, "key"), text(requirement, "operator"), requirement.get("values")
    if operator in {"Exists", "DoesNotExist"}:
        return (key in labels) is (operator == "Exists")
    is_among = labels.get(key) in (values if isinstance(values, list) else ())
    # `NotIn` also holds for a pod without the label, as in the API.
    return is_among if operator == "In" else operator == "NotIn" and not is_among


def running_containers(pods: Iterable[JsonObject]) -> tuple[SizedContainer, ...]:
    """The containers of pods that run, by name, with the largest of each amount that any of them has."""
    containers: dict[str, SizedContainer] = {}
    for pod in pods:
        if is_leaving(pod) or is_over(pod):
            continue
        for container in _containers(pod):
            largest = containers.get(container.name, SizedContainer(container.name))
            containers[container.name] = SizedContainer(
                container.name,
                _largest(largest.requests, container.requests),
                _largest(largest.limits, container.limits),
            )
    return tuple(containers[name] for name in sorted(containers))


def _containers(pod: JsonObject) -> list[SizedContainer]:
    """A pod's containers; none of one that cannot be read."""
    try:
        return [read_container(container, "spec.containers") for container in items(pod, "spec", "containers")]
    except ValueError:
        return []


def _largest(one: ResourceList, other: ResourceList) -> ResourceList:
    largest = one
    for resource, amount in other:
        current = largest[resource]
        largest = largest.with_value(resource, amount.value if current is None else max(current.value, amount.value))
    return largest


def with_defaults(template: Workload, running: Iterable[SizedContainer]) -> Workload:
    """A pod template with the sizes that it leaves out and an admission plugin (LimitRange) gives its pods."""
    pods = tuple(running)
    containers = (
        SizedContainer(
            container.name,
            container.sizes.over(NOTHING if (pod := by_name(pods, container.name)) is None else pod.requests),
            container.limits.over(NOTHING if pod is None else pod.limits),
        )
        for container in template.containers
    )
    return replace(template, containers=tuple(containers))


@dataclass(frozen=True, slots=True)
class Killed:
    """A container of a pod that was killed for lack of memory; ``at`` in seconds since 1970."""

    container: str
    at: float
    pod: str = ""


def killed_in(pod: JsonObject) -> Iterator[Killed]:
    """Every kill in the pod's status: a container that runs again, waits to, or has ended."""
    for status in items(pod, "status", "containerStatuses"):
        # A container that has restarted has its kill in `lastState`.
        for state in ("state", "lastState"):
            ended = child(status, state, "terminated")
            at = parse_timestamp(ended.get("finishedAt"))
            if text(ended, "reason") == OUT_OF_MEMORY and at is not None:
                yield Killed(text(status, "name"), at, text(pod, "metadata", "name"))
