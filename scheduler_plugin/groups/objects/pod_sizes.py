"""The sizes of one running pod: what to request through ``pods/resize``, and when to withdraw that."""

from __future__ import annotations

from protocol.kubernetes.objects import Json, JsonObject, child, is_over, items, name_of, text, version_of
from protocol.kubernetes.resources import PODS
from scheduler_plugin.groups.core.workload import SizedContainer, by_name
from scheduler_plugin.groups.objects.amounts import read_amounts, read_container, write_container
from scheduler_plugin.groups.objects.writes import Write


def resize_pod(pod: JsonObject, sizes: tuple[SizedContainer, ...]) -> Write | None:
    """The patch that gives the pod ``sizes``; None if it was requested already, or the pod has ended.

    If the pod's resize is pending, the patch requests what the pod has been allocated instead.
    """
    # The API server refuses to resize a pod that has ended.
    if is_over(pod):
        return None
    # Requesting what the pod has withdraws the resize.
    wanted = _allocated(pod, sizes) if is_pending(pod) else sizes
    present = {container.name: container for container in _containers(pod)}
    changes = [
        container
        for container in wanted
        if container.name in present and _over(container, present[container.name]) != present[container.name]
    ]
    if not changes:
        return None
    body: Json = {"spec": {"containers": [write_container(container) for container in changes]}}
    # A strategic merge finds containers by their names.
    return Write("pod", PODS, name_of(pod), body, "resize", version_of(pod), merges_lists=True)


def is_pending(pod: JsonObject) -> bool:
    """Return True if the kubelet has said that it cannot resize the pod now, or at all."""
    return bool(_pending(pod))


def why_pending(pod: JsonObject) -> str:
    """The kubelet's reason for a pending resize; empty if none is pending.

    >>> waits = {"type": "PodResizePending", "status": "True", "reason": "Infeasible", "message": "too large"}
    >>> why_pending({"status": {"conditions": [waits]}})
    'Infeasible: too large'
    """
    return next((f"{text(condition, 'reason')}: {text(condition, 'message')}" for condition in _pending(pod)), "")


def _pending(pod: JsonObject) -> list[Json]:
    return [
        condition
        for condition in items(pod, "status", "conditions")
        if (text(condition, "type"), text(condition, "status")) == ("PodResizePending", "True")
    ]


def _containers(pod: JsonObject) -> tuple[SizedContainer, ...]:
    return tuple(read_container(container, "spec.containers") for container in items(pod, "spec", "containers"))


def _allocated(pod: JsonObject, sizes: tuple[SizedContainer, ...]) -> tuple[SizedContainer, ...]:
    """Resources that the kubelet has allocated, and the limits that it has set."""
    statuses = {text(status, "name"): status for status in items(pod, "status", "containerStatuses")}
    return tuple(
        SizedContainer(
            name,
            read_amounts(child(status, "allocatedResources"), "allocatedResources"),
            read_amounts(child(status, "resources", "limits"), "resources.limits"),
        )
        for name, status in statuses.items()
        if by_name(sizes, name) is not None
    )


def _over(container: SizedContainer, now: SizedContainer) -> SizedContainer:
    return SizedContainer(now.name, container.requests.over(now.requests), container.limits.over(now.limits))
