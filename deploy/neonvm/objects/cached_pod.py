"""The fields of a pod that the controller caches (pure).

It watches all pods of the cluster, and anyone may create pods of 1.5 MiB, which take 25 MiB when decoded.
"""

from __future__ import annotations

from typing import Final

from deploy.neonvm.objects.boot_record import has_our_cpu_limit
from deploy.neonvm.objects.pods import is_runner, updated_annotations
from deploy.neonvm.objects.target_pod import DISK
from protocol.kubernetes.managed_fields import RESIZE, RUNNER_KEY
from protocol.kubernetes.objects import Json, JsonObject, annotations_of, child, items, labels_of, text
from protocol.kubernetes.resources import MIGRATIONS
from protocol.names import ANNOTATION_USAGE, LABEL_VM_NAME, RUNNER_AUTHORITIES, SCHEDULER_NAME, VM_KIND

MOST: Final = 1000
"""Maximum labels, owners, containers and conditions to cache. The runner's own are among them, however many others a
pod has.
"""

_CPU: Final[Json] = {"f:resources": {"f:limits": {"f:cpu": {}}}}
_OUR_CPU_LIMIT: Final[Json] = {
    "manager": SCHEDULER_NAME,
    "subresource": RESIZE,
    "fieldsV1": {"f:spec": {"f:containers": {RUNNER_KEY: _CPU}}},
}
_LIMITS: Final = ("cpu", "memory")
_OWNERS: Final = frozenset({VM_KIND, MIGRATIONS.kind})
_IDENTITY: Final = ("namespace", "name", "uid", "resourceVersion")
_METADATA: Final = (*_IDENTITY, "creationTimestamp", "deletionTimestamp")
_STATUS: Final = ("phase", "reason", "message", "podIP")
_ANNOTATIONS: Final = frozenset({*updated_annotations({}), ANNOTATION_USAGE})


def cached_pod(pod: JsonObject) -> Json:
    """``pod`` with the fields that are read; of a pod that is no runner's, only its identity."""
    labels = labels_of(pod)
    owners = [owner for owner in items(pod, "metadata", "ownerReferences") if text(owner, "kind") in _OWNERS]
    if LABEL_VM_NAME not in labels and not owners:
        return {"metadata": _part(pod, "metadata", _IDENTITY)}
    # Without its owner and label a pod would not be its VM's, and the VM would get a second one.
    owners.sort(key=lambda owner: owner.get("controller") is not True)
    names = sorted(labels, key=lambda name: (name != LABEL_VM_NAME, "neon.tech/" not in name))
    bounded = {"labels": {name: labels[name] for name in names[:MOST]}, "ownerReferences": owners[:MOST]}
    annotations = {name: value for name, value in annotations_of(pod).items() if name in _ANNOTATIONS}
    return {
        "metadata": {
            **_part(pod, "metadata", _METADATA),
            **bounded,
            "annotations": annotations,
            # Clients write managed fields of any size, also in the scheduler's name.
            "managedFields": [_OUR_CPU_LIMIT] if has_our_cpu_limit(pod) else [],
        },
        "spec": {
            **_part(pod, "spec", ("nodeName",)),
            "containers": [_runner(container) for container in items(pod, "spec", "containers")[:MOST]],
            "initContainers": _init(pod, "spec", "initContainers", "image"),
        },
        "status": {
            **_part(pod, "status", _STATUS),
            "conditions": items(pod, "status", "conditions")[:MOST],
            "containerStatuses": [
                {key: status[key] for key in ("name", "state") if key in status}
                for status in items(pod, "status", "containerStatuses")[:MOST]
            ],
            "initContainerStatuses": _init(pod, "status", "initContainerStatuses", "imageID"),
        },
    }


def _part(pod: JsonObject, part: str, names: tuple[str, ...]) -> Json:
    return {name: value for name, value in child(pod, part).items() if name in names}


def _runner(container: Json) -> Json:
    """The container; only its name if it is not the runner's."""
    if not is_runner(container):
        return {"name": text(container, "name")}
    runner: Json = {name: container[name] for name in ("name", "command", "args") if name in container}
    limits = child(container, "resources", "limits")
    runner["resources"] = {"limits": {name: limits[name] for name in _LIMITS if name in limits}}
    authorities = [{"name": RUNNER_AUTHORITIES}]
    has_authorities = any(text(variable, "name") == RUNNER_AUTHORITIES for variable in items(container, "env"))
    return {**runner, "env": authorities} if has_authorities else runner


def _init(pod: JsonObject, part: str, name: str, field: str) -> list[Json]:
    """Name and ``field`` of the init container that copies the disk."""
    copiers: list[Json] = [
        {"name": DISK, field: text(container, field)}
        for container in items(pod, part, name)
        if text(container, "name") == DISK
    ]
    return copiers[:1]
