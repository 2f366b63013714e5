"""``updateMode: inPlace``: running pods are resized, the template stays; and a VM, whose bounds are written."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from protocol.kubernetes.conditions import condition
from protocol.kubernetes.objects import Json, annotations_of, child, items
from protocol.kubernetes.resources import DEPLOYMENTS, HVPAS, PODS, SERVICE_ACCOUNTS, STATEFUL_SETS, VIRTUAL_MACHINES
from protocol.names import ANNOTATION_BOUNDS, LABEL_ROLE
from tests.scheduler_plugin.groups.program.cluster import condition_of
from tests.scheduler_plugin.groups.program.running import DEPLOYMENT, World, world
from tests.scheduler_plugin.groups.program.test_problem_reports import changed

HVPA = """
apiVersion: autoscaling.k8s.io/v1alpha1
kind: Hvpa
metadata: {name: sizes}
spec:
  updateMode: inPlace
  vpaTemplate: {}
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: resource-consumer}
"""

POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME, labels: {app: resource-consumer}}
spec:
  containers:
  - name: resource-consumer
    image: example.invalid/resource-consumer
    resources: {requests: {cpu: 500m, memory: 500Mi}}
"""

VM = """
apiVersion: vm.neon.tech/v1
kind: VirtualMachine
metadata: {name: db}
spec:
  guest:
    cpus: {min: 1, use: 1, max: 8}
    memorySlotSize: 1Gi
    memorySlots: {min: 1, use: 1, max: 16}
    rootDisk: {image: postgres}
"""

FORBIDDEN = "a policy or webhook forbids it, or no node of this size exists: allow it, or lower the group's maximum"


async def requests(run: World, pod: str) -> Json:
    """Requests of the pod's container."""
    (container,) = items(await run.cluster.get(PODS, pod), "spec", "containers")
    return child(container, "resources", "requests")


@asynccontextmanager
async def begun() -> AsyncIterator[World]:
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        await run.cluster.make(SERVICE_ACCOUNTS, "{metadata: {name: default}}")
        await run.cluster.make(PODS, POD.replace("NAME", "one"))
        await run.cluster.make(HVPAS, HVPA)
        await run.start()
        yield run


async def test_running_pods_resize_then_new_ones() -> None:
    async with begun() as run:
        await run.recommend("sizes", cpu="1500m", memory="1500Mi")
        larger = {"cpu": "1500m", "memory": "1500Mi"}
        assert (await requests(run, "one"), (await run.size())[1]) == (larger, {"cpu": "500m", "memory": "500Mi"})
        await run.cluster.make(PODS, POD.replace("NAME", "two"))
        await run.passes(15)
        assert await requests(run, "two") == larger


async def test_infeasible_resize_is_retried_later() -> None:
    async with begun() as run:
        await run.recommend("sizes", cpu="1500m", memory="1500Mi")
        pending = condition({}, "PodResizePending", "True", "Infeasible", "the node is too small")
        allocated: Json = {"name": "resource-consumer", "allocatedResources": {"cpu": "500m", "memory": "500Mi"}}
        status: Json = {"conditions": [pending], "containerStatuses": [allocated]}
        await run.cluster.patch(PODS, "one", {"status": status}, "status")
        await run.passes(15)
        assert await requests(run, "one") == {"cpu": "500m", "memory": "500Mi"}
        await run.cluster.patch(PODS, "one", {"status": {"conditions": []}}, "status")
        await run.passes(60)
        assert await requests(run, "one") == {"cpu": "500m", "memory": "500Mi"}
        said = condition_of(await run.cluster.get(HVPAS, "sizes"), "PodsResizable")
        assert said == ("False", "Refused", "one cannot be resized: Infeasible: the node is too small")
        await run.passes(300)
        assert await requests(run, "one") == {"cpu": "1500m", "memory": "1500Mi"}
        assert condition_of(await run.cluster.get(HVPAS, "sizes"), "PodsResizable") == ("", "", "")


async def kubelet_says(run: World, has: Json, *conditions: Json) -> None:
    """The kubelet of the pod reports what its container has, and these conditions."""
    container: Json = {"name": "resource-consumer", "allocatedResources": has, "resources": {"requests": has}}
    status: Json = {"conditions": list(conditions), "containerStatuses": [container]}
    await run.cluster.patch(PODS, "one", {"status": status}, "status")
    await run.passes(15)


async def resizable(run: World) -> tuple[str, str, str]:
    """Status, reason and message of the group's condition; empty without it."""
    return condition_of(await run.cluster.get(HVPAS, "sizes"), "PodsResizable")


async def test_failed_memory_shrink_leaves_cpu_free() -> None:
    """CPU grows before memory shrinks. A shrink that ends in Error is withdrawn, and CPU can still grow."""
    async with begun() as run:
        await run.recommend("sizes", cpu="1500m", memory="300Mi")
        assert await requests(run, "one") == {"cpu": "1500m", "memory": "500Mi"}
        had: Json = {"cpu": "1500m", "memory": "500Mi"}
        await kubelet_says(run, had)
        assert await requests(run, "one") == {"cpu": "1500m", "memory": "300Mi"}
        why = "pod memory limit is below its present usage"
        await kubelet_says(run, had, condition({}, "PodResizeInProgress", "True", "Error", why))
        await kubelet_says(run, had)
        assert await resizable(run) == ("False", "Refused", f"one cannot be resized: Error: {why}")
        await run.recommend("sizes", cpu="2", memory="300Mi")
        await run.passes(15)
        assert await requests(run, "one") == {"cpu": "2", "memory": "500Mi"}
        await kubelet_says(run, {"cpu": "2", "memory": "500Mi"})
        await run.passes(300)
        assert await requests(run, "one") == {"cpu": "2", "memory": "300Mi"}
        assert await resizable(run) == ("", "", "")


async def test_refused_withdrawal_backs_off() -> None:
    """Kubernetes 1.33 does not lower memory limits: then a resize that waits cannot be withdrawn either."""
    async with begun() as run:
        await run.recommend("sizes", cpu="1500m", memory="1500Mi")
        way = run.cluster.connections[0]
        way.refuse = {"pods/one/resize": 422}
        asked = len(way.asked)
        waits = condition({}, "PodResizePending", "True", "Deferred", "not enough memory")
        await kubelet_says(run, {"cpu": "500m", "memory": "500Mi"}, waits)
        for _ in range(40):
            await run.passes(15)
        assert 3 <= len([call for call in way.asked[asked:] if call.path.endswith("pods/one/resize")]) <= 7
        said = condition_of(await run.cluster.get(HVPAS, "sizes"), "PodsResizable")
        assert said == ("False", "Refused", "one cannot be resized: 422: no")


async def test_resize_carried_out_after_all_ends_hold() -> None:
    """The kubelet carries out a resize that it had reported as infeasible, because the withdrawal was refused."""
    async with begun() as run:
        await run.recommend("sizes", cpu="1500m", memory="1500Mi")
        run.cluster.connections[0].refuse = {"pods/one/resize": 422}
        had: Json = {"cpu": "500m", "memory": "500Mi"}
        await kubelet_says(run, had, condition({}, "PodResizePending", "True", "Infeasible", "the node is too small"))
        await kubelet_says(run, had)
        assert await resizable(run) == ("False", "Refused", "one cannot be resized: 422: no")
        await kubelet_says(run, {"cpu": "1500m", "memory": "1500Mi"})
        assert await resizable(run) == ("", "", "")
        run.cluster.connections[0].refuse.clear()
        await run.recommend("sizes", cpu="3", memory="3000Mi")
        assert await requests(run, "one") == {"cpu": "3", "memory": "3000Mi"}


async def test_accepted_resize_ends_count_of_refusals() -> None:
    async with begun() as run:
        way = run.cluster.connections[0]
        way.refuse = {"pods/one/resize": 403}
        await run.recommend("sizes", cpu="1500m", memory="1500Mi")
        for _ in range(80):
            await run.passes(15)
        way.refuse.clear()
        for _ in range(30):
            await run.passes(15)
        assert await requests(run, "one") == {"cpu": "1500m", "memory": "1500Mi"}
        for _ in range(100):
            await run.passes(15)
        way.refuse = {"pods/one/resize": 403}
        await run.recommend("sizes", cpu="3", memory="3000Mi")
        assert (await resizable(run))[0] == "False"
        way.refuse.clear()
        await run.passes(15)
        await run.passes(15)
        assert await requests(run, "one") == {"cpu": "3", "memory": "3000Mi"}


async def test_repeated_infeasible_resize_waits_longer() -> None:
    """A retry that the kubelet has not judged yet is no success, and neither is a smaller size in between."""
    async with begun() as run:
        large, had = {"cpu": "1500m", "memory": "1500Mi"}, {"cpu": "500m", "memory": "500Mi"}
        await run.recommend("sizes", cpu="1500m", memory="1500Mi")
        infeasible = condition({}, "PodResizePending", "True", "Infeasible", "the node is too small")
        await kubelet_says(run, dict(had), infeasible)
        await kubelet_says(run, dict(had))
        await run.recommend("sizes", cpu="500m", memory="500Mi")
        await run.passes(15)
        await run.recommend("sizes", cpu="1500m", memory="1500Mi")
        assert await requests(run, "one") == had
        await run.passes(300)
        assert await requests(run, "one") == large
        await run.passes(15)
        await kubelet_says(run, dict(had), infeasible)
        await kubelet_says(run, dict(had))
        await run.passes(500)
        assert await requests(run, "one") == had
        await run.passes(100)
        assert await requests(run, "one") == large


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(409, ("", "", "")), (503, ("False", "Refused", "one cannot be resized: Infeasible: the node is too small"))],
    ids=["conflict", "unknown-outcome"],
)
async def test_conflict_of_withdrawal_records_no_hold(status: int, outcome: tuple[str, str, str]) -> None:
    """After a conflict the objection may be out of date; after an unknown outcome the withdrawal may be written."""
    async with begun() as run:
        await run.recommend("sizes", cpu="1500m", memory="1500Mi")
        run.cluster.connections[0].refuse = {"pods/one/resize": status}
        had: Json = {"cpu": "500m", "memory": "500Mi"}
        await kubelet_says(run, had, condition({}, "PodResizePending", "True", "Infeasible", "the node is too small"))
        await kubelet_says(run, had)
        run.cluster.connections[0].refuse.clear()
        await run.passes(15)
        assert await resizable(run) == outcome


async def test_refused_pod_backs_off_alone() -> None:
    async with begun() as run:
        for name in ("two", "three"):
            await run.cluster.make(PODS, POD.replace("NAME", name))
        way = run.cluster.connections[0]
        way.refuse = {"pods/one/resize": 403}
        await run.recommend("sizes", cpu="1500m", memory="1500Mi")
        larger, old = {"cpu": "1500m", "memory": "1500Mi"}, {"cpu": "500m", "memory": "500Mi"}
        assert [await requests(run, name) for name in ("one", "two", "three")] == [old, larger, larger]
        said = condition_of(await run.cluster.get(HVPAS, "sizes"), "PodsResizable")
        assert said == ("False", "Refused", f"one cannot be resized: 403: no; {FORBIDDEN}")
        await run.passes(15)
        written = len(run.cluster.writes())
        for _ in range(80):
            await run.passes(15)
        tried = [each for each in way.asked if each.path.endswith("pods/one/resize")]
        assert (len(run.cluster.writes()), 6 <= len(tried) <= 9) == (written, True)
        way.refuse.clear()
        for _ in range(30):
            await run.passes(15)
        assert await requests(run, "one") == larger
        assert condition_of(await run.cluster.get(HVPAS, "sizes"), "PodsResizable") == ("", "", "")


async def test_conflicting_pod_blocks_no_other() -> None:
    async with begun() as run:
        await run.cluster.make(PODS, POD.replace("NAME", "two"))
        way = run.cluster.connections[0]
        way.refuse = {"pods/one/resize": 409}
        await run.recommend("sizes", cpu="1500m", memory="1500Mi")
        assert await requests(run, "two") == {"cpu": "1500m", "memory": "1500Mi"}
        way.refuse.clear()
        await run.passes(5)
        assert await requests(run, "one") == {"cpu": "1500m", "memory": "1500Mi"}
        assert condition_of(await run.cluster.get(HVPAS, "sizes"), "PodsResizable") == ("", "", "")


async def test_changed_template_ends_resizes() -> None:
    async with begun() as run:
        await run.recommend("sizes", cpu="1500m", memory="1500Mi")
        container = {"name": "resource-consumer", "image": "new", "resources": {"requests": {"cpu": "1400m"}}}
        body: Json = {"spec": {"template": {"spec": {"containers": [container]}}}}
        await run.cluster.patch(DEPLOYMENTS, "resource-consumer", body)
        await run.passes(15)
        sizes = child(await run.cluster.get(HVPAS, "sizes"), "status", "sizes")
        assert items({"sizes": sizes}, "sizes", "template")[0]["resources"] == {"requests": {"cpu": "1400m"}}


async def test_vm_bounds_are_written_size_kept() -> None:
    async with world() as run:
        await run.cluster.make(VIRTUAL_MACHINES, VM)
        target = {"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "name": "db"}
        await run.cluster.make(HVPAS, changed(HVPA, targetRef=target, updateMode="Template"))
        await run.start()
        await run.recommend("sizes", container="vm", cpu="2", memory="3500Mi")
        vm = await run.cluster.get(VIRTUAL_MACHINES, "db")
        bounds = json.loads(annotations_of(vm)[ANNOTATION_BOUNDS])
        assert bounds["min"] == {"cpu": "2", "mem": "4Gi"}
        assert child(vm, "spec", "guest", "cpus") == {"min": 1, "use": 1, "max": 8}
        await run.passes(15)
        written = len(run.cluster.writes())
        await run.passes(45)
        assert len(run.cluster.writes()) == written


STATEFUL_SET = DEPLOYMENT.replace("Deployment", "StatefulSet").replace("replicas: 1", "replicas: 2\n  serviceName: db")
SIZED = {"small": {"cpu": "500m", "memory": "500Mi"}, "large": {"cpu": "1500m", "memory": "1500Mi"}}


async def sized(run: World) -> tuple[str, ...]:
    """The sizes that the first and the second pod are to have."""
    pods = [await requests(run, f"db-{ordinal}") for ordinal in range(2)]
    return tuple(name for pod in pods for name, amounts in SIZED.items() if pod == amounts)


async def reported(run: World, pod: str, size: str, *conditions: Json) -> None:
    """The pod's kubelet says that it has this size, and what else; its database serves."""
    container: Json = {"name": "resource-consumer", "resources": {"requests": SIZED[size]}}
    ready: Json = {"type": "Ready", "status": "True"}
    status: Json = {"conditions": [ready, *conditions], "containerStatuses": [container]}
    await run.cluster.patch(PODS, pod, {"status": status}, "status")
    await run.passes(15)


@asynccontextmanager
async def pair(first: str, **labels: str) -> AsyncIterator[World]:
    """A StatefulSet of two pods that serve, and whose group resizes them in place; all have the size ``first``."""
    async with world() as run:
        await run.cluster.make(STATEFUL_SETS, STATEFUL_SET)
        await run.cluster.make(SERVICE_ACCOUNTS, "{metadata: {name: default}}")
        for ordinal in range(2):
            await run.cluster.make(PODS, POD.replace("NAME", f"db-{ordinal}"))
        for name, role in labels.items():
            pod = name.replace("_", "-")
            await run.cluster.patch(PODS, pod, {"metadata": {"labels": {LABEL_ROLE: role}}})
        await run.cluster.make(HVPAS, HVPA.replace("kind: Deployment", "kind: StatefulSet"))
        await run.start()
        if first == "large":
            await run.recommend("sizes", None, **SIZED["large"])
        for pod in ("db-1", "db-0", "db-1"):
            await reported(run, pod, first)
        yield run


@pytest.mark.parametrize(
    ("labels", "steps"),
    [({}, [("small", "large"), ("large", "large")]), ({"db_1": "primary"}, [("large", "small"), ("large", "large")])],
    ids=["first-pod-is-primary", "role-by-label"],
)
async def test_standby_grows_before_primary(labels: dict[str, str], steps: list[tuple[str, ...]]) -> None:
    async with pair("small", **labels) as run:
        await run.recommend("sizes", None, **SIZED["large"])
        await run.passes(15)
        before = await sized(run)
        await reported(run, "db-0" if labels else "db-1", "large")
        assert [before, await sized(run)] == steps


async def test_primary_grows_if_standby_cannot() -> None:
    """A standby without room, or that does not serve, holds nothing up."""
    async with pair("small") as run:
        await run.recommend("sizes", None, **SIZED["large"])
        deferred = condition({}, "PodResizePending", "True", "Deferred", "no room")
        await reported(run, "db-1", "small", deferred)
        assert await sized(run) == ("large", "small")
    async with pair("small") as run:
        await run.cluster.patch(PODS, "db-1", {"status": {"conditions": []}}, "status")
        await run.passes(0)
        await run.recommend("sizes", None, **SIZED["large"])
        assert await sized(run) == ("large", "large")


async def test_primary_waits_five_minutes_for_silent_kubelet() -> None:
    """Kubelets before 1.33 neither carry out a resize nor refuse it."""
    async with pair("small") as run:
        await run.recommend("sizes", None, **SIZED["large"])
        await run.passes(285)
        assert await sized(run) == ("small", "large")
        await run.passes(30)
        assert await sized(run) == ("large", "large")


async def test_primary_shrinks_before_standby() -> None:
    async with pair("large") as run:
        await run.recommend("sizes", None, **SIZED["small"])
        assert await sized(run) == ("small", "small")
        resizes = [write.rpartition("/pods/")[2] for write in run.cluster.writes() if write.endswith("/resize")]
        assert resizes[-2:] == ["db-0/resize", "db-1/resize"]
