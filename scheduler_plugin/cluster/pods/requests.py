"""A pod's requests as kube-scheduler counts them, and the part that can be resized in place.

Rules:

- As in kube-scheduler: the maximum of all containers together (including sidecars, which are init containers that
  restart always) and of each init container with the sidecars started before it; plus the overhead. Pod-level requests
  replace the sum of the containers. Missing requests are zero, and so are those that overflow its integers.
- Quantities are parsed as in Kubernetes; errors raise ``ValueError`` with the path of the field.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from operator import or_
from typing import Final, TypeVar

from protocol.kubernetes.managed_fields import resized_by
from protocol.names import RUNNER_CONTAINER, SCHEDULER_NAME
from protocol.units import ZERO, Bytes, HugeQuantityError, MilliCpu, QuantityError, Resources
from protocol.wire.container_amounts import counted
from protocol.wire.wire_quantities import LARGEST_AMOUNT, WireQuantity, mem_from_wire
from scheduler_plugin.cluster.pods import shapes
from scheduler_plugin.cluster.pods.shapes import Amounts, Container, PodSpec
from scheduler_plugin.ledger.facts import RunnerRequests

A = TypeVar("A", MilliCpu, Bytes)

RESIZE_PENDING: Final = "PodResizePending"
INFEASIBLE: Final = "Infeasible"
BURSTABLE: Final = "Burstable"
DEFERRED: Final = "Deferred"
RESTART: Final = "RestartContainer"


def runner_requests(meta: shapes.PodMetadata, spec: shapes.PodSpec, status: shapes.PodStatus) -> RunnerRequests | None:
    """Requests of the guest's container; None if they cannot be resized in place (B.10)."""
    runner = next((container for container in spec.containers if container.name == RUNNER_CONTAINER), None)
    # A pod's QoS class is immutable: one without requests cannot get any, and a Guaranteed one would need new limits
    # too.
    if runner is None or status.qosClass != BURSTABLE or spec.resources is not None:
        return None
    resources = runner.resources or shapes.ContainerResources()
    limits = resources.limits or {}
    # Limits belong to the operator, except our own CPU limit.
    ours = resized_by(SCHEDULER_NAME, meta.managedFields or (), "limits") & {"cpu"}
    if (limits.keys() & {"cpu", "memory"}) - ours:
        return None
    # A restart of the container ends the guest.
    if any(policy.restartPolicy == RESTART for policy in runner.resizePolicy or ()):
        return None
    status_of_runner = next(
        (container for container in status.containerStatuses or () if container.name == runner.name),
        shapes.ResourceStatus(),
    )
    cpu = limits.get("cpu")
    allocated, requests = status_of_runner.allocatedResources, resources.requests or {}
    written = resized_by(SCHEDULER_NAME, meta.managedFields or ())
    return RunnerRequests(
        requested=amounts("requests of the guest's container", requests),
        allocated=None if allocated is None else amounts("status: allocatedResources", allocated),
        problem=_resize_problem(meta, status),
        version=meta.resourceVersion,
        by_us=amounts("requests by us", {name: amount for name, amount in requests.items() if name in written}),
        # 0: not reported by the kubelet, so its status counts as current.
        is_seen=not 0 < status.observedGeneration < meta.generation,
        cpu_limit=None if cpu is None else counted_amount(MilliCpu, "limits of the guest's container", cpu),
    )


def _resize_problem(meta: shapes.Metadata, status: shapes.PodStatus) -> str:
    verdicts = (
        f"{condition.reason}: {condition.message or ''}"
        for condition in _verdicts(meta, status)
        if condition.status == "True"
    )
    return next(verdicts, "")


def deferred(pod: shapes.Pod, status: shapes.PodStatus, requests: Resources) -> Resources:
    """The part of ``requests`` that the kubelet grants only after others leave the node."""
    if not _resize_is(DEFERRED, pod.metadata, status):
        return ZERO
    # is_feasible=False counts only what the kubelet has granted.
    has, _ = _counted(pod.spec, status, is_feasible=False)
    return requests.minus_or_zero(has)


def _resize_is(reason: str, meta: shapes.Metadata, status: shapes.PodStatus) -> bool:
    return any(condition.reason == reason for condition in _verdicts(meta, status))


def _verdicts(meta: shapes.Metadata, status: shapes.PodStatus) -> Iterator[shapes.Condition]:
    """The kubelet's verdicts on the present requests."""
    for condition in status.conditions or ():
        # Older kubelets do not report the generation.
        if condition.type == RESIZE_PENDING and (
            not condition.observedGeneration or condition.observedGeneration >= meta.generation
        ):
            yield condition


def counted_requests(
    meta: shapes.Metadata, spec: shapes.PodSpec, status: shapes.PodStatus, guest: str = RUNNER_CONTAINER
) -> tuple[Resources, Resources]:
    """The requests that kube-scheduler counts for the pod, and the part outside the ``guest`` container."""
    # As in kube-scheduler, an infeasible resize does not count.
    return _counted(spec, status, guest, is_feasible=not _resize_is(INFEASIBLE, meta, status))


def _counted(
    spec: shapes.PodSpec, status: shapes.PodStatus, guest: str = RUNNER_CONTAINER, *, is_feasible: bool
) -> tuple[Resources, Resources]:
    """Like ``counted_requests``, with or without requests beyond what each container has."""
    statuses = {container.name: container for container in status.containerStatuses or ()}
    sizes = [
        _size(f"spec.containers[{index}]", container, statuses.get(container.name), is_feasible=is_feasible)
        for index, container in enumerate(spec.containers)
    ]
    inits = _init_sizes(spec, status, is_feasible=is_feasible)
    counted_requests, sidecars = counted(sizes, inits, ZERO, Resources.at_least)
    counted_requests = _pod_level(spec, status, counted_requests, is_feasible=is_feasible)
    overhead = amounts("spec.overhead", spec.overhead)
    # Otherwise the first container counts as the guest's.
    runner = next((index for index, container in enumerate(spec.containers) if container.name == guest), 0)
    other_containers = Resources.sum(size for index, size in enumerate(sizes) if index != runner)
    return without_overflow(counted_requests + overhead), without_overflow(other_containers + sidecars + overhead)


def _init_sizes(
    spec: shapes.PodSpec, status: shapes.PodStatus, *, is_feasible: bool
) -> Iterator[tuple[Resources, bool]]:
    """The size of each init container, and True if it is a sidecar."""
    statuses = {container.name: container for container in status.initContainerStatuses or ()}
    for index, init in enumerate(spec.initContainers or ()):
        is_sidecar = init.restartPolicy == "Always"
        # Of init containers only sidecars can be resized in place.
        sidecar_status = statuses.get(init.name) if is_sidecar else None
        yield _size(f"spec.initContainers[{index}]", init, sidecar_status, is_feasible=is_feasible), is_sidecar


def _size(
    path: str, container: shapes.Container, status: shapes.ResourceStatus | None, *, is_feasible: bool
) -> Resources:
    requests = (
        ZERO if container.resources is None else amounts(f"{path}.resources.requests", container.resources.requests)
    )
    # Not started, or a kubelet without in-place resize.
    if status is None or (status.resources is None and not status.allocatedResources):
        return requests
    has = _actual(f"status of {container.name}", status.allocatedResources, status.resources)
    # During a resize the maximum of request, allocation and actual size counts.
    return requests.at_least(has) if is_feasible else has


def _actual(path: str, allocated: shapes.Amounts | None, actual: shapes.Requests | None) -> Resources:
    has = amounts(f"{path}: allocatedResources", allocated)
    return has if actual is None else has.at_least(amounts(f"{path}: resources.requests", actual.requests))


def _pod_level(
    spec: shapes.PodSpec, status: shapes.PodStatus, counted_requests: Resources, *, is_feasible: bool
) -> Resources:
    """Pod-level requests replace the sum of the containers for the resources that they name."""
    if spec.resources is None or not spec.resources.requests:
        return counted_requests
    requests = spec.resources.requests
    size = amounts("spec.resources.requests", requests)
    if status.resources is not None or status.allocatedResources:
        has = _actual("status", status.allocatedResources, status.resources)
        size = size.at_least(has) if is_feasible else has
    return Resources(
        size.cpu if "cpu" in requests else counted_requests.cpu,
        size.mem if "memory" in requests else counted_requests.mem,
    )


def amounts(path: str, quantities: shapes.Amounts | None) -> Resources:
    """CPU and memory among ``quantities``, as Kubernetes counts them; zero if missing. Raises ``ValueError``."""
    if not quantities:
        return ZERO
    return Resources(
        counted_amount(MilliCpu, f"{path}.cpu", quantities.get("cpu", 0)),
        counted_amount(Bytes, f"{path}.memory", quantities.get("memory", 0)),
    )


def counted_amount(unit: type[A], path: str, quantity: WireQuantity) -> A:
    """An amount as Kubernetes counts it. Raises ``ValueError`` with ``path``."""
    try:
        return _countable(unit.parse(quantity))
    except HugeQuantityError:
        return unit(0)
    except QuantityError as error:
        raise ValueError(f"{path}: {error}") from None


def without_overflow(size: Resources) -> Resources:
    """``size`` without amounts that exceed the integers of kube-scheduler and kubelets.

    They count those as nothing, so such pods run on any node.
    """
    return Resources(_countable(size.cpu), _countable(size.mem))


def _countable(amount: A) -> A:
    return amount if amount.value <= LARGEST_AMOUNT else type(amount)(0)


ACCOUNTED: Final = frozenset({"cpu", "memory"})
"""Resources that the ledger itself accounts for."""


def other_resources(amounts: Amounts | None) -> Counter[str]:
    """Amounts of all other resources, in whole units, rounded up as in kube-scheduler."""
    counts: Counter[str] = Counter()
    for name, amount in (amounts or {}).items():
        if name not in ACCOUNTED:
            # Skip unreadable amounts: kube-scheduler checks the real object.
            with suppress(ValueError):
                counts[name] = mem_from_wire(name, amount).value
    return counts


def other_requests(spec: PodSpec) -> tuple[tuple[str, int], ...]:
    """The pod's requests for other resources, by name."""
    inits: Sequence[Container] = spec.initContainers or ()
    # Fast path: most pods have none.
    if not (_ask(spec.containers) or _ask(inits)):
        return ()
    none: Counter[str] = Counter()
    starting = ((_requests(container), container.restartPolicy == "Always") for container in inits)
    requests, _ = counted(map(_requests, spec.containers), starting, none, or_)
    # The union of Counters drops zeros, which constrain nothing.
    return tuple(sorted(requests.items()))


def _ask(containers: Sequence[Container]) -> bool:
    for container in containers:
        requests = None if container.resources is None else container.resources.requests
        if requests and not requests.keys() <= ACCOUNTED:
            return True
    return False


def _requests(container: Container) -> Counter[str]:
    return other_resources(None if container.resources is None else container.resources.requests)
