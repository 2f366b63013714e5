"""The requests of a pod as kube-scheduler counts them, and the part that may be changed in place.

Rules that hold here:

- A pod's requests are counted as kube-scheduler counts them: the larger of all containers together (sidecars, that is
  init containers that restart always, included) and of each init container with the sidecars started before it; plus
  the overhead. A request on the pod itself replaces the sum of its containers. Missing requests count as nothing.
- An amount is read as Kubernetes reads it; one that cannot be read raises ``ValueError`` with the path of the field.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from protocol.kubernetes.managed_fields import resized_by
from protocol.names import RUNNER_CONTAINER, SCHEDULER_NAME
from protocol.units import ZERO, Resources
from protocol.wire.wire_quantities import cpu_from_wire, mem_from_wire
from scheduler_plugin.cluster.pods import shapes
from scheduler_plugin.cluster.pods.shapes import Amounts, Container, PodSpec
from scheduler_plugin.ledger.facts import RunnerRequests

RESIZE_PENDING: Final = "PodResizePending"
INFEASIBLE: Final = "Infeasible"
BURSTABLE: Final = "Burstable"
DEFERRED: Final = "Deferred"
RESTART: Final = "RestartContainer"


def runner_requests(meta: shapes.PodMetadata, spec: shapes.PodSpec, status: shapes.PodStatus) -> RunnerRequests | None:
    """Requests of the guest's container; None if they cannot be changed in place (B.10)."""
    runner = next((container for container in spec.containers if container.name == RUNNER_CONTAINER), None)
    # A pod keeps its QoS class for life: one without requests cannot be given any, and a Guaranteed one would need its
    # limits changed, too.
    if runner is None or status.qosClass != BURSTABLE or spec.resources is not None:
        return None
    resources = runner.resources or shapes.ContainerResources()
    limits = resources.limits or {}
    # Limits belong to the operator, except for a CPU limit that we wrote ourselves.
    ours = resized_by(SCHEDULER_NAME, meta.managedFields or (), "limits") & {"cpu"}
    if (limits.keys() & {"cpu", "memory"}) - ours:
        return None
    # A kubelet that restarts the container to resize it ends the guest.
    if any(policy.restartPolicy == RESTART for policy in runner.resizePolicy or ()):
        return None
    status_of_runner = next(
        (container for container in status.containerStatuses or () if container.name == runner.name), shapes.Held()
    )
    allocated, requests = status_of_runner.allocatedResources, resources.requests or {}
    written = resized_by(SCHEDULER_NAME, meta.managedFields or ())
    return RunnerRequests(
        asked=amounts("requests of the guest's container", requests),
        allocated=None if allocated is None else amounts("status: allocatedResources", allocated),
        problem=_resize_problem(meta, status),
        version=meta.resourceVersion,
        by_us=amounts("requests by us", {name: amount for name, amount in requests.items() if name in written}),
        # 0: the kubelet does not report the generation, so its status counts as current.
        is_seen=not 0 < status.observedGeneration < meta.generation,
        cpu_limit=cpu_from_wire("limits of the guest's container", limits["cpu"]) if "cpu" in limits else None,
    )


def _resize_problem(meta: shapes.Metadata, status: shapes.PodStatus) -> str:
    verdicts = (
        f"{condition.reason}: {condition.message or ''}"
        for condition in _verdicts(meta, status)
        if condition.status == "True"
    )
    return next(verdicts, "")


def deferred(found: shapes.Pod, status: shapes.PodStatus, requests: Resources) -> Resources:
    """The part of ``requests`` that the kubelet grants only once others have left the node."""
    if not _resize_is(DEFERRED, found.metadata, status):
        return ZERO
    # is_feasible=False leaves out the requested sizes: only what the kubelet has already granted counts.
    has, _ = _held(found.spec, status, is_feasible=False)
    return requests.minus_or_zero(has)


def _resize_is(reason: str, meta: shapes.Metadata, status: shapes.PodStatus) -> bool:
    return any(condition.reason == reason for condition in _verdicts(meta, status))


def _verdicts(meta: shapes.Metadata, status: shapes.PodStatus) -> Iterator[shapes.Condition]:
    """The kubelet's verdicts on the present requests, without those on earlier ones."""
    for condition in status.conditions or ():
        # Older kubelets do not say which generation they judged.
        if condition.type == RESIZE_PENDING and (
            not condition.observedGeneration or condition.observedGeneration >= meta.generation
        ):
            yield condition


def counted(
    meta: shapes.Metadata, spec: shapes.PodSpec, status: shapes.PodStatus, guest: str = RUNNER_CONTAINER
) -> tuple[Resources, Resources]:
    """The requests that kube-scheduler counts for the pod, and the part of them outside the ``guest`` container."""
    # A resize that the kubelet calls infeasible never happens on this node, so kube-scheduler leaves it out.
    return _held(spec, status, guest, is_feasible=not _resize_is(INFEASIBLE, meta, status))


def _held(
    spec: shapes.PodSpec, status: shapes.PodStatus, guest: str = RUNNER_CONTAINER, *, is_feasible: bool
) -> tuple[Resources, Resources]:
    """As ``counted``, with or without requests beyond what each container has."""
    statuses = {container.name: container for container in status.containerStatuses or ()}
    sizes = [
        _size(f"spec.containers[{index}]", container, statuses.get(container.name), is_feasible=is_feasible)
        for index, container in enumerate(spec.containers)
    ]
    sidecars, starting = _init_sizes(spec, status, is_feasible=is_feasible)
    # Init containers run before the others, so the larger of the two phases counts, not their sum.
    counted = (Resources.sum(sizes) + sidecars).at_least(starting)
    counted = _pod_level(spec, status, counted, is_feasible=is_feasible)
    overhead = amounts("spec.overhead", spec.overhead)
    # If no container has that name, the first one counts as the guest's.
    runner = next((index for index, container in enumerate(spec.containers) if container.name == guest), 0)
    beside = Resources.sum(size for index, size in enumerate(sizes) if index != runner)
    return counted + overhead, beside + sidecars + overhead


def _init_sizes(spec: shapes.PodSpec, status: shapes.PodStatus, *, is_feasible: bool) -> tuple[Resources, Resources]:
    """The sum of all sidecars, and the greatest need of any moment during start."""
    statuses = {container.name: container for container in status.initContainerStatuses or ()}
    sidecars, starting = ZERO, ZERO
    for index, init in enumerate(spec.initContainers or ()):
        is_sidecar = init.restartPolicy == "Always"
        # Of init containers only sidecars can be resized in place.
        sidecar_status = statuses.get(init.name) if is_sidecar else None
        size = _size(f"spec.initContainers[{index}]", init, sidecar_status, is_feasible=is_feasible)
        # An init container runs beside the sidecars that were started before it.
        starting = starting.at_least(sidecars + size)
        if is_sidecar:
            sidecars = sidecars + size
    return sidecars, starting


def _size(path: str, container: shapes.Container, held: shapes.Held | None, *, is_feasible: bool) -> Resources:
    requests = (
        ZERO if container.resources is None else amounts(f"{path}.resources.requests", container.resources.requests)
    )
    # A container that has not started, or a kubelet without in-place resize, reports neither.
    if held is None or (held.resources is None and not held.allocatedResources):
        return requests
    has = _has(f"status of {container.name}", held.allocatedResources, held.resources)
    # During a resize the container may use the largest of its request, its allocation and its actual size.
    return requests.at_least(has) if is_feasible else has


def _has(path: str, allocated: shapes.Amounts | None, actual: shapes.Requests | None) -> Resources:
    has = amounts(f"{path}: allocatedResources", allocated)
    return has if actual is None else has.at_least(amounts(f"{path}: resources.requests", actual.requests))


def _pod_level(spec: shapes.PodSpec, status: shapes.PodStatus, counted: Resources, *, is_feasible: bool) -> Resources:
    """A request on the pod itself replaces the sum of its containers, for the resources that it names only."""
    if spec.resources is None or not spec.resources.requests:
        return counted
    requests = spec.resources.requests
    size = amounts("spec.resources.requests", requests)
    if status.resources is not None or status.allocatedResources:
        has = _has("status", status.allocatedResources, status.resources)
        size = size.at_least(has) if is_feasible else has
    return Resources(size.cpu if "cpu" in requests else counted.cpu, size.mem if "memory" in requests else counted.mem)


def amounts(path: str, given: shapes.Amounts | None) -> Resources:
    """The CPU and memory among ``given``, zero if missing. Raises ``ValueError``."""
    if not given:
        return ZERO
    return Resources(
        cpu_from_wire(f"{path}.cpu", given.get("cpu", 0)), mem_from_wire(f"{path}.memory", given.get("memory", 0))
    )


LEDGERS: Final = frozenset({"cpu", "memory"})
"""Resources that the ledger itself accounts for."""


def other_resources(given: Amounts | None) -> Counter[str]:
    """Amounts of each resource that is not the ledger's, in whole units, rounded up as kube-scheduler does."""
    counts: Counter[str] = Counter()
    for name, amount in (given or {}).items():
        if name not in LEDGERS:
            # An amount that cannot be read is skipped: kube-scheduler judges the real object anyway.
            with suppress(ValueError):
                counts[name] = mem_from_wire(name, amount).value
    return counts


def other_requests(spec: PodSpec) -> tuple[tuple[str, int], ...]:
    """The pod's requests for such resources, by name."""
    inits: Sequence[Container] = spec.initContainers or ()
    # Most pods have none, and the sums below are slow.
    if not (_ask(spec.containers) or _ask(inits)):
        return ()
    running: Counter[str] = Counter()
    for container in spec.containers:
        running += _requests(container)
    sidecars: Counter[str] = Counter()
    starting: Counter[str] = Counter()
    for container in inits:
        needed = sidecars + _requests(container)
        # The maximum of each resource, since init containers run one after the other.
        starting |= needed
        # An init container that always restarts is a sidecar, and keeps running beside all that start after it.
        sidecars = needed if container.restartPolicy == "Always" else sidecars
    # Adding Counters drops zeros: a request for none of a resource constrains nothing.
    return tuple(sorted(((running + sidecars) | starting).items()))


def _ask(containers: Sequence[Container]) -> bool:
    for container in containers:
        requests = None if container.resources is None else container.resources.requests
        if requests and not requests.keys() <= LEDGERS:
            return True
    return False


def _requests(container: Container) -> Counter[str]:
    return other_resources(None if container.resources is None else container.resources.requests)
