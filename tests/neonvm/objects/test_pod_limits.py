"""A pod's limits bound its guest: beyond them the kubelet kills QEMU."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.neonvm.controller.plan import plan
from deploy.neonvm.objects.boot_record import QEMU_OVERHEAD, limit_problems, within_limits
from protocol.kubernetes.objects import Json, child, items, text
from protocol.running_machine import RunningMachine
from protocol.units import Bytes, MilliCpu, Resources
from tests.neonvm.sample_objects import facts, has, runner, virtual_machine

SLOT = Bytes.parse("128Mi")
MACHINE = RunningMachine(MilliCpu.cores(4), Bytes.parse("256Mi"), Bytes.parse("2Gi"))
NAMED: Json = {"podName": "db-x", "extraNetIP": "10.1.0.1"}


def pod(limits: object) -> Json:
    return {"spec": {"containers": [{"name": "beside"}, {"name": "neonvm-runner", "resources": {"limits": limits}}]}}


@pytest.mark.parametrize(
    ("limits", "cpu", "mem", "said"),
    [
        ({}, "4", "2Gi", ""),
        ({"memory": "3Gi", "cpu": 8}, "4", "2Gi", ""),
        ({"autoscaling.neon.tech/guest-devices": "1"}, "4", "2Gi", ""),
        ({"memory": "512Mi"}, "4", "256Mi", "its memory limit of 512Mi, minus 256Mi for QEMU, caps the guest at 256Mi"),
        ({"memory": "2Gi"}, "4", "1792Mi", ", below its maximum of 2Gi"),
        ({"memory": "1000Mi"}, "4", "640Mi", "caps the guest at 640Mi"),
        ({"memory": "400Mi"}, "4", "256Mi", "it may be OOM-killed"),
        ({"cpu": "1500m"}, "1500m", "2Gi", "its CPU limit of 1500m caps the guest below its maximum of 4"),
        ({"cpu": 2}, "2", "2Gi", "its CPU limit of 2"),
        ({"cpu": "much", "memory": True}, "4", "2Gi", ""),
        ({"cpu": "0", "memory": 0}, "4", "2Gi", ""),
        ("none", "4", "2Gi", ""),
    ],
)
def test_machine_is_held_within_limits(limits: object, cpu: str, mem: str, said: str) -> None:
    found = within_limits(MACHINE, pod(limits), SLOT)
    assert (found.cpu_max, found.mem_max) == (MilliCpu.parse(cpu), Bytes.parse(mem))
    assert said in limit_problems(MACHINE, pod(limits), SLOT)
    assert bool(limit_problems(MACHINE, pod(limits), SLOT)) == bool(said)


def test_following_limit_does_not_cap_vm() -> None:
    """Our scheduler limits the container to its reservation, and raises the limit before the VM grows."""
    limits: Any = {"f:resources": {"f:limits": {"f:cpu": {}}}}
    fields = {"f:spec": {"f:containers": {'k:{"name":"neonvm-runner"}': limits}}}
    entry = {"manager": "autoscale-scheduler", "subresource": "resize", "fieldsV1": fields}
    ours: Any = {**pod({"cpu": "1500m"}), "metadata": {"managedFields": [entry]}}
    assert within_limits(MACHINE, ours, SLOT) == MACHINE
    for other in ({**entry, "manager": "kubectl"}, {**entry, "manager": 7}, 7):
        theirs: Any = {**ours, "metadata": {"managedFields": [other]}}
        assert within_limits(MACHINE, theirs, SLOT).cpu_max == MilliCpu(1500)


def test_pod_without_a_guest_limits_nothing() -> None:
    assert within_limits(MACHINE, {}, SLOT) == MACHINE


def test_order_is_capped_by_pod_limit() -> None:
    """A LimitRange's default once allowed a resize to the VM's maximum, and the kubelet killed QEMU without a
    message.
    """
    vm: Any = virtual_machine(NAMED)
    vm["spec"]["guest"]["memorySlots"]["use"] = 8
    limited: Any = runner()
    limited["spec"]["containers"][0]["resources"] = {"limits": {"memory": "3Gi", "cpu": "1"}}
    made = plan(facts(vm, limited, has("1", "2Gi")))
    assert made.desired == Resources.parse("1", "2Gi")
    assert child(made.status, "machine") == {"maxCpus": "1", "minMemory": "1Gi", "maxMemory": "2Gi"}
    said = {text(each, "type"): text(each, "message") for each in items(made.status, "conditions")}
    assert f"minus {QEMU_OVERHEAD} for QEMU, caps the guest at 2Gi" in said["LimitedByPod"]
    assert "RestartRequired" not in said
    free = plan(facts(virtual_machine(NAMED), runner(), has("2", "2Gi")))
    assert "LimitedByPod" not in {text(each, "type") for each in items(free.status, "conditions")}
