"""Refusals of in-place resizes: classified, reverted to the pod's actual size, and not retried too soon."""

from __future__ import annotations

import pytest

from protocol.kubernetes.objects import Json, JsonObject, child, items
from protocol.kubernetes.refusals import Refusal, RefusalKind
from protocol.units import Seconds
from scheduler_plugin.groups.core.workload import Resource, SizedContainer
from scheduler_plugin.groups.objects.pod_resizes import (
    cpu_first,
    objection_of,
    reached,
    refused_by_api,
    resize_pod,
    without,
)
from scheduler_plugin.groups.objects.pods import trimmed_pod
from scheduler_plugin.groups.objects.targets import read_container

PENDING, IN_PROGRESS = "PodResizePending", "PodResizeInProgress"
SMALL, LARGE = ("1", "1Gi"), ("4", "4Gi")


def sizes(cpu: str, memory: str, *, limits: bool = False) -> tuple[SizedContainer, ...]:
    amounts: Json = {"cpu": cpu, "memory": memory}
    resources: Json = {"requests": amounts, **({"limits": amounts} if limits else {})}
    return (read_container({"name": "app", "resources": resources}, "spec"),)


def pod(
    asked: tuple[str, str] = LARGE,
    has: tuple[str, str] = SMALL,
    allocated: tuple[str, str] | None = None,
    *,
    observed: int = 2,
    **condition: str,
) -> Json:
    """A pod of generation 2 that was ``asked`` to have this, and ``has`` that."""

    def amounts(found: tuple[str, str]) -> Json:
        return {"cpu": found[0], "memory": found[1]}

    status: Json = {
        "name": "app",
        "resources": {"requests": amounts(has)},
        "allocatedResources": amounts(allocated or has),
    }
    conditions = [{"status": "True", "observedGeneration": observed, **condition}] if condition else []
    return trimmed_pod(
        {
            "metadata": {"name": "p", "generation": 2, "resourceVersion": "7"},
            "spec": {"containers": [{"name": "app", "resources": {"requests": amounts(asked)}}]},
            "status": {"conditions": conditions, "containerStatuses": [{"name": "app", **status}]},
        }
    )


def requests_in(found: JsonObject, wanted: tuple[SizedContainer, ...]) -> object:
    """The requests that a patch of the pod to ``wanted`` writes; None without a patch."""
    write = resize_pod(found, wanted)
    return None if write is None else write.body["spec"]["containers"][0]["resources"]["requests"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("found", "why", "resources", "pauses"),
    [
        (pod(), None, (), ()),
        (pod(type=IN_PROGRESS, reason=""), None, (), ()),
        (pod(type=PENDING, reason="Deferred", status="False"), None, (), ()),
        (pod(type=PENDING, reason="Infeasible", observed=1), None, (), ()),
        (
            pod(type=PENDING, reason="Deferred", message="Node didn't have enough resource: cpu"),
            "Deferred: Node didn't have enough resource: cpu",
            ("cpu",),
            (300, 300, 300),
        ),
        (
            pod(type=PENDING, reason="Infeasible", message="Node didn't have enough capacity: memory"),
            "Infeasible: Node didn't have enough capacity: memory",
            ("memory",),
            (300, 600, 1200),
        ),
        (
            pod(type=PENDING, reason="Infeasible", message="no", observed=0),
            "Infeasible: no",
            ("cpu", "memory"),
            (300, 600, 1200),
        ),
        (
            pod(("4", "1Gi"), type=PENDING, reason="Infeasible", message="static CPU manager"),
            "Infeasible: static CPU manager",
            ("cpu",),
            (300, 600, 1200),
        ),
        (
            pod(("4", "1Gi"), ("1", "4Gi"), ("4", "1Gi"), type=IN_PROGRESS, reason="Error", message="memory is in use"),
            "Error: memory is in use",
            ("memory",),
            (300, 600, 1200),
        ),
    ],
    ids=[
        "none",
        "goes-well",
        "was-deferred",
        "about-an-older-size",
        "deferred",
        "infeasible",
        "names-nothing",
        "only-cpu-changed",
        "failed",
    ],
)
def test_objections_of_kubelets(
    found: JsonObject, why: str | None, resources: tuple[Resource, ...], pauses: tuple[int, ...]
) -> None:
    objection = objection_of(found)
    if objection is None:
        assert why is None
        return
    assert (objection.why, objection.resources) == (why, resources)
    assert [objection.pause.delay(failures, 1.0) for failures in (1, 2, 3)] == [Seconds(pause) for pause in pauses]


def test_failed_resize_is_withdrawn_to_sizes_in_force() -> None:
    """``allocatedResources`` already has the new size, so it would change nothing."""
    failed = pod(("4", "1Gi"), ("1", "4Gi"), ("4", "1Gi"), type=IN_PROGRESS, reason="Error", message="memory is in use")
    objection = objection_of(failed)
    assert objection is not None
    assert requests_in(failed, objection.actual) == {"cpu": "1", "memory": "4Gi"}
    # Memory is left alone, and CPU is not blocked by it.
    assert requests_in(pod(("1", "4Gi")), without(sizes("4", "1Gi"), "memory")) == {"cpu": "4"}


@pytest.mark.parametrize(
    ("wanted", "requested"),
    [
        (("4", "512Mi"), {"cpu": "4"}),
        (("4", "2Gi"), {"cpu": "4", "memory": "2Gi"}),
        (("500m", "512Mi"), {"cpu": "500m", "memory": "512Mi"}),
    ],
    ids=["cpu-first", "both-grow", "both-shrink"],
)
def test_memory_shrinks_after_cpu_has_grown(wanted: tuple[str, str], requested: Json) -> None:
    assert requests_in(pod(SMALL), tuple(cpu_first(pod(SMALL), sizes(*wanted)))) == requested


def test_withdrawn_wish_drops_limits() -> None:
    """As a real kubelet says it: what is set aside are requests, and the limits are those that it has set."""
    asked = {"requests": {"cpu": "64", "memory": "10Mi"}, "limits": {"cpu": "320", "memory": "20Mi"}}
    had = {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"cpu": "50m", "memory": "64Mi"}}
    container: Json = {"name": "app", "resources": asked}
    pending = {"type": PENDING, "status": "True", "reason": "Infeasible", "message": "too large"}
    status: Json = {"conditions": [pending], "containerStatuses": [{"name": "app", "resources": had}]}
    found = trimmed_pod({"metadata": {"name": "p"}, "spec": {"containers": [container]}, "status": status})
    objection = objection_of(found)
    assert objection is not None
    write = resize_pod(found, objection.actual)
    assert write is not None
    assert write.body == {"spec": {"containers": [{"name": "app", "resources": had}]}}


def test_older_kubelet_reports_only_what_it_allocated() -> None:
    found = pod(type=PENDING, reason="Infeasible", message="no")
    status: Json = {"name": "app", "allocatedResources": {"cpu": "2", "memory": "2Gi"}}
    objection = objection_of({**found, "status": {**found["status"], "containerStatuses": [status]}})  # type: ignore[dict-item]
    assert objection is not None
    assert objection.actual == sizes("2", "2Gi")


@pytest.mark.parametrize(
    ("asked", "has", "wanted", "is_about"),
    [
        (LARGE, SMALL, LARGE, True),
        (LARGE, SMALL, ("4", "5Gi"), True),
        (LARGE, SMALL, ("4", "3Gi"), False),
        (LARGE, SMALL, SMALL, False),
        (SMALL, LARGE, SMALL, True),
        (SMALL, LARGE, ("1", "512Mi"), True),
        (SMALL, LARGE, ("1", "2Gi"), False),
        (SMALL, LARGE, ("1", "8Gi"), False),
        (SMALL, SMALL, SMALL, False),
    ],
)
def test_objection_holds_for_as_much(
    asked: tuple[str, str], has: tuple[str, str], wanted: tuple[str, str], is_about: bool
) -> None:
    """Less of a growth, or of a shrink, than was objected to may be asked for at once."""
    objection = objection_of(pod(asked, has, type=PENDING, reason="Infeasible", message="memory"))
    assert objection is not None
    assert objection.is_about("memory", sizes(*wanted)) is is_about
    assert not objection.is_about("memory", without(sizes(*wanted), "memory"))


@pytest.mark.parametrize(
    ("found", "wanted", "resources"),
    [
        (pod(LARGE, SMALL), sizes(*LARGE), ()),
        (pod(SMALL, LARGE), sizes(*LARGE), ("cpu", "memory")),
        (pod(LARGE, ("4", "1Gi")), sizes(*LARGE), ("cpu",)),
        (pod(LARGE, SMALL), without(sizes(*LARGE), "memory"), ("memory",)),
        ({**pod(LARGE), "status": {}}, sizes(*LARGE), ()),
    ],
    ids=["only-requested", "in-force", "partly", "nothing-wanted", "not-running-yet"],
)
def test_sizes_in_force_are_reached(
    found: JsonObject, wanted: tuple[SizedContainer, ...], resources: tuple[Resource, ...]
) -> None:
    """A request alone is nothing that the pod has."""
    assert reached(found, wanted) == resources


def test_messages_do_not_tell_objections_apart() -> None:
    """A quota's message has the amount that is used just now."""
    refusals = [Refusal(RefusalKind.FORBIDDEN, 403, f"{FORBIDDEN}exceeded quota: q, used: cpu={used}") for used in "12"]
    first, second = (refused_by_api(pod(SMALL), sizes(*LARGE), refusal) for refusal in refusals)
    assert (first == second, first.why == second.why) == (True, False)


@pytest.mark.parametrize(
    ("condition", "message", "sidecar", "is_held"),
    [
        ((PENDING, "Deferred"), "not enough cpu", ("1", "4"), False),
        ((PENDING, "Infeasible"), "", ("1", "4"), False),
        ((PENDING, "Infeasible"), "static CPU manager", ("1", "1"), True),
        ((IN_PROGRESS, "Error"), "cpu", ("1", "4"), True),
    ],
    ids=["deferred", "names-nothing", "only-shrinks", "failed"],
)
def test_pending_growth_holds_no_shrink(
    condition: tuple[str, str], message: str, sidecar: tuple[str, str], is_held: bool
) -> None:
    """The app shrinks from 4 vCPU to 1, and a sidecar is requested to go from 1 to more."""
    found = pod(("1", "1Gi"), ("4", "1Gi"), type=condition[0], reason=condition[1], message=message)
    has, asked = ({"name": "side", "resources": {"requests": {"cpu": cpu}}} for cpu in sidecar)
    containers, statuses = items(found, "spec", "containers"), items(found, "status", "containerStatuses")
    status: Json = {**child(found, "status"), "containerStatuses": [*statuses, has]}
    objection = objection_of({**found, "spec": {"containers": [*containers, asked]}, "status": status})
    assert objection is not None
    assert objection.is_about("cpu", sizes("1", "1Gi")) is is_held
    grown = read_container({"name": "side", "resources": {"requests": {"cpu": "4"}}}, "spec")
    assert objection.is_about("cpu", [grown]) is (sidecar[1] == "4")


FORBIDDEN = 'pods "p" is forbidden: '


@pytest.mark.parametrize(
    ("kind", "status", "message", "advice", "resources"),
    [
        (
            RefusalKind.FORBIDDEN,
            403,
            f'{FORBIDDEN}User "groups" cannot patch resource "pods/resize"',
            "; let the account of autoscale-groups patch pods/resize (upgrade the chart)",
            ("cpu", "memory"),
        ),
        (
            RefusalKind.FORBIDDEN,
            403,
            f"{FORBIDDEN}exceeded quota: q, requested: requests.cpu=3, used: requests.cpu=1, limited: requests.cpu=2",
            "; raise the ResourceQuota of the namespace, or lower the group's maximum",
            ("cpu",),
        ),
        (
            RefusalKind.FORBIDDEN,
            403,
            f"{FORBIDDEN}maximum memory usage per Container is 2Gi, but limit is 4Gi",
            "; raise the LimitRange of the namespace, or lower the group's maximum",
            ("memory",),
        ),
        (
            RefusalKind.FORBIDDEN,
            403,
            f"{FORBIDDEN}no",
            "; a policy or webhook forbids it, or no node of this size exists: allow it, or lower the group's maximum",
            ("cpu", "memory"),
        ),
        (RefusalKind.INVALID, 422, 'Pod "p" is invalid: spec: memory limits cannot be decreased', "", ("memory",)),
        (RefusalKind.INVALID, 422, 'Pod "p" is invalid: spec: hugepages may not change', "", ("cpu", "memory")),
    ],
    ids=["no-right", "quota", "limit-range", "policy", "validation", "validation-of-all"],
)
def test_refusals_say_what_to_do(
    kind: RefusalKind, status: int, message: str, advice: str, resources: tuple[Resource, ...]
) -> None:
    objection = refused_by_api(pod(SMALL), sizes(*LARGE), Refusal(kind, status, message))
    assert (objection.why, objection.resources) == (f"{status}: {message}{advice}", resources)
    assert (objection.requested, objection.actual) == (sizes(*LARGE), sizes(*SMALL))
    assert all(objection.is_about(resource, sizes(*LARGE)) for resource in resources)


def test_pod_without_requests_is_not_asked_again_soon() -> None:
    """Requests cannot be added to a running pod."""
    bare: Json = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "app"}]}}
    objection = refused_by_api(bare, sizes(*SMALL), Refusal(RefusalKind.INVALID, 422, "QoS class"))
    assert [objection.is_about(resource, sizes(*SMALL)) for resource in objection.resources] == [True, True]


def test_ended_pod_is_not_resized() -> None:
    found: Json = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "app"}]}, "status": {"phase": "Failed"}}
    assert resize_pod(found, sizes(*SMALL)) is None
    assert resize_pod({**found, "status": {}}, sizes(*SMALL)) is not None
