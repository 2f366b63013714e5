"""A fleet goes from NeonVM's controller to ours and back: VMs run on, and change with their next start (B.11)."""

from __future__ import annotations

import pytest

from tests.kubernetes.failing.fleet import PODS, VMS, Obj, until
from tests.kubernetes.neon.runner_pods import RunnerPod
from tests.kubernetes.neon.stage import Stage
from tests.kubernetes.real_kubernetes import PATIENCE

pytestmark = pytest.mark.kubernetes

AS_NEW: Obj = {"status": {"phase": "", "extraNetIP": "", "extraNetMask": ""}}
"""NeonVM's controller gives addresses to new VMs alone. The pod's name stays, so that it makes no other pod."""


async def status(stage: Stage) -> Obj:
    found: Obj = (await stage.found("db"))["status"]
    return found


async def started_anew(stage: Stage) -> RunnerPod:
    """The guest of the VM's next pod, after its present one was deleted."""
    before = (await status(stage))["podName"]
    await stage.fleet.http.delete(f"{PODS}/{before}")

    async def is_another() -> bool:
        return (await status(stage)).get("podName") not in {before, "", None}

    await until(is_another, "the VM has another pod", PATIENCE)
    return await stage.runs("db")


async def test_vm_changes_controller_at_next_start(stage: Stage) -> None:
    node = await stage.node()
    ours = await stage.our_scheduler(node)
    await stage.our_agent(node, ours)
    await stage.vm("db")
    guest = await stage.runs("db")
    before = await status(stage)

    # To our controller: the guest of NeonVM's runner stays where it is, keeps its address, and follows its load.
    await stage.stacks.pop("neonvm-controller").aclose()
    controller = await stage.our_controller()
    guest.load(3.0)
    await stage.grows("db", "3")
    kept = ("podName", "extraNetIP", "restartCount")
    assert [(await status(stage)).get(key) for key in kept] == [before.get(key) for key in kept]
    guest = await started_anew(stage)
    now = await status(stage)
    assert (now["restartCount"], now["extraNetIP"].startswith("10.111.0.")) == (before.get("restartCount", 0) + 1, True)
    guest.load(2.5)
    await stage.grows("db", "2500m")

    # And back: our pod lets in our controller alone, so the VM keeps its size. It gets one of the other addresses
    # before it starts anew.
    await stage.end(controller)
    await stage.original_controller()
    pod = (await status(stage))["podName"]
    await stage.fleet.patch(f"{VMS}/db/status", AS_NEW)

    async def has_another_address() -> bool:
        return str((await status(stage)).get("extraNetIP", "")).startswith("10.101.")

    await until(has_another_address, "NeonVM's controller has given the VM an address", PATIENCE)
    await stage.runs("db")
    assert (await status(stage))["podName"] == pod
    guest = await started_anew(stage)
    assert (await status(stage))["extraNetIP"].startswith("10.101.")
    guest.load(2.0)
    await stage.grows("db", "2")
    assert guest.refused == []
