"""The VM of a pod, the overhead around its guest, and the requests of a pod that is being resized in place."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from protocol.kubernetes.objects import Json
from protocol.messages import ObjectName
from protocol.names import LABEL_MAKE_ROOM
from protocol.units import ZERO, MilliCpu, Resources
from scheduler_plugin.cluster.pods.reading import decode_pod, pod_at_most, read_pod
from scheduler_plugin.ledger.facts import RunnerRequests
from tests.scheduler_plugin.objects import Obj, owner_of, plain_pod, vm_pod


def amounts(cpu: str, memory: str) -> Obj:
    return {"cpu": cpu, "memory": memory}


def container(name: str, cpu: str, memory: str, **more: Any) -> Obj:
    return {"name": name, "resources": {"requests": amounts(cpu, memory)}, **more}


def counted(spec: Obj, status: Obj | None = None) -> str:
    pod = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec, "status": status or {}}
    assert decode_pod(json.dumps(pod).encode()) == read_pod(pod)
    return str(read_pod(pod).requests)


# In-place resize (KEP-1287) -----------------------------------------------------------------------------------------

ASKED = container("a", "1", "1Gi")
SHRINKS = {"name": "a", "allocatedResources": amounts("6", "24Gi"), "resources": {"requests": amounts("5", "20Gi")}}


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (SHRINKS, "6 cpu, 24Gi"),
        (
            {"name": "a", "allocatedResources": amounts("1", "1Gi"), "resources": {"requests": amounts("5", "20Gi")}},
            "5 cpu, 20Gi",
        ),
        ({"name": "a", "allocatedResources": amounts("500m", "8Gi")}, "1 cpu, 8Gi"),
        ({"name": "a", "resources": {"requests": amounts("3", "512Mi")}}, "3 cpu, 1Gi"),
        ({"name": "a", "resources": {}}, "1 cpu, 1Gi"),
        ({"name": "a"}, "1 cpu, 1Gi"),
        ({"name": "other", **{key: SHRINKS[key] for key in ("allocatedResources", "resources")}}, "1 cpu, 1Gi"),
    ],
)
def test_container_counts_max_of_three_sizes(held: Obj, expected: str) -> None:
    assert counted({"containers": [ASKED]}, {"containerStatuses": [held]}) == expected


def test_infeasible_resize_counts_actual_size() -> None:
    grows = {"containers": [container("a", "64", "512Gi")]}
    held = {"name": "a", "allocatedResources": amounts("2", "2Gi"), "resources": {"requests": amounts("1", "3Gi")}}
    for reason, expected in (("Infeasible", "2 cpu, 3Gi"), ("Deferred", "64 cpu, 512Gi")):
        condition = {"type": "PodResizePending", "status": "True", "reason": reason}
        assert counted(grows, {"conditions": [condition], "containerStatuses": [held]}) == expected


def test_old_infeasible_does_not_hide_request() -> None:
    pod = plain_pod("p")
    pod["metadata"]["generation"] = 3
    pod["spec"]["containers"] = [container("a", "4", "4Gi")]
    held = {"name": "a", "allocatedResources": amounts("2", "2Gi")}
    for observed, expected in ((2, "4 cpu, 4Gi"), (3, "2 cpu, 2Gi")):
        condition = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
        pod["status"] = {"conditions": [{**condition, "observedGeneration": observed}], "containerStatuses": [held]}
        assert str(read_pod(pod).requests) == expected


def test_a_pod_with_countless_conditions_is_not_read() -> None:
    pod = plain_pod("p")
    pod["status"]["conditions"] = [{"type": "PodResizePending"}] * 1001
    with pytest.raises(ValueError, match=r"conditions"):
        read_pod(pod)


@pytest.mark.parametrize(
    ("reason", "labels", "expected"),
    [
        ("Deferred", {LABEL_MAKE_ROOM: "true"}, ("62 cpu, 509Gi", True)),
        ("Deferred", {LABEL_MAKE_ROOM: "false"}, ("62 cpu, 509Gi", False)),
        ("Deferred", {}, ("62 cpu, 509Gi", False)),
        ("Infeasible", {LABEL_MAKE_ROOM: "true"}, ("0 cpu, 0", True)),
        ("", {LABEL_MAKE_ROOM: "true"}, ("0 cpu, 0", True)),
    ],
)
def test_what_the_kubelet_has_deferred_is_told_apart(reason: str, labels: Obj, expected: tuple[str, bool]) -> None:
    held = {"name": "a", "allocatedResources": amounts("2", "2Gi"), "resources": {"requests": amounts("1", "3Gi")}}
    condition = {"type": "PodResizePending", "status": "True", "reason": reason}
    pod = plain_pod("p")
    pod["metadata"]["labels"] = labels
    pod["spec"] = {"containers": [container("a", "64", "512Gi")]}
    pod["status"] = {"conditions": [condition], "containerStatuses": [held]}
    found = read_pod(pod)
    assert (str(found.deferred), found.make_room) == expected
    pod["metadata"]["ownerReferences"] = [VM]
    assert (read_pod(pod).deferred, read_pod(pod).make_room) == (ZERO, False), "not for the pod of a VM"


def test_only_sidecar_init_containers_resize() -> None:
    spec = {
        "containers": [ASKED],
        "initContainers": [container("side", "1", "1Gi", restartPolicy="Always"), container("init", "1", "1Gi")],
    }
    held = [{**SHRINKS, "name": "side"}, {**SHRINKS, "name": "init"}]
    assert counted(spec, {"initContainerStatuses": held}) == "7 cpu, 25Gi"


def test_pod_level_requests_are_resized() -> None:
    spec = {"containers": [ASKED], "resources": {"requests": {"cpu": "2"}}, "overhead": amounts("100m", "0")}
    assert counted(spec) == "2100m cpu, 1Gi"
    held: Obj = {"allocatedResources": {"cpu": "3"}, "resources": {"requests": {"cpu": "4"}}}
    assert counted(spec, held) == "4100m cpu, 1Gi"
    assert counted(spec, {"allocatedResources": {"cpu": "3"}}) == "3100m cpu, 1Gi"
    spec["resources"] = {"requests": {"cpu": "9"}}
    condition = {"type": "PodResizePending", "reason": "Infeasible"}
    assert counted(spec, {**held, "conditions": [condition]}) == "4100m cpu, 1Gi"


# Whose it is --------------------------------------------------------------------------------------------------------


# Requests that follow a VM ------------------------------------------------------------------------------------------


def runner_of(status: Obj, spec: Obj | None = None, **resources: Any) -> RunnerRequests | None:
    pod = vm_pod("db", "n1")
    runner = {**pod["spec"]["containers"][0], **({"resources": resources} if resources else {})}
    pod["metadata"] |= {"resourceVersion": "7", "generation": 3}
    pod["spec"] |= {"containers": [container("sidecar", "1", "1Gi"), runner], **(spec or {})}
    pod["status"] = {"qosClass": "Burstable", **status}
    return read_pod(pod).runner


def restarted(policy: str) -> Obj:
    """A guest's container, and whether a resize of its memory restarts it."""
    policies = [{"resourceName": "memory", "restartPolicy": policy}]
    return {"name": "neonvm-runner", "resources": {"requests": amounts("1", "1Gi")}, "resizePolicy": policies}


def asks(cpu: str, memory: str, allocated: Resources | None = None, problem: str = "") -> RunnerRequests:
    return RunnerRequests(Resources.parse(cpu, memory), allocated, problem, "7")


def test_requests_and_allocation_are_known() -> None:
    assert runner_of({}) == asks("100m", "128Mi")
    assert runner_of({}, limits={"neonvm/kvm": "1"}) == asks("0", "0")
    assert runner_of({}, spec={"containers": [restarted("NotRequired")]}) == asks("1", "1Gi")
    held = [{"name": "sidecar"}, {"name": "neonvm-runner", "allocatedResources": amounts("50m", "64Mi")}]
    found = runner_of({"containerStatuses": held})
    assert found == asks("100m", "128Mi", Resources.parse("50m", "64Mi"))
    assert found is not None
    assert found.secured == Resources.parse("50m", "64Mi")


@pytest.mark.parametrize(
    ("observed", "problem"), [({}, "Deferred: no cpu"), ({"observedGeneration": 3}, "Deferred: no cpu")]
)
def test_kubelet_objection_is_known(observed: Obj, problem: str) -> None:
    other = {"type": "Ready", "status": "True"}
    pending = {"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": "no cpu", **observed}
    assert runner_of({"conditions": [other, pending]}) == asks("100m", "128Mi", problem=problem)


def test_old_kubelet_verdict_expires() -> None:
    pending = {"type": "PodResizePending", "status": "True", "reason": "Infeasible", "observedGeneration": 2}
    assert runner_of({"conditions": [pending]}) == asks("100m", "128Mi")


@pytest.mark.parametrize(("observed", "is_seen"), [(None, True), (3, True), (2, False)])
def test_observed_generation_is_known(observed: int | None, *, is_seen: bool) -> None:
    """Kubelets before 1.34 do not say."""
    found = runner_of({"observedGeneration": observed} if observed else {})
    assert found == replace(asks("100m", "128Mi"), is_seen=is_seen)


def managed(manager: str, *names: str, subresource: str = "resize", container: str = "neonvm-runner") -> Obj:
    requests: Obj = {"f:resources": {"f:requests": {f"f:{each}": {} for each in names}}}
    fields = {"f:spec": {"f:containers": {f'k:{{"name":"{container}"}}': requests}}}
    return {"manager": manager, "operation": "Update", "subresource": subresource, "fieldsV1": fields}


@pytest.mark.parametrize(
    ("entries", "by_us"),
    [
        ([managed("autoscale-scheduler", "cpu", "memory")], ("100m", "128Mi")),
        ([managed("autoscale-scheduler", "memory"), managed("kubectl", "cpu")], (0, "128Mi")),
        ([managed("autoscale-scheduler", "cpu", subresource="")], (0, 0)),
        ([managed("autoscale-scheduler", "cpu", container="sidecar"), {"manager": "kubelet"}], (0, 0)),
    ],
)
def test_own_requests_are_known(entries: list[Obj], by_us: Any) -> None:
    pod = vm_pod("db", "n1")
    pod["metadata"]["managedFields"] = entries
    pod["status"] = {"qosClass": "Burstable"}
    found = read_pod(pod).runner
    assert found is not None
    assert found.by_us == Resources.parse(*by_us)


@pytest.mark.parametrize(
    "found",
    [
        runner_of({"qosClass": "BestEffort"}),
        runner_of({"qosClass": "Guaranteed"}),
        runner_of({}, requests=amounts("1", "1Gi"), limits={"memory": "2Gi"}),
        runner_of({}, spec={"resources": {"requests": amounts("1", "1Gi")}}),
        runner_of({}, spec={"containers": [container("sidecar", "1", "1Gi")]}),
        runner_of({}, spec={"containers": [restarted("RestartContainer")]}),
        read_pod(plain_pod("p") | {"status": {"qosClass": "Burstable"}}).runner,
    ],
)
def test_unchangeable_requests_stay(found: object) -> None:
    assert found is None


def test_own_cpu_limit_is_known() -> None:
    """Any other limit is the operator's, and the scheduler does not change that pod."""
    pod = vm_pod("db", "n1")
    pod["metadata"]["managedFields"] = [managed("autoscale-scheduler", "cpu")]
    pod["status"] = {"qosClass": "Burstable"}
    resources = {"requests": amounts("1", "1Gi"), "limits": {"cpu": "1500m", "neonvm/kvm": "1"}}
    pod["spec"]["containers"][0]["resources"] = resources
    assert read_pod(pod).runner is None
    written = pod["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:containers"]['k:{"name":"neonvm-runner"}']
    written["f:resources"]["f:limits"] = {"f:cpu": {}}
    found = read_pod(pod).runner
    assert found is not None
    assert found.cpu_limit == MilliCpu(1500)
    resources["limits"]["memory"] = "2Gi"
    assert read_pod(pod).runner is None


def owned(*owners: Obj, labels: Obj | None = None) -> Obj:
    pod = plain_pod("p", "1", "1Gi", "n1")
    pod["metadata"] |= {"labels": labels or {}, "ownerReferences": list(owners)}
    return pod


DB = ObjectName("default", "db")
VM = owner_of("db", "v-1")
MOVE = owner_of("m", "m-1", "VirtualMachineMigration")


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (owned(VM), (DB, "v-1", None, "")),
        (owned(VM, labels={"vm.neon.tech/name": "other"}), (DB, "v-1", None, "")),
        (owned(labels={"vm.neon.tech/name": "db"}), (None, "", None, "")),
        (owned(VM | {"apiVersion": "example.com/v1"}, labels={"vm.neon.tech/name": "db"}), (None, "", None, "")),
        (owned(owner_of("rs", "r", "ReplicaSet")), (None, "", None, "")),
        (owned(MOVE, labels={"vm.neon.tech/name": "db"}), (DB, "", ObjectName("default", "m"), "m-1")),
        (owned(MOVE), (None, "", ObjectName("default", "m"), "m-1")),
        (owned(MOVE | {"controller": False}, VM), (DB, "v-1", None, "")),
    ],
    ids=[
        "owned by the VM",
        "the owner's name, not the label's",
        "a label alone",
        "a VirtualMachine of another group",
        "another owner",
        "a target",
        "a target without a label",
        "a source",
    ],
)
def test_a_pod_is_its_owners(pod: Obj, expected: tuple[object, ...]) -> None:
    found = read_pod(pod)
    assert (found.vm, found.vm_uid, found.migration, found.migration_uid) == expected


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (vm_pod("db"), True),
        (owned(VM), False),
        (owned(MOVE, labels={"vm.neon.tech/name": "db"}), False),
        (plain_pod("p"), True),
    ],
    ids=["a runner's", "a container of another name", "a target with such a container", "a pod that names no VM"],
)
def test_vm_runs_in_its_container_only(pod: Obj, expected: bool) -> None:
    assert read_pod(pod).has_runner is expected


# What lies around the guest -----------------------------------------------------------------------------------------


def around(**spec: Any) -> str:
    return str(read_pod(owned(VM) | {"spec": spec}).overhead)


def test_overhead_is_all_but_guest_container() -> None:
    side = container("agent", "10m", "48Mi")
    runner = container("neonvm-runner", "500m", "512Mi")
    assert around(containers=[runner, side], overhead=amounts("250m", "300Mi")) == "260m cpu, 348Mi"
    assert around(containers=[side, runner]) == "10m cpu, 48Mi"
    assert around(containers=[container("first", "500m", "512Mi"), side]) == "10m cpu, 48Mi"
    native = side | {"restartPolicy": "Always"}
    assert around(containers=[runner], initContainers=[native, container("init", "9", "9Gi")]) == "10m cpu, 48Mi"
    assert around(containers=[]) == "0 cpu, 0"


def test_pod_without_guest_has_no_overhead() -> None:
    pod = plain_pod("p")
    pod["spec"]["overhead"] = amounts("1", "1Gi")
    assert str(read_pod(pod).overhead) == "0 cpu, 0"


# What cannot be read ------------------------------------------------------------------------------------------------


def test_unreadable_pod_is_partly_known() -> None:
    pod = vm_pod("db", "n1")
    pod["spec"]["containers"] = "garbage"
    with pytest.raises(ValueError, match=r"spec\.containers: expected array, got str"):
        read_pod(pod)
    found = pod_at_most(pod, "because")
    assert (found.uid, found.name, found.vm, found.vm_uid, found.node, found.unreadable, found.finished) == (
        "pod-db",
        ObjectName("default", "db-pod"),
        DB,
        "vm-db",
        "n1",
        "because",
        False,
    )
    assert found.has_runner, "nothing says what it may run"
    assert found.requests == Resources.parse(0, 0)


def test_large_pod_has_bounds() -> None:
    """Anyone may create a pod with 1,001 idle containers. It took all that was free on its node."""
    pod = plain_pod("p")
    pod["spec"] |= {"containers": [container("a", "1m", "1Mi")] * 1001, "overhead": amounts("1", "1Gi")}
    pod["spec"]["initContainers"] = [container("b", "2", "2Gi"), {"name": "c"}]
    pod["status"]["containerStatuses"] = [{"name": "a", "allocatedResources": amounts("500m", "1Gi")}]
    found = pod_at_most(pod, "because")
    assert (str(found.requests), found.is_bounded, found.unreadable) == ("4501m cpu, 5097Mi", True, "because")
    pod["spec"]["containers"][0] = container("a", "x", "1Mi")
    assert not pod_at_most(pod, "because").is_bounded
    many = {"requests": {**amounts("3", "3Gi"), **{f"a/b{n}": "1" for n in range(1000)}}}
    pod["spec"] = {"containers": [{"name": "a", "resources": many}]}
    with pytest.raises(ValueError, match="requests"):
        read_pod(pod)
    assert str(pod_at_most(pod, "because").requests) == "3500m cpu, 4Gi"


def test_large_pod_of_vm_has_bounds() -> None:
    pod = vm_pod("db", "n1")
    side = [container(f"a{n}", "1m", "1Mi") for n in range(1001)]
    runner, spec = pod["spec"]["containers"], pod["spec"]
    runs, idle = (
        pod_at_most({**pod, "spec": {**spec, "containers": listed}}, "because") for listed in ([*runner, *side], side)
    )
    assert (runs.is_bounded, runs.has_runner, idle.has_runner) == (True, True, False)
    assert runs.overhead == runs.requests
    assert str(idle.overhead) == "1001m cpu, 1001Mi"


@pytest.mark.parametrize(
    "broken", [{"containers": 7}, {"containers": [7]}, {"overhead": []}, {"resources": {"requests": 3}}]
)
def test_large_pod_of_another_form_has_no_bound(broken: Obj) -> None:
    pod = plain_pod("p")
    pod["spec"] |= {"containers": [{"name": "a"}] * 1001} | broken
    found = pod_at_most(pod, "because")
    assert not found.is_bounded
    pod["spec"] = {"containers": [{"name": "a", "resources": {"requests": {"cpu": True}}}] * 1001}
    assert not pod_at_most(pod, "because").is_bounded


def test_unreadable_finished_pod_is_finished() -> None:
    assert pod_at_most({"metadata": {"uid": "u"}, "status": {"phase": "Failed"}}, "because").finished


@pytest.mark.parametrize("obj", [{}, {"metadata": 3}, {"metadata": {"ownerReferences": [3, {"kind": 7}]}, "spec": []}])
def test_anything_is_a_pod_at_most(obj: Json) -> None:
    assert pod_at_most(obj, "because").unreadable == "because"


@pytest.mark.parametrize("nested", [{"metadata": {"name": "p", "labels": {"a": 1}}, "spec": {}}])
def test_rule_violations_share_error_type(nested: Json) -> None:
    with pytest.raises(ValueError, match=r"metadata\.labels"):
        read_pod(nested)
    with pytest.raises(ValueError, match="document"):
        decode_pod(b'{"metadata":' * 3000)
