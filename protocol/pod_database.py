"""Postgres pods that are resized in place, parsed as a VirtualMachine for the ledger and the agent (B.7).

- A pod opts in with the label ``enabled`` and the annotation ``bounds``; ``bounds.min`` is optional. Its size is the
  requests of one container. The database is named ``pod/NAME``, which cannot collide with a VirtualMachine.
- The minimum is the requests of the template, or ``bounds.min``.
- The memory limit follows the request, but only a shrink lowers it. A CPU limit keeps its distance from the request.
- For a pod that cannot be resized without a restart, ``InvalidObjectError`` says what to change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from protocol import names
from protocol.field_errors import field_message
from protocol.kubernetes.conditions import condition_of
from protocol.kubernetes.objects import (
    Json,
    JsonObject,
    annotations_of,
    child,
    integer,
    is_terminating,
    items,
    labels_of,
    name_of,
    shortened,
    text,
    uid_of,
    version_of,
)
from protocol.messages import ObjectName
from protocol.units import ZERO, Bytes, MilliCpu, Resources
from protocol.virtual_machine import Bounds, InvalidObjectError, VirtualMachine
from protocol.wire.container_amounts import amounts, limits
from protocol.wire.wire_quantities import WireQuantity, cpu_from_wire, mem_from_wire

PREFIX: Final = "pod/"
"""Prefix of the database's name; a VirtualMachine's name contains no slash."""

DEFAULT_CONTAINER: Final = "postgres"

MEMORY_STEP: Final = Bytes(64 * 1024**2)
"""Memory is resized in multiples of this, independent of the node's compute unit."""

MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation on the mirror pod of a static pod."""

RESIZE: Final = "resize"
DEFERRED: Final = "Deferred"
INFEASIBLE: Final = "Infeasible"
ERROR: Final = "Error"


class ResizeObjection(msgspec.Struct, frozen=True):
    """The kubelet's reason not to apply a pod's requests: ``verdict`` is Deferred, Infeasible or Error."""

    verdict: str
    message: str

    def __str__(self) -> str:
        return f"{self.verdict}: {self.message}"


class PodDatabase(VirtualMachine, frozen=True):
    """A postgres pod. ``use`` is the requests of its container, ``actual`` the resources that the kubelet reports.

    ``container_id`` is empty until the container runs. ``cpu_above`` is the CPU limit minus the request, ``mem_limit``
    the memory limit to keep unless the request shrinks; None without such a limit. ``objection``: why the kubelet has
    not applied the current requests, None if it has. ``is_seen``: it has processed them.
    """

    container: str = ""
    container_id: str = ""
    cpu_above: MilliCpu | None = None
    mem_limit: Bytes | None = None
    objection: ResizeObjection | None = None
    is_seen: bool = True


class _Amounts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cpu: WireQuantity
    mem: WireQuantity

    def read(self, path: str) -> Resources:
        return Resources(cpu_from_wire(f"{path}.cpu", self.cpu), mem_from_wire(f"{path}.mem", self.mem))


# The admission policy for agents rejects growth if the annotation contains other fields.
class _AnnotatedBounds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    max: _Amounts
    min: _Amounts | None = None


_BOUNDS: Final = msgspec.json.Decoder(_AnnotatedBounds)
_AMOUNTS: Final = msgspec.json.Decoder(_Amounts)


def is_pod_database(pod: JsonObject) -> bool:
    """Return True if the pod has opted in and belongs to neither a VirtualMachine nor a Job.

    CloudNativePG labels the pods of its bootstrap Jobs like its instances.

    >>> is_pod_database({"metadata": {"labels": {"autoscaling.neon.tech/enabled": "true"}}})
    True
    """
    labels = labels_of(pod)
    if labels.get(names.LABEL_ENABLED) != "true" or names.LABEL_VM_NAME in labels:
        return False
    owners = items(pod, "metadata", "ownerReferences")
    return not any(text(owner, "apiVersion").partition("/")[0] in (names.VM_GROUP, "batch") for owner in owners)


def database_of(pod: ObjectName) -> ObjectName:
    """The database's name for a pod's name.

    >>> str(database_of(ObjectName("default", "pg-1")))
    'default/pod/pg-1'
    """
    return ObjectName(pod.namespace, PREFIX + pod.name)


def pod_of(database: ObjectName) -> ObjectName | None:
    """The pod's name for a database's name; None for a VirtualMachine.

    >>> str(pod_of(ObjectName("default", "pod/pg-1"))), pod_of(ObjectName("default", "db"))
    ('default/pg-1', None)
    """
    if not database.name.startswith(PREFIX):
        return None
    return ObjectName(database.namespace, database.name.removeprefix(PREFIX))


def parse_pod_database(pod: JsonObject) -> PodDatabase:
    """Parse a pod from the API's JSON. Raises ``InvalidObjectError``.

    >>> container = {"name": "postgres", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    >>> bounds = {"autoscaling.neon.tech/bounds": '{"max": {"cpu": 4, "mem": "8Gi"}}'}
    >>> metadata = {"namespace": "default", "name": "pg-1", "annotations": bounds}
    >>> database = parse_pod_database({"metadata": metadata, "spec": {"containers": [container]}})
    >>> str(database.name), str(database.bounds.min), str(database.bounds.max)
    ('default/pod/pg-1', '1 cpu, 1Gi', '4 cpu, 8Gi')
    """
    try:
        return _pod_database(pod)
    except (ValueError, RecursionError) as error:
        raise InvalidObjectError(shortened(field_message(error))) from None


def _pod_database(pod: JsonObject) -> PodDatabase:
    container = _container(pod)
    path = f"spec.containers[{text(container, 'name')}]"
    use, (cpu_limit, mem_limit) = _resources(container)
    status = _status_of(pod, text(container, "name"))
    _require_resizable(pod, container, path, use)
    bounds = _bounds(pod, use, text(container, "name"))
    return PodDatabase(
        name=database_of(name_of(pod)),
        uid=uid_of(pod),
        resource_version=version_of(pod),
        labels=labels_of(pod),
        annotations=annotations_of(pod),
        bounds=bounds,
        use=use,
        actual=_actual(status),
        slot_size=MEMORY_STEP,
        pod_name=text(pod, "metadata", "name") or None,
        node=text(pod, "spec", "nodeName") or None,
        pod_ip=text(pod, "status", "podIP") or None,
        phase=_phase(pod, status),
        enabled=labels_of(pod).get(names.LABEL_ENABLED) == "true",
        permit=None,
        container=text(container, "name"),
        container_id=text(status, "containerID").rpartition("//")[2],
        cpu_above=cpu_limit and cpu_limit.minus_or_zero(use.cpu),
        mem_limit=_kept_limit(mem_limit, use.mem, child(status, "resources"), bounds.max.mem),
        objection=objection_of(pod),
        is_seen=not _is_outdated(child(pod, "status"), pod),
    )


def resize_body(database: PodDatabase, size: Resources) -> Json:
    """The strategic merge patch for ``pods/resize`` that sets the container to ``size``.

    >>> container = {"name": "postgres", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    >>> bounds = {"autoscaling.neon.tech/bounds": '{"max": {"cpu": 4, "mem": "8Gi"}}'}
    >>> database = parse_pod_database({"metadata": {"annotations": bounds}, "spec": {"containers": [container]}})
    >>> resize_body(database, Resources.parse(2, "2Gi"))["spec"]["containers"][0]["resources"]
    {'requests': {'cpu': '2', 'memory': '2Gi'}, 'limits': {}}
    """
    requests: Json = {"cpu": size.cpu.quantity(), "memory": size.mem.quantity()}
    has, at_least = database.actual or database.use, database.mem_limit
    # Only a shrink was tried. Otherwise keep the limit: the page cache may need it, and a failed resize blocks CPU.
    limit = size.mem if size.mem < has.mem else at_least and max(size.mem, at_least)
    limited: Json = {} if limit is None else {"memory": limit.quantity()}
    if database.cpu_above is not None:
        limited["cpu"] = (size.cpu + database.cpu_above).quantity()
    return {
        "spec": {"containers": [{"name": database.container, "resources": {"requests": requests, "limits": limited}}]}
    }


def objection_of(pod: JsonObject) -> ResizeObjection | None:
    """The kubelet's reason not to apply the pod's current requests; None if it has none, or has not judged them yet.

    >>> verdict = {"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": "node is full"}
    >>> str(objection_of({"status": {"conditions": [verdict]}}))
    'Deferred: node is full'
    """
    for kind, reasons in (("PodResizePending", (DEFERRED, INFEASIBLE)), ("PodResizeInProgress", (ERROR,))):
        condition = condition_of(pod, kind)
        verdict = text(condition, "reason")
        # PodResizeInProgress without a reason is a resize that works.
        if text(condition, "status") != "True" or verdict not in reasons:
            continue
        # A verdict on an older generation concerns other requests. Older kubelets report no generation.
        if not _is_outdated(condition, pod):
            return ResizeObjection(verdict, text(condition, "message"))
    return None


def _is_outdated(report: JsonObject, pod: JsonObject) -> bool:
    return 0 < integer(report, "observedGeneration") < integer(pod, "metadata", "generation")


def _container(pod: JsonObject) -> Json:
    containers = {text(container, "name"): container for container in items(pod, "spec", "containers")}
    chosen = annotations_of(pod).get(names.ANNOTATION_CONTAINER)
    if chosen is None:
        is_usual = DEFAULT_CONTAINER in containers or len(containers) > 1
        chosen = DEFAULT_CONTAINER if is_usual else next(iter(containers), "")
    if chosen not in containers:
        raise ValueError(
            f"spec.containers: expected one named {chosen}, got {', '.join(containers) or 'none'}: set the"
            f" annotation {names.ANNOTATION_CONTAINER} to the name of postgres' container"
        )
    return containers[chosen]


def _require_resizable(pod: JsonObject, container: JsonObject, path: str, use: Resources) -> None:
    if MIRROR in annotations_of(pod):
        raise ValueError(f"metadata.annotations[{MIRROR}]: a static pod cannot be resized")
    restarts = [
        text(policy, "resourceName")
        for policy in items(container, "resizePolicy")
        if text(policy, "restartPolicy") == "RestartContainer"
    ]
    if restarts:
        raise ValueError(
            f"{path}.resizePolicy: expected NotRequired for {restarts[0]}: a resize would restart postgres"
        )
    if child(pod, "spec", "resources"):
        raise ValueError("spec.resources: pod-level resources are not supported: set the requests of the container")
    if not (use.cpu and use.mem):
        raise ValueError(f"{path}.resources.requests: expected both cpu and memory")
    _, (cpu, mem) = _resources(container)
    others = (*items(pod, "spec", "containers"), *items(pod, "spec", "initContainers"))
    is_last = all(_is_guaranteed(other) for other in others if other != container)
    # Once all limits equal the requests the pod would be Guaranteed, and the QoS class is immutable.
    if text(pod, "status", "qosClass") == "Burstable" and is_last and cpu == use.cpu and mem != use.mem:
        raise ValueError(
            f"{path}.resources.limits.memory: expected the request, as for cpu: otherwise a resize would change the"
            " pod's QoS class"
        )


def _is_guaranteed(container: JsonObject) -> bool:
    requests, limited = _resources(container)
    return limited == (requests.cpu, requests.mem)


def _resources(container: JsonObject) -> tuple[Resources, tuple[MilliCpu | None, Bytes | None]]:
    """The requests, and the limits of CPU and memory."""
    path, fields = f"spec.containers[{text(container, 'name')}].resources", child(container, "resources")
    return amounts(f"{path}.requests", child(fields, "requests")), limits(f"{path}.limits", child(fields, "limits"))


def _kept_limit(limit: Bytes | None, use: Bytes, in_force: JsonObject, most: Bytes) -> Bytes | None:
    """``PodDatabase.mem_limit``, from the spec's ``limit`` and request, and the resources ``in_force``."""
    if limit is None or amounts("status", child(in_force, "requests")).mem in (ZERO.mem, use):
        return limit
    # A resize is being reverted. A limit cannot be removed, and an agent may raise it only up to the maximum.
    _, limit_in_force = limits("status", child(in_force, "limits"))
    return min(most if limit_in_force is None else limit_in_force, max(most, limit))


def _bounds(pod: JsonObject, use: Resources, container: str) -> Bounds:
    annotated = annotations_of(pod).get(names.ANNOTATION_BOUNDS)
    path = f"metadata.annotations[{names.ANNOTATION_BOUNDS}]"
    if annotated is None:
        raise ValueError(f'{path}: expected the maximum size, such as {{"max": {{"cpu": 4, "mem": "8Gi"}}}}')
    try:
        parsed = _BOUNDS.decode(annotated)
        high = parsed.max.read("max")
        low = _first_requests(pod, use, container) if parsed.min is None else parsed.min.read("min")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {field_message(error)}") from None
    if not (low.cpu and low.mem and low.within(high)):
        raise ValueError(
            f"{path}: expected 0 < min <= max, got {low} to {high}; min defaults to the requests of the template"
        )
    return Bounds(low, high)


def _first_requests(pod: JsonObject, use: Resources, container: str) -> Resources:
    """The requests of the pod's template."""
    annotated = annotations_of(pod).get(names.ANNOTATION_FIRST_REQUESTS)
    if annotated is not None:
        return _AMOUNTS.decode(annotated).read(names.ANNOTATION_FIRST_REQUESTS)
    # The pod has not been resized since its creation.
    if not any(text(entry, "subresource") == RESIZE for entry in items(pod, "metadata", "managedFields")):
        return use
    # CloudNativePG annotates the spec that it created the pod from. Otherwise the current requests are the minimum.
    return _operator_requests(pod, container) or use


def _operator_requests(pod: JsonObject, container: str) -> Resources | None:
    annotated = annotations_of(pod).get(names.ANNOTATION_CNPG_POD_SPEC)
    try:
        spec = msgspec.json.decode(annotated or "{}", type=dict[str, object])
    except (msgspec.DecodeError, RecursionError):
        return None
    template = next((part for part in items(spec, "containers") if text(part, "name") == container), {})
    requests = amounts("cnpg.io/podSpec", child(template, "resources", "requests"))
    return requests if requests.cpu and requests.mem else None


def _status_of(pod: JsonObject, container: str) -> Json:
    return next((has for has in items(pod, "status", "containerStatuses") if text(has, "name") == container), {})


def _actual(status: Mapping[str, object]) -> Resources | None:
    # Second, because after a failed resize it already has the new sizes: for kubelets without status.resources.
    for reported in (child(status, "resources", "requests"), child(status, "allocatedResources")):
        actual = amounts("status", reported)
        if actual.cpu and actual.mem:
            return actual
    return None


def _phase(pod: JsonObject, status: JsonObject) -> str:
    phase = text(pod, "status", "phase")
    # The kubelet no longer resizes a terminating pod, whose postgres may take minutes to shut down.
    if is_terminating(pod) and phase == "Running":
        return "Terminating"
    # A pod is Running once any container runs; postgres may still be starting or restarting.
    return "Pending" if phase == "Running" and "running" not in child(status, "state") else phase
