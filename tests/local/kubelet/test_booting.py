"""With what a guest is booted whose VM was edited after its pod was made."""

from __future__ import annotations

from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import NODES, PODS, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.units import Bytes, MilliCpu
from tests.neonvm.runtime_fixture import DB, RuntimeFixture
from tests.neonvm.sample_objects import GI


async def test_machine_of_its_pod_and_size_of_today(runtime: RuntimeFixture) -> None:
    """The scheduler counts what the VM asks for, so a guest never boots with more than that."""
    runtime.extender.full = {"n1", "n2"}
    await runtime.create_vm()
    await runtime.pass_time(2)
    edit = {"cpus": {"max": 16, "use": 3}, "memorySlots": {"min": 1, "max": 32, "use": 16}}
    await runtime.client.merge_patch(VIRTUAL_MACHINES, DB, {"spec": {"guest": edit}})
    runtime.extender.full = set()
    room: Json = {"metadata": {"annotations": {"room": "freed"}}}
    await runtime.client.merge_patch(NODES, ObjectName("", "n1"), room)
    await runtime.pass_time(15)
    (guest,) = runtime.guests.by_pod.values()
    assert (guest.spec.cpu_max, guest.spec.mem_min, guest.spec.mem_max) == (MilliCpu(4000), Bytes(GI), Bytes(8 * GI))
    assert (guest.spec.cpu_use, guest.spec.mem_use) == (MilliCpu(3000), Bytes(8 * GI))


async def test_pod_without_specification_fails(runtime: RuntimeFixture) -> None:
    await runtime.run_vm()
    labels = {"vm.neon.tech/name": "db"}
    spec: Json = {"nodeName": "n1", "containers": [{"name": "neonvm-runner", "image": "x"}]}
    body: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "odd", "labels": labels}, "spec": spec}
    await runtime.client.create(PODS, "default", body)
    await runtime.settle()
    status = (await runtime.client.get(PODS, ObjectName("default", "odd")))["status"]
    assert isinstance(status, dict)
    assert (status["phase"], status["message"]) == (
        "Failed",
        "default/db: nothing to run: argument -vmspec is missing",
    )
