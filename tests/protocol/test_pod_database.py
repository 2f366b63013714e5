"""Postgres pods: the database in them, and what prevents resizing them in place."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import names
from protocol.messages import ObjectName
from protocol.pod_database import (
    PodDatabase,
    ResizeObjection,
    database_of,
    is_pod_database,
    objection_of,
    parse_pod_database,
    pod_of,
    resize_body,
)
from protocol.units import Bytes, MilliCpu, Resources
from protocol.virtual_machine import Bounds, InvalidObjectError

LARGEST = {"max": {"cpu": 4, "mem": "8Gi"}}


def pod(
    *,
    requests: dict[str, object] | None = None,
    limits: dict[str, object] | None = None,
    bounds: object = LARGEST,
    annotations: dict[str, str] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """A Burstable pod of a StatefulSet that runs with one CPU and 1Gi; ``fields`` go into the container's spec."""
    amounts = {"cpu": "1", "memory": "1Gi"} if requests is None else requests
    return {
        "metadata": {
            "namespace": "default",
            "name": "pg-1",
            "uid": "u-1",
            "resourceVersion": "7",
            "generation": 2,
            "labels": {names.LABEL_ENABLED: "true"},
            "annotations": {names.ANNOTATION_BOUNDS: json.dumps(bounds), **(annotations or {})},
        },
        "spec": {
            "nodeName": "n1",
            "containers": [
                {"name": "postgres", "resources": {"requests": amounts, "limits": limits or {}}, **fields},
                {"name": "exporter"},
            ],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.7",
            "qosClass": "Burstable",
            "containerStatuses": [
                {"name": "exporter"},
                {
                    "name": "postgres",
                    "containerID": "containerd://c-1",
                    "state": {"running": {}},
                    "allocatedResources": {"cpu": "500m", "memory": "512Mi"},
                    "resources": {"requests": {"cpu": "2", "memory": "2Gi"}},
                },
            ],
        },
    }


def test_pod_is_read_whole() -> None:
    assert parse_pod_database(pod()) == PodDatabase(
        name=ObjectName("default", "pod/pg-1"),
        uid="u-1",
        resource_version="7",
        labels={names.LABEL_ENABLED: "true"},
        annotations={names.ANNOTATION_BOUNDS: json.dumps(LARGEST)},
        bounds=Bounds(Resources.parse(1, "1Gi"), Resources.parse(4, "8Gi")),
        use=Resources.parse(1, "1Gi"),
        # What the cgroup has; after a failed shrink the allocated amounts are lower already.
        actual=Resources.parse(2, "2Gi"),
        slot_size=Bytes.parse("64Mi"),
        pod_name="pg-1",
        node="n1",
        pod_ip="10.0.0.7",
        phase="Running",
        enabled=True,
        permit=None,
        container="postgres",
        container_id="c-1",
    )


def test_old_kubelet_reports_allocated_requests() -> None:
    old, older = pod(), pod()
    del old["status"]["containerStatuses"][1]["resources"]
    del older["status"]
    assert parse_pod_database(old).actual == Resources.parse("500m", "512Mi")
    assert (parse_pod_database(older).actual, parse_pod_database(older).container_id) == (None, "")


def test_restarting_container_is_no_running_database() -> None:
    restarting, ended, leaving = pod(), pod(), pod()
    restarting["status"]["containerStatuses"][1]["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    ended["status"]["phase"] = "Failed"
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    phases = [parse_pod_database(found).phase for found in (restarting, ended, leaving)]
    assert phases == ["Pending", "Failed", "Terminating"]


FIRST = {names.ANNOTATION_FIRST_REQUESTS: '{"cpu": "500m", "mem": "512Mi"}'}
BY_CNPG = {
    names.ANNOTATION_CNPG_POD_SPEC: json.dumps(
        {"containers": [{"name": "postgres", "resources": {"requests": {"cpu": "250m", "memory": "256Mi"}}}]}
    )
}
RESIZED = [{"manager": "kubectl", "subresource": ""}, {"manager": "autoscaler-agent", "subresource": "resize"}]


@pytest.mark.parametrize(
    ("floor", "annotations", "bounds", "managed"),
    [
        (Resources.parse(1, "1Gi"), {}, LARGEST, []),
        (Resources.parse("500m", "512Mi"), FIRST, LARGEST, RESIZED),
        (Resources.parse("250m", "256Mi"), BY_CNPG, LARGEST, RESIZED),
        # Nobody knows the template of a pod that was resized before anybody looked: it keeps what it has.
        (Resources.parse(1, "1Gi"), {}, LARGEST, RESIZED),
        (Resources.parse(1, "1Gi"), {names.ANNOTATION_CNPG_POD_SPEC: "{"}, LARGEST, RESIZED),
        (Resources.parse("100m", "128Mi"), FIRST, {**LARGEST, "min": {"cpu": "100m", "mem": "128Mi"}}, RESIZED),
    ],
)
def test_floor_is_the_template_unless_bounds_say_less(
    floor: Resources, annotations: dict[str, str], bounds: object, managed: list[object]
) -> None:
    made = pod(bounds=bounds, annotations=annotations)
    made["metadata"]["managedFields"] = managed
    assert parse_pod_database(made).bounds == Bounds(floor, Resources.parse(4, "8Gi"))


@pytest.mark.parametrize(
    ("limits", "written"),
    [
        ({}, {}),
        ({"cpu": "1500m"}, {"cpu": "3500m"}),
        ({"cpu": "1", "memory": "1Gi"}, {"memory": "2Gi", "cpu": "3"}),
    ],
)
def test_limits_follow_requests(limits: dict[str, object], written: dict[str, str]) -> None:
    database = parse_pod_database(settled(limits))
    resources = {"requests": {"cpu": "3", "memory": "2Gi"}, "limits": written}
    assert resize_body(database, Resources(MilliCpu.cores(3), Bytes.parse("2Gi"))) == {
        "spec": {"containers": [{"name": "postgres", "resources": resources}]}
    }


def settled(limits: dict[str, object]) -> dict[str, Any]:
    """A pod whose kubelet has applied its requests and ``limits``."""
    return in_force(pod(limits=limits), "1Gi", limits)


def in_force(found: dict[str, Any], memory: str, limits: dict[str, object]) -> dict[str, Any]:
    found["status"]["containerStatuses"][1]["resources"] = {
        "requests": {"cpu": "1", "memory": memory},
        "limits": limits,
    }
    return found


def limit_at(found: dict[str, Any], mem: str) -> object:
    """The memory limit that a resize to ``mem`` writes."""
    body: Any = resize_body(parse_pod_database(found), Resources.parse(2, mem))
    return body["spec"]["containers"][0]["resources"]["limits"].get("memory")


@pytest.mark.parametrize(
    ("limit", "mem", "written"),
    [
        ("3Gi", "1Gi", "3Gi"),
        ("3Gi", "2Gi", "3Gi"),
        ("3Gi", "4Gi", "4Gi"),
        ("16Gi", "4Gi", "16Gi"),
        ("3Gi", "512Mi", "512Mi"),
        (None, "1Gi", None),
        (None, "4Gi", None),
        (None, "512Mi", "512Mi"),
    ],
)
def test_only_a_shrink_lowers_the_memory_limit(limit: str | None, mem: str, written: str | None) -> None:
    """The kubelet refuses a limit below the page cache, and then does not resize CPU either."""
    assert limit_at(settled({} if limit is None else {"memory": limit}), mem) == written


@pytest.mark.parametrize(
    ("has", "limits", "mem", "written"),
    [
        ("512Mi", {"memory": "512Mi"}, "512Mi", "512Mi"),
        ("2Gi", {"memory": "2Gi"}, "2Gi", "2Gi"),
        ("2Gi", {"memory": "3Gi"}, "2Gi", "3Gi"),
        ("2Gi", {"memory": "16Gi"}, "2Gi", "8Gi"),
        ("2Gi", {}, "2Gi", "8Gi"),
    ],
    ids=["growth", "shrink", "of a higher limit", "of one above the maximum", "of none, which cannot come back"],
)
def test_reverted_resize_restores_the_memory_limit(has: str, limits: dict[str, object], mem: str, written: str) -> None:
    assert limit_at(in_force(pod(limits={"memory": "1Gi"}), has, limits), mem) == written


def test_container_is_named_or_the_only_one() -> None:
    chosen, alone, unnamed = pod(), pod(), pod()
    chosen["metadata"]["annotations"][names.ANNOTATION_CONTAINER] = "db"
    chosen["spec"]["containers"][0]["name"] = "db"
    alone["spec"]["containers"] = [{**alone["spec"]["containers"][0], "name": "main"}]
    unnamed["spec"]["containers"][0]["name"] = "db"
    assert [parse_pod_database(found).container for found in (chosen, alone)] == ["db", "main"]
    with pytest.raises(InvalidObjectError) as refused:
        parse_pod_database(unnamed)
    assert str(refused.value) == (
        "spec.containers: expected one named postgres, got db, exporter: set the annotation"
        " autoscaling.neon.tech/container to the name of postgres' container"
    )


def without_bounds() -> dict[str, Any]:
    found = pod()
    del found["metadata"]["annotations"][names.ANNOTATION_BOUNDS]
    return found


def alone(found: dict[str, Any]) -> dict[str, Any]:
    """The pod without its exporter."""
    del found["spec"]["containers"][1]
    return found


def test_pod_with_another_burstable_container_keeps_its_class() -> None:
    guaranteed = {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"cpu": 1, "memory": "1Gi"}}
    beside = pod(limits={"cpu": 1, "memory": "2Gi"})
    assert parse_pod_database(beside).mem_limit == Bytes.parse("8Gi")
    beside["spec"]["initContainers"] = [{"name": "init", "resources": {"requests": {"cpu": 1}}}]
    beside["spec"]["containers"][1]["resources"] = guaranteed
    parse_pod_database(beside)
    beside["spec"]["initContainers"] = [{"name": "init", "resources": guaranteed}]
    with pytest.raises(InvalidObjectError, match="QoS class"):
        parse_pod_database(beside)


def of_whole_pod() -> dict[str, Any]:
    found = pod()
    found["spec"]["resources"] = {"requests": {"cpu": 4}}
    return found


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (without_bounds(), "metadata.annotations[autoscaling.neon.tech/bounds]: expected the maximum size"),
        (pod(bounds=[]), "metadata.annotations[autoscaling.neon.tech/bounds]: "),
        (
            pod(bounds={"max": {"cpu": 1, "mem": "512Mi"}}),
            "metadata.annotations[autoscaling.neon.tech/bounds]: expected 0",
        ),
        (pod(bounds={"max": {"cpu": "x", "mem": 1}}), "metadata.annotations[autoscaling.neon.tech/bounds]: max.cpu: "),
        (pod(requests={"cpu": 1}), "spec.containers[postgres].resources.requests: expected both cpu and memory"),
        (
            pod(requests={"cpu": True, "memory": "1Gi"}),
            "spec.containers[postgres].resources.requests: expected both cpu",
        ),
        (
            pod(resizePolicy=[{"resourceName": "memory", "restartPolicy": "RestartContainer"}]),
            "spec.containers[postgres].resizePolicy: expected NotRequired for memory: a resize would restart postgres",
        ),
        (
            alone(pod(limits={"cpu": 1, "memory": "2Gi"})),
            "spec.containers[postgres].resources.limits.memory: expected the request",
        ),
        (of_whole_pod(), "spec.resources: pod-level resources are not supported"),
        (
            pod(annotations={"kubernetes.io/config.mirror": "1f"}),
            "metadata.annotations[kubernetes.io/config.mirror]: a static pod cannot be resized",
        ),
        (
            pod(bounds={"max": {"cpu": 4, "mem": "8Gi", "memory": "9Gi"}}),
            "metadata.annotations[autoscaling.neon.tech/bounds]: ",
        ),
        (pod(bounds={**LARGEST, "least": {}}), "metadata.annotations[autoscaling.neon.tech/bounds]: "),
        ({"spec": {}}, "spec.containers: expected one named , got none"),
    ],
)
def test_error_of_unresizable_pod_has_a_remedy(broken: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidObjectError) as refused:
        parse_pod_database(broken)
    assert str(refused.value).startswith(complaint)


@pytest.mark.parametrize(
    "broken",
    [
        pod(annotations={names.ANNOTATION_CONTAINER: "x" * 99_999}),
        pod(bounds={"max": {"cpu": 4, "mem": "8Gi", "x" * 99_999: 1}}),
        pod(resizePolicy=[{"resourceName": "x" * 99_999, "restartPolicy": "RestartContainer"}]),
    ],
)
def test_complaint_is_short(broken: dict[str, Any]) -> None:
    with pytest.raises(InvalidObjectError) as refused:
        parse_pod_database(broken)
    assert len(str(refused.value)) <= 300


def condition(kind: str, reason: str, status: str = "True", generation: int = 2) -> dict[str, object]:
    return {"type": kind, "status": status, "reason": reason, "message": "so", "observedGeneration": generation}


@pytest.mark.parametrize(
    ("conditions", "verdict"),
    [
        ([], None),
        ([condition("PodResizePending", "Deferred")], "Deferred"),
        ([condition("PodResizePending", "Infeasible", generation=0)], "Infeasible"),
        ([condition("PodResizeInProgress", "Error")], "Error"),
        ([condition("PodResizeInProgress", "")], None),
        ([condition("PodResizePending", "Deferred", status="False")], None),
        # The kubelet has not looked at the present requests yet.
        ([condition("PodResizePending", "Deferred", generation=1)], None),
    ],
)
def test_objection_of_kubelet(conditions: list[object], verdict: str | None) -> None:
    found = pod()
    found["status"]["conditions"] = conditions
    assert objection_of(found) == (verdict and ResizeObjection(verdict, "so"))
    assert str(objection_of(found) or "") == (f"{verdict}: so" if verdict else "")


def test_pods_of_vms_and_jobs_are_no_databases() -> None:
    """The Job ``pg-2-join`` of CloudNativePG has the labels of the instances."""
    of_vm, owned, job, off = pod(), pod(), pod(), pod()
    of_vm["metadata"]["labels"][names.LABEL_VM_NAME] = "db"
    owned["metadata"]["ownerReferences"] = [{"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration"}]
    job["metadata"]["ownerReferences"] = [{"apiVersion": "batch/v1", "kind": "Job", "name": "pg-2-join"}]
    off["metadata"]["labels"] = {}
    assert [is_pod_database(found) for found in (pod(), of_vm, owned, job, off)] == [True, False, False, False, False]


def test_names_of_pods_and_vms_never_meet() -> None:
    name = ObjectName("default", "pg-1")
    assert (pod_of(database_of(name)), pod_of(name)) == (name, None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
PLACES = st.sampled_from(
    (
        "metadata",
        "metadata/annotations",
        "metadata/managedFields",
        "spec",
        "spec/containers",
        "spec/containers/0",
        "spec/containers/0/resources",
        "status",
        "status/phase",
        "status/containerStatuses",
        "status/conditions",
    )
)


@given(PLACES, JSON)
def test_any_pod_is_read_or_refused(place: str, value: object) -> None:
    broken = deepcopy(pod())
    *parents, last = place.split("/")
    at: Any = broken
    for step in parents:
        at = at[0] if step == "0" else at[step]
    at[0 if last == "0" else last] = value
    try:
        database = parse_pod_database(broken)
    except InvalidObjectError:
        return
    assert database.bounds.min.within(database.bounds.max)
