"""A leader is stopped (SIGSTOP) between renewing its Lease and sending a write, and wakes after a successor took over.

Whatever write it sends then is refused, or changes nothing that lasts.
"""

from __future__ import annotations

import pytest

from protocol.kubernetes.objects import Json, child, text
from protocol.kubernetes.resources import (
    DEPLOYMENTS,
    HORIZONTAL_AUTOSCALERS,
    HVPAS,
    SERVICES,
    TORTOISES,
    VERTICAL_AUTOSCALERS,
    VIRTUAL_MACHINES,
    VM_GROUPS,
)
from protocol.names import ANNOTATION_FLOOR
from tests.scheduler_plugin.groups.program import test_tortoise
from tests.scheduler_plugin.groups.program.cluster import condition_of
from tests.scheduler_plugin.groups.program.running import DEPLOYMENT, FOLLOWED, World, world
from tests.scheduler_plugin.groups.program.test_hvpa import INTERVALS
from tests.scheduler_plugin.groups.program.test_in_place import VM
from tests.scheduler_plugin.groups.program.test_killed import STEPS, SUCCESSION, settled, short
from tests.scheduler_plugin.groups.program.test_vm_groups import succeeded
from tests.scheduler_plugin.groups.program.vm_group_story import FOLLOWED_SOON, Story, story, with_sessions

CONFLICT, GONE = 409, 404


async def specs(run: World | Story) -> list[Json]:
    """Specs of all objects that groups write."""
    kinds = (DEPLOYMENTS, HORIZONTAL_AUTOSCALERS, VERTICAL_AUTOSCALERS, VIRTUAL_MACHINES, SERVICES)
    found = [each for kind in kinds for each in await run.cluster.every(kind)]
    return [{"name": text(each, "metadata", "name"), "spec": each["spec"]} for each in found]


@pytest.mark.parametrize("step", range(len(STEPS)), ids=[each.replace("/", " ") for each in STEPS])
async def test_late_scaling_writes_conflict(step: int) -> None:
    async with world(FOLLOWED) as run:
        await settled(run)
        before, stopped = len(run.cluster.writes()), run.cluster.connections[0]
        stopped.cut_at = stopped.count + step
        await run.recommend("hvpa-sample", 6, cpu="1500m", memory="1500Mi")
        await run.start("second")
        await run.passes(SUCCESSION)
        there = await specs(run)
        assert stopped.held is not None
        assert short(f"{stopped.held.method} {stopped.held.path}") == STEPS[step]
        assert await stopped.send_late() == CONFLICT  # of the event too: it has a name that says what
        await run.passes(15)
        on_target = [short(each) for each in run.cluster.writes()[before:] if "deployments" in each]
        assert (await specs(run), len(on_target), await run.size()) == (
            there,
            2,
            (5, {"cpu": "1100m", "memory": "1100Mi"}),
        )


@pytest.mark.parametrize("step", [0, 1])
async def test_late_hpa_or_vpa_creation_conflicts(step: int) -> None:
    async with world(FOLLOWED) as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        await run.cluster.make(HVPAS, INTERVALS)
        stopped = run.cluster.connection()
        stopped.cut_at = step
        await run.start("first", stopped)
        await run.start("second")
        await run.passes(SUCCESSION)
        there = await specs(run)
        assert stopped.held is not None
        assert (stopped.held.method, await stopped.send_late()) == ("POST", CONFLICT)
        await run.passes(15)
        assert await specs(run) == there


async def test_late_unwanted_hpa_is_deleted() -> None:
    async with test_tortoise.day() as found:
        run = found.run
        own = test_tortoise.TORTOISE.replace("    horizontalPodAutoscalerName: web\n", "").replace("lovely", "other")
        await run.cluster.make(DEPLOYMENTS, test_tortoise.DEPLOYMENT.replace("name: web", "name: other"))
        stopped = run.cluster.connections[0]
        stopped.refuse = {"POST /apis/autoscaling/v2": 429}
        await run.cluster.make(TORTOISES, own.replace("Deployment, name: web", "Deployment, name: other"))
        stopped.refuse.clear()
        stopped.cut_at = stopped.count
        await run.passes(5)
        assert stopped.held is not None
        await run.start("second")
        vertical = [{"containerName": "app", "policy": {"cpu": "Vertical"}}]
        await run.cluster.patch(TORTOISES, "other", {"spec": {"autoscalingPolicy": vertical}})
        await run.passes(SUCCESSION)
        there = await specs(run)
        await stopped.send_late()
        await run.passes(30)
        assert await specs(run) == there


async def test_late_floor_write_conflicts() -> None:
    async with world(FOLLOWED) as run:
        await run.cluster.make(VIRTUAL_MACHINES, VM.replace("use: 1", "use: 4"))
        stopped = run.cluster.connection()
        stopped.cut_at = 0
        target = "apiVersion: vm.neon.tech/v1, kind: VirtualMachine, name: db"
        spec = f"{{updateMode: Emergency, targetRefs: {{scaleTargetRef: {{{target}}}}}}}"
        await run.cluster.make(TORTOISES, f"{{metadata: {{name: db}}, spec: {spec}}}")
        await run.start("first", stopped)
        await run.start("second")
        await run.passes(SUCCESSION)
        assert stopped.held is not None
        body = stopped.held.body or {}
        assert ANNOTATION_FLOOR in child(body, "metadata", "annotations")
        assert await stopped.send_late() == CONFLICT


async def test_late_vm_group_writes_are_harmless() -> None:
    """Each process stops at its second write and is succeeded; in the end all of them wake at once."""
    async with story(FOLLOWED_SOON) as run:
        await run.create(replicas=1)
        await succeeded(run, is_applied=False, seconds=32)
        await run.scale(2)
        await succeeded(run, is_applied=False, seconds=24)
        run.databases.said.update({"shop-replica-1": with_sessions(0), "shop-replica-0": with_sessions(3)})
        await run.scale(1)
        await succeeded(run, is_applied=False, seconds=32)
        await run.start()
        await run.pass_time(12)
        there, vms = await specs(run), await run.vms()
        late = [way for way in run.cluster.connections if way.held is not None]
        answers = [(way.held.method, await way.send_late()) for way in late if way.held is not None]
        assert vms == {"primary": "primary", "replica-0": "replica"}
        assert {method for method, _ in answers} == {"POST", "PATCH"}
        assert {status for method, status in answers if method != "POST"} <= {CONFLICT, GONE}
        await run.pass_time(20)
        assert (await specs(run), await run.vms(), await run.offered()) == (there, vms, ["replica-0"])


async def test_reclaimed_replica_is_not_deleted() -> None:
    async with story(FOLLOWED_SOON) as run:
        await run.create(replicas=2)
        stopped = run.cluster.connection()
        stopped.cut_on = "DELETE"
        await run.start(stopped)
        await run.pass_time(6)
        run.databases.said.update({"shop-replica-1": with_sessions(0), "shop-replica-0": with_sessions(3)})
        await run.scale(1)
        await run.pass_time(9)
        assert stopped.held is not None
        await run.scale(2)
        await run.start()
        await run.pass_time(9)
        assert await run.offered() == ["replica-0", "replica-1"]
        assert await stopped.send_late() == CONFLICT
        await run.pass_time(3)
        assert await run.offered() == ["replica-0", "replica-1"]


async def test_late_primary_gets_no_replicas() -> None:
    async with story(FOLLOWED_SOON) as run:
        stopped = run.cluster.connection()
        stopped.cut_at = 0
        await run.create(replicas=1)
        await run.start(stopped)
        await run.start()
        await run.pass_time(12)
        assert stopped.held is not None
        assert stopped.held.path == VIRTUAL_MACHINES.path("default")
        await run.cluster.delete(VIRTUAL_MACHINES, "shop-primary")
        await run.pass_time(3)
        assert await stopped.send_late() == 200
        await run.pass_time(20)
        group = await run.cluster.get(VM_GROUPS, "shop")
        assert condition_of(group, "PrimaryReady")[:2] == ("False", "PrimaryMissing")
        assert (await run.offered(), (await run.vms())["replica-0"]) == (["replica-0"], "replica")
