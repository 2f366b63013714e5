"""Annotations of VM pods that the original's scheduler reads; it panics if their sizes are missing."""

from __future__ import annotations

import json

from deploy.neonvm.objects.pods import metadata_patch, runner_pod
from deploy.neonvm.objects.vm_spec import machine_of
from protocol.kubernetes.objects import Json, annotations_of, child, labels_of
from tests.neonvm.sample_objects import virtual_machine

RESOURCES = "vm.neon.tech/resources"
OVERCOMMIT = "vm.neon.tech/overcommit"
GRANTS = {
    "autoscaling.neon.tech/scaling-unit": '{"vCPUs":"250m","mem":"1Gi"}',
    "internal.autoscaling.neon.tech/resources-requested": '{"vCPUs":3,"mem":"6Gi"}',
    "internal.autoscaling.neon.tech/resources-approved": '{"vCPUs":"2500m","mem":"4Gi"}',
}


def vm(spec: Json | None = None, **metadata: object) -> Json:
    made = virtual_machine(None, "Always", **metadata)
    return {**made, "spec": {**child(made, "spec"), **(spec or {})}}


def pod(of: Json) -> Json:
    return runner_pod(of, "db-x", machine_of(of).use)


def test_pod_annotations_match_neonvm_controller() -> None:
    assert annotations_of(pod(vm()))[RESOURCES] == (
        '{"cpus":{"min":"500m","max":4,"use":2},"memorySlots":{"min":1,"max":8,"use":2},"memorySlotSize":"1Gi"}'
    )


def test_tools_find_pods_as_neonvms() -> None:
    made = pod(vm(labels={"team": "a"}))
    assert labels_of(made) == {"app.kubernetes.io/name": "NeonVM", "vm.neon.tech/name": "db", "team": "a"}
    assert annotations_of(made)["kubectl.kubernetes.io/default-container"] == "neonvm-runner"
    named = pod(vm(labels={"app.kubernetes.io/name": "shop", "vm.neon.tech/name": "other"}))
    assert labels_of(named) == {"app.kubernetes.io/name": "shop", "vm.neon.tech/name": "db"}


def test_what_the_spec_leaves_out_is_said_too() -> None:
    guest = {"cpus": {"min": "250m"}, "memorySlots": {"max": 4, "use": 2}}
    assert json.loads(annotations_of(pod(vm({"guest": guest})))[RESOURCES]) == {
        "cpus": {"min": "250m", "max": "250m", "use": "250m"},
        "memorySlots": {"min": 1, "max": 4, "use": 2},
        "memorySlotSize": "1Gi",
    }


def test_pod_requests_follow_grants_and_spec() -> None:
    said = {*annotations_of(pod(vm())), *GRANTS, OVERCOMMIT}
    made = annotations_of(pod(vm({"overcommit": {"cpu": "1500m"}}, annotations={**GRANTS, "other": "x"})))
    assert made.keys() == said
    assert {name: made[name] for name in GRANTS} == GRANTS
    assert made[OVERCOMMIT] == '{"cpu":"1500m"}'


def test_a_pod_follows_its_vm_in_that_alone() -> None:
    before = vm(labels={"autoscaling.neon.tech/enabled": "true", "team": "a"}, annotations=GRANTS)
    running = pod(before)
    assert metadata_patch(before, running) == {}
    guest = child(before, "spec", "guest")
    cpus = {**child(guest, "cpus"), "use": "1250m"}
    after = vm(
        {"guest": {**guest, "cpus": cpus}, "overcommit": {"memory": 2}},
        labels={"autoscaling.neon.tech/auto-migration-enabled": "true", "team": "b"},
        annotations={"autoscaling.neon.tech/permit": "{}"},
    )
    assert metadata_patch(after, running) == {
        "labels": {"autoscaling.neon.tech/enabled": None, "autoscaling.neon.tech/auto-migration-enabled": "true"},
        "annotations": {
            **dict.fromkeys(GRANTS),
            RESOURCES: annotations_of(running)[RESOURCES].replace('"use":2}', '"use":"1250m"}', 1),
            OVERCOMMIT: '{"memory":2}',
        },
    }
