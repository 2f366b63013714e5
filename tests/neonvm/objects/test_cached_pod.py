"""The controller caches only the fields of pods that it reads, even of huge pods."""

from __future__ import annotations

import json

from deploy.neonvm.objects.boot_record import boot_record, limit_problems, spec_at_boot, within_limits
from deploy.neonvm.objects.cached_pod import MOST, cached_pod
from deploy.neonvm.objects.owners import is_owned_by, migration_of
from deploy.neonvm.objects.pod_form import RunnerForm, is_open
from deploy.neonvm.objects.pods import metadata_patch, pod_end, runner_pod, usage_annotation
from deploy.neonvm.objects.target_pod import target_pod, with_guest_of
from deploy.neonvm.objects.vm_spec import machine_of
from protocol.kubernetes.conditions import condition_of
from protocol.kubernetes.objects import (
    Json,
    child,
    has_finished,
    is_terminating,
    items,
    labels_of,
    name_of,
    node_of,
    uid_of,
)
from protocol.names import LABEL_VM_NAME, RUNNER_CONTAINER, SCHEDULER_NAME
from protocol.units import Bytes
from tests.neonvm.sample_objects import WANTED, virtual_machine

VM = virtual_machine({"extraNetIP": "10.100.128.7", "phase": "Running"})
MIGRATION: Json = {
    "metadata": {"name": "move", "namespace": "default", "uid": "move-uid"},
    "spec": {"vmName": "db"},
    "status": {"targetPodName": "db-y", "sourceNode": "n1"},
}
DIGEST = f"docker-pullable://images/db@sha256:{'a' * 64}"


def made(*, authorities: str = "PEM", has_run: bool = True, **limits: str) -> Json:
    """A runner pod as the API server returns it, with everything that a kubelet and our scheduler write."""
    pod = RunnerForm("runner:1", authorities=authorities)(VM, runner_pod(VM, "db-x", machine_of(VM).use))
    containers = [
        {**each, "resources": {"limits": limits}} if each["name"] == RUNNER_CONTAINER else each
        for each in items(pod, "spec", "containers")
    ]
    ours: Json = {
        "f:spec": {"f:containers": {'k:{"name":"neonvm-runner"}': {"f:resources": {"f:limits": {"f:cpu": {}}}}}}
    }
    managed = [
        {"manager": SCHEDULER_NAME, "operation": "Update", "subresource": "resize", "fieldsV1": ours},
        {"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:status": {}}},
    ]
    metadata = {
        **child(pod, "metadata"),
        "uid": "u-1",
        "resourceVersion": "7",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    ended = {"exitCode": 1, "message": "the guest ended"}
    return {
        **pod,
        "metadata": {**metadata, "managedFields": managed, "deletionTimestamp": "2026-01-02T00:00:00Z"},
        "spec": {**child(pod, "spec"), "containers": containers, "nodeName": "n1"},
        "status": {
            "phase": "Failed",
            "reason": "Evicted",
            "message": "the node was low on memory",
            "podIP": "10.0.0.7",
            "conditions": [{"type": "Ready", "status": "False"}],
            "containerStatuses": [{"name": RUNNER_CONTAINER, "state": {"terminated": ended}}] if has_run else [],
            "initContainerStatuses": [{"name": "init", "imageID": DIGEST}],
        },
    }


def read(pod: Json) -> list[object]:
    """Fields of a pod that the controller reads."""
    machine = machine_of(VM)
    record = boot_record(pod)
    assert record is not None
    slot = Bytes.parse("1Gi")
    return [
        (name_of(pod), uid_of(pod), labels_of(pod), node_of(pod), has_finished(pod), is_terminating(pod)),
        [child(pod, "metadata")[field] for field in ("resourceVersion", "creationTimestamp")],
        (is_owned_by(pod, VM), migration_of(pod), is_open(pod), pod_end(pod), spec_at_boot(pod)),
        (record, within_limits(record.machine, pod, slot), limit_problems(record.machine, pod, slot)),
        (child(pod, "status")["podIP"], condition_of(pod, "Ready"), metadata_patch(VM, pod)),
        metadata_patch({**VM, "metadata": {**child(VM, "metadata"), "labels": {}}}, pod),
        with_guest_of(RunnerForm("runner:2")(VM, target_pod(MIGRATION, VM, machine.use)), pod),
    ]


def test_what_is_read_of_a_pod_is_cached() -> None:
    for pod in (made(), made(authorities=""), made(has_run=False), made(cpu="1", memory="3Gi")):
        assert read(cached_pod(pod)) == read(pod)
        assert cached_pod(cached_pod(pod)) == cached_pod(pod)
    target = target_pod(MIGRATION, VM, WANTED)
    assert migration_of(cached_pod(target)) == "move"
    usage = usage_annotation(WANTED)
    assert usage in json.dumps(cached_pod(made())).replace("\\", "")


def test_pod_without_label_still_belongs_to_vm() -> None:
    pod = made()
    unlabelled = {**pod, "metadata": {**child(pod, "metadata"), "labels": {}}}
    assert is_owned_by(cached_pod(unlabelled), VM)
    assert boot_record(cached_pod(unlabelled)) == boot_record(pod)


def test_large_pods_of_others_take_little_memory() -> None:
    """Twenty unrelated pods of 1.2 MiB took 500 MiB, the controller's whole limit."""
    bulk = {"containers": [{"name": "c", "env": [{"name": "a"}] * 10_000}], "volumes": [{"name": "v"}] * 10_000}
    identity = {"namespace": "shop", "name": "web", "uid": "u-2", "resourceVersion": "9"}
    assert cached_pod({"metadata": {**identity, "labels": {"app": "web"}}, "spec": bulk}) == {"metadata": identity}
    posing = {"metadata": {**identity, "labels": {LABEL_VM_NAME: "db"}}, "spec": bulk}
    assert len(json.dumps(cached_pod(posing))) < 1000


def test_posing_runners_take_little_memory() -> None:
    """Thirty pods with managed fields in our scheduler's name took all memory of the controller."""
    pod = made()
    entry = items(pod, "metadata", "managedFields")[0]
    fields = {**child(entry, "fieldsV1"), **{f"f:{number}": {} for number in range(10_000)}}
    large: Json = {**pod, "metadata": {**child(pod, "metadata"), "managedFields": [{**entry, "fieldsV1": fields}] * 2}}
    assert cached_pod(large) == cached_pod(pod)
    runner = next(each for each in items(made(cpu="1"), "spec", "containers") if each["name"] == RUNNER_CONTAINER)
    limits = {"cpu": "1", **{f"example.com/{number}": "1" for number in range(10_000)}}
    greedy: Json = {**made(), "spec": {"containers": [{**runner, "resources": {"limits": limits}}]}}
    cached = items(cached_pod(greedy), "spec", "containers")
    assert [child(each, "resources", "limits") for each in cached] == [{"cpu": "1"}]
    states: list[Json] = [{"name": str(number), "type": str(number)} for number in range(2 * MOST)]
    status = child(cached_pod({**pod, "status": {"conditions": states, "containerStatuses": states}}), "status")
    assert [len(items(status, part)) for part in ("conditions", "containerStatuses")] == [MOST, MOST]


def test_runner_with_many_labels_belongs_to_vm() -> None:
    """Otherwise its VM would get a second pod, and two guests would write to one disk."""
    pod = made()
    metadata = child(pod, "metadata")
    labels = {f"l{n}": "" for n in range(2 * MOST)} | labels_of(pod)
    strangers: list[Json] = [{"kind": "VirtualMachine", "name": "other", "uid": f"u-{n}"} for n in range(2 * MOST)]
    owners = [*strangers, *items(pod, "metadata", "ownerReferences")]
    cached = cached_pod({**pod, "metadata": {**metadata, "labels": labels, "ownerReferences": owners}})
    assert is_owned_by(cached, VM)
    assert labels_of(cached)[LABEL_VM_NAME] == "db"
    assert (len(labels_of(cached)), len(items(cached, "metadata", "ownerReferences"))) == (MOST, MOST)
    assert boot_record(cached) == boot_record(pod)
