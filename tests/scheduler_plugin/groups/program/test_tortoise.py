"""The document's examples of horizontal scaling, end to end: a Tortoise, its HPA and a Deployment in a cluster.

The global configuration of all of them: MinimumMinReplicas 3, PreferredMaxReplicas 10, MaximumCPURequest 5 cores. The
workload requests 2 cores of CPU for each replica, and its policy asks for no less than 1 (MinAllocatedResources). The
test is the HPA controller and the VPA recommender; each step is half an hour.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import ceil

import pytest

from protocol.floors import decode_floor
from protocol.kubernetes.objects import Json, annotations_of, child, integer, items, text
from protocol.kubernetes.resources import (
    DEPLOYMENTS,
    HORIZONTAL_AUTOSCALERS,
    TORTOISES,
    VERTICAL_AUTOSCALERS,
    VIRTUAL_MACHINES,
)
from protocol.names import ANNOTATION_FLOOR
from protocol.units import MilliCpu
from scheduler_plugin.groups.settings import GroupsSettings, parse_settings
from tests.scheduler_plugin.groups.program.cluster import condition_of
from tests.scheduler_plugin.groups.program.running import World, world
from tests.scheduler_plugin.groups.program.test_in_place import VM

SETTINGS = """
tortoise:
  GatheringDataPeriodType: daily
  MinimumMinReplicas: 3
  PreferredMaxReplicas: 10
  MaximumCPURequest: "5"
  MinimumTargetResourceUtilization: 80
  MaximumTargetResourceUtilization: 80
"""

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 10
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: app, image: example.invalid/web, resources: {requests: {cpu: "2"}}}
"""

HPA = """
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web}
spec:
  minReplicas: 3
  maxReplicas: 20
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  metrics:
  - type: ContainerResource
    containerResource: {name: cpu, container: app, target: {type: Utilization, averageUtilization: 80}}
  - type: Resource
    resource: {name: cpu, target: {type: Utilization, averageUtilization: 60}}
  - type: External
    external: {metric: {name: queue}, target: {type: Value, value: "30"}}
"""

TORTOISE = """
apiVersion: autoscaling.mercari.com/v1beta3
kind: Tortoise
metadata: {name: lovely}
spec:
  updateMode: Auto
  targetRefs:
    horizontalPodAutoscalerName: web
    scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  autoscalingPolicy:
  - {containerName: app, policy: {cpu: Horizontal}}
  resourcePolicy:
  - {containerName: app, minAllocatedResources: {cpu: "1"}}
"""

THE_DEPLOYMENT = "apiVersion: apps/v1, kind: Deployment, name: web"

WORKING: Json = {
    "tortoisePhase": "Working",
    "autoscalingPolicy": [{"containerName": "app", "policy": {"cpu": "Horizontal"}}],
    "containerResourcePhases": [
        {
            "containerName": "app",
            "resourcePhases": {"cpu": {"phase": "Working", "lastTransitionTime": "2025-12-01T00:00:00Z"}},
        }
    ],
}
"""The status of a Tortoise that has gathered enough."""


@dataclass(slots=True)
class Day:
    """A Tortoise at work, and the rest of the cluster as this test plays it."""

    run: World

    async def size(self) -> tuple[int, float]:
        """Replicas, and the cores that each requests."""
        found = await self.run.cluster.get(DEPLOYMENTS, "web")
        (container,) = items(found, "spec", "template", "spec", "containers")
        cores = MilliCpu.parse(text(container, "resources", "requests", "cpu")).as_cores
        return integer(found, "spec", "replicas"), cores

    async def bounds(self) -> tuple[int, int]:
        """The HPA's least and most replicas."""
        hpa = await self.run.cluster.get(HORIZONTAL_AUTOSCALERS, "web")
        return integer(hpa, "spec", "minReplicas"), integer(hpa, "spec", "maxReplicas")

    async def needs(self, cores: float, hours: float = 1.5) -> tuple[int, float]:
        """The workload needs this many cores for this long; returns its sizes afterwards."""
        for _ in range(int(hours * 2)):
            await self._step(cores)
        return await self.size()

    async def _step(self, need: float) -> None:
        replicas, _ = await self.size()
        used = need / replicas
        row: Json = {"containerName": "app"}
        row |= {"target": {"cpu": f"{used:.3f}"}, "upperBound": {"cpu": f"{used * 1.2:.3f}"}}
        status: Json = {"recommendation": {"containerRecommendations": [row]}}
        await self.run.cluster.patch(VERTICAL_AUTOSCALERS, "tortoise-monitor-lovely", {"status": status}, "status")
        await self.run.passes(0)
        await self._hpa_controller(need)
        self.run.clock.jump(1800)
        await self.run.passes(0)

    async def _hpa_controller(self, need: float) -> None:
        """The ratio to the target, with a tolerance, within the HPA's bounds."""
        (replicas, cores), (least, most) = await self.size(), await self.bounds()
        ratio = need / replicas / cores / 0.8
        wanted = replicas if abs(ratio - 1) <= 0.1 else ceil(replicas * ratio - 1e-9)
        body: Json = {"spec": {"replicas": max(least, min(most, wanted))}}
        await self.run.cluster.patch(DEPLOYMENTS, "web", body, "scale")
        await self.run.passes(0)


@asynccontextmanager
async def day(replicas: int = 10, **changes: object) -> AsyncIterator[Day]:
    """A Tortoise that has known its workload for long."""
    settings: GroupsSettings = parse_settings(SETTINGS)
    async with world(settings) as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        await run.cluster.patch(DEPLOYMENTS, "web", {"spec": {"replicas": replicas}}, "scale")
        await run.cluster.make(HORIZONTAL_AUTOSCALERS, HPA)
        await run.cluster.make(TORTOISES, TORTOISE)
        await run.cluster.patch(TORTOISES, "lovely", {"spec": dict(changes)})
        await run.cluster.patch(TORTOISES, "lovely", {"status": WORKING}, "status")
        await run.start()
        yield Day(run)


async def test_example_1_reach_preferred_max_replicas() -> None:
    async with day() as found:
        morning = [await found.needs(need) for need in (20, 24, 28, 31)]
        replicas, cores = morning[-1]
        assert (replicas <= 10, cores > 3.8) == (True, True), morning
        evening = [await found.needs(need) for need in (24, 17)]
        assert {size for _, size in evening} == {cores}  # horizontal again: the size stays
        assert evening[-1][0] < 10


async def test_example_2_max_replicas_and_request() -> None:
    async with day() as found:
        for need in (30, 40, 60):
            await found.needs(need, 2.5)
        assert await found.size() == (15, 5)


async def test_example_3_reach_the_minimum_number_of_replicas() -> None:
    async with day(replicas=3) as found:
        assert await found.needs(3.9, 1) == (3, 1.6)  # one step keeps four fifths, and the next comes an hour later
        shrunk = await found.needs(3.9, 1)
        later = [await found.needs(need, 1) for need in (6, 8, 6, 4)]
        assert shrunk[1] == 1.3
        assert later == [(6, 1.3), (8, 1.3), (6, 1.3), (4, 1.3)]  # horizontal again: the size stays


async def test_example_4_minimum_replicas_and_resources() -> None:
    async with day(replicas=3) as found:
        assert await found.needs(0.6, 5) == (3, 1)
        group = await found.run.cluster.get(TORTOISES, "lovely")
        kept = items(group, "status", "kept")
        assert [(each["subject"], each["kept"], each["rule"]) for each in kept] == [("app/cpu", "1", "Bounds")]
        assert condition_of(group, "ScalingLimited")[:2] == ("True", "Bounds")


async def test_it_manages_its_metrics_and_leaves_all_others() -> None:
    async with day() as found:
        await found.needs(16)
        hpa = await found.run.cluster.get(HORIZONTAL_AUTOSCALERS, "web")
        assert [text(each, "type") for each in items(hpa, "spec", "metrics")] == ["ContainerResource", "External"]
        assert await found.bounds() == (4, 16)  # half and twice the replicas of this hour


async def test_crash_loops_raise_no_bounds() -> None:
    """Two of six replicas are ready; the HPA adds more, because their use is high, and they crash as well."""
    async with day(replicas=6) as found:
        await found.needs(9.6)
        before = await found.bounds()
        status: Json = {"status": {"replicas": 6, "readyReplicas": 2}}
        await found.run.cluster.patch(DEPLOYMENTS, "web", status, "status")
        await found.needs(80, 6)
        assert (before, await found.bounds()) == ((3, 12), (3, 12))


async def test_off_writes_nothing_and_says_what_it_would() -> None:
    async with day(updateMode="Off") as found:
        before = len(found.run.cluster.writes())
        await found.needs(28, 3)
        written = [each for each in found.run.cluster.writes()[before:] if "tortoises" not in each]
        assert [each for each in written if "verticalpodautoscalers" not in each] == []
        kept = items(await found.run.cluster.get(TORTOISES, "lovely"), "status", "kept")
        assert {text(each, "rule") for each in kept} == {"UpdateMode"}


async def test_emergency_story_peak_then_return() -> None:
    async with day() as found:
        await found.needs(16)
        await found.run.cluster.patch(TORTOISES, "lovely", {"spec": {"updateMode": "Emergency"}})
        await found.run.passes(15)
        assert await found.bounds() == (16, 16)
        await found.run.cluster.patch(TORTOISES, "lovely", {"spec": {"updateMode": "Auto"}})
        await found.run.passes(30)
        least, most = await found.bounds()
        assert (4 < least < 16, most) == (True, 16)
        for _ in range(40):
            found.run.clock.jump(15)
            await found.run.passes(0)
        assert await found.bounds() == (4, 16)


async def test_a_restart_forgets_nothing() -> None:
    async with day() as found:
        await found.needs(16)
        before = await found.run.cluster.get(TORTOISES, "lovely")
        found.run.cluster.connections[0].is_cut = True
        await found.run.start("second")
        await found.run.passes(15)
        after = await found.run.cluster.get(TORTOISES, "lovely")
        remembered = ("tortoisePhase", "recommendations", "containerResourcePhases")
        assert [child(after, "status").get(name) for name in remembered] == [
            child(before, "status").get(name) for name in remembered
        ]


@pytest.mark.parametrize("is_applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(4))
async def test_kill_at_any_step_writes_once(step: int, is_applied: bool) -> None:
    async with day() as found:
        run = found.run
        await found.needs(16, 0.5)
        way, before = run.cluster.connections[0], len(run.cluster.writes())
        way.cut_at, way.is_applied = way.count + step, is_applied
        await run.cluster.patch(TORTOISES, "lovely", {"spec": {"updateMode": "Emergency"}})
        await run.passes(15)
        assert way.is_cut
        await run.start("second")
        await run.passes(15)
        on_hpa = [each for each in run.cluster.writes()[before:] if "horizontalpodautoscalers" in each]
        assert (len(on_hpa), await found.bounds()) == (1, (20, 20)), on_hpa


async def test_creates_own_hpa() -> None:
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        await run.cluster.make(TORTOISES, TORTOISE.replace("    horizontalPodAutoscalerName: web\n", ""))
        await run.start()
        hpa = await run.cluster.get(HORIZONTAL_AUTOSCALERS, "tortoise-hpa-lovely")
        assert child(hpa, "spec", "scaleTargetRef") == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
        group = await run.cluster.get(TORTOISES, "lovely")
        assert condition_of(group, "AbleToScale")[0] == "True"


async def test_own_hpa_goes_without_horizontal_scaling() -> None:
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        await run.cluster.make(TORTOISES, TORTOISE.replace("    horizontalPodAutoscalerName: web\n", ""))
        await run.start()
        assert len(await run.cluster.every(HORIZONTAL_AUTOSCALERS)) == 1
        vertical = [{"containerName": "app", "policy": {"cpu": "Vertical"}}]
        await run.cluster.patch(TORTOISES, "lovely", {"spec": {"autoscalingPolicy": vertical}})
        await run.passes(15)
        assert await run.cluster.every(HORIZONTAL_AUTOSCALERS) == []


async def test_missing_attached_hpa_is_reported() -> None:
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        await run.cluster.make(TORTOISES, TORTOISE)
        await run.start()
        group = await run.cluster.get(TORTOISES, "lovely")
        said = ("False", "AutoscalerMissing", "HorizontalPodAutoscaler web does not exist")
        assert condition_of(group, "AbleToScale") == said


async def test_vm_floor_comes_from_same_hour() -> None:
    async with world() as run:
        await run.cluster.make(VIRTUAL_MACHINES, VM)
        await run.cluster.patch(VIRTUAL_MACHINES, "db", {"spec": {"guest": {"cpus": {"use": 8}}}})
        manifest = TORTOISE.replace("    horizontalPodAutoscalerName: web\n", "")
        manifest = manifest.replace(THE_DEPLOYMENT, "kind: VirtualMachine, name: db")
        await run.cluster.make(TORTOISES, manifest)
        await run.start()
        await run.cluster.patch(VIRTUAL_MACHINES, "db", {"spec": {"guest": {"cpus": {"use": 1}}}})
        await run.passes(15)
        vm = await run.cluster.get(VIRTUAL_MACHINES, "db")
        assert decode_floor(annotations_of(vm)[ANNOTATION_FLOOR]).size.cpu == MilliCpu.cores(4)


async def test_a_tortoise_says_which_settings_have_no_effect() -> None:
    async with world(parse_settings("tortoise: {FeatureFlags: []}")) as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        await run.cluster.make(HORIZONTAL_AUTOSCALERS, HPA)
        await run.cluster.make(TORTOISES, TORTOISE)
        await run.start()
        said = condition_of(await run.cluster.get(TORTOISES, "lovely"), "ConfigurationIgnored")
        assert said == ("True", "NoEffect", "settings of the global configuration without effect: FeatureFlags")
