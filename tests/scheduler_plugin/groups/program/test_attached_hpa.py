"""A Tortoise does not change an attached HPA before it works, and restores it when it is deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import yaml

from protocol.kubernetes.objects import Json, child, items
from protocol.kubernetes.resources import (
    DEPLOYMENTS,
    HORIZONTAL_AUTOSCALERS,
    PODS,
    SERVICE_ACCOUNTS,
    TORTOISES,
    VERTICAL_AUTOSCALERS,
)
from tests.scheduler_plugin.groups.program.running import World, world
from tests.scheduler_plugin.groups.program.test_in_place import POD
from tests.scheduler_plugin.groups.program.test_tortoise import DEPLOYMENT, TORTOISE, WORKING

HPA = """
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web}
spec:
  minReplicas: 3
  maxReplicas: 40
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  behavior: {scaleDown: {stabilizationWindowSeconds: 600}}
  metrics: [METRICS]
"""
CPU = "{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 60}}}"
AMOUNT = '{type: Resource, resource: {name: cpu, target: {type: AverageValue, averageValue: "700m"}}}'
SIDECAR = """{type: ContainerResource, containerResource:
    {name: cpu, container: istio-proxy, target: {type: Utilization, averageUtilization: 80}}}"""
OWN = """{type: ContainerResource, containerResource:
    {name: cpu, container: app, target: {type: Utilization, averageUtilization: 80}}}"""

UNNAMED = TORTOISE.replace(
    """  autoscalingPolicy:
  - {containerName: app, policy: {cpu: Horizontal}}
""",
    "",
)
NAMED = TORTOISE.replace(
    "policy: {cpu: Horizontal}}",
    "policy: {cpu: Horizontal}}\n  - {containerName: istio-proxy, policy: {cpu: Horizontal}}",
)
LIMITS = DEPLOYMENT.replace("requests:", "limits:")
BARE = DEPLOYMENT.replace(', resources: {requests: {cpu: "2"}}', "")


@asynccontextmanager
async def attached(
    metrics: str, tortoise: str = TORTOISE, deployment: str = DEPLOYMENT, status: Json | None = None
) -> AsyncIterator[World]:
    """A Tortoise that has read another owner's HPA once."""
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, deployment)
        await run.cluster.make(HORIZONTAL_AUTOSCALERS, HPA.replace("METRICS", metrics))
        await run.cluster.make(TORTOISES, tortoise)
        if status is not None:
            await run.cluster.patch(TORTOISES, "lovely", {"status": status}, "status")
        await run.start()
        yield run


async def spec(run: World) -> Json:
    return child(await run.cluster.get(HORIZONTAL_AUTOSCALERS, "web"), "spec")


def metrics_of(text: str) -> list[Json]:
    found: list[Json] = yaml.safe_load(f"[{text}]")
    return found


async def recommended(run: World) -> None:
    row: Json = {"containerName": "app", "target": {"cpu": "1"}, "upperBound": {"cpu": "1200m"}}
    status: Json = {"recommendation": {"containerRecommendations": [row]}}
    await run.cluster.patch(VERTICAL_AUTOSCALERS, "tortoise-monitor-lovely", {"status": status}, "status")
    await run.passes(20)


@pytest.mark.parametrize("tortoise", [UNNAMED, TORTOISE, NAMED], ids=["unnamed", "policy", "sidecar named"])
@pytest.mark.parametrize("deployment", [DEPLOYMENT, LIMITS, BARE], ids=["requests", "limits", "bare"])
@pytest.mark.parametrize("metrics", [CPU, AMOUNT, f"{OWN}, {SIDECAR}"], ids=["cpu", "amount", "containers"])
async def test_nothing_is_written_before_working(metrics: str, deployment: str, tortoise: str) -> None:
    """An HPA with 3 to 40 replicas at 60 % had 8 to 8 and no metric after the first reconcile."""
    async with attached(metrics, tortoise, deployment) as run:
        await run.passes(20)
        await recommended(run)
        run.clock.jump(3600)
        await run.passes(20)
        group = await run.cluster.get(TORTOISES, "lovely")
        assert child(group, "status")["tortoisePhase"] == "GatheringData"
        assert [each for each in run.cluster.writes() if "horizontalpodautoscalers" in each] == []


@pytest.mark.parametrize("tortoise", [UNNAMED, TORTOISE, NAMED], ids=["unnamed", "policy", "sidecar named"])
async def test_metrics_of_sidecars_stay(tortoise: str) -> None:
    """An injected sidecar is in no pod template, and only the HPA scales by its metrics."""
    async with attached(f"{OWN}, {SIDECAR}", tortoise, status=WORKING) as run:
        after = await spec(run)
        assert after["maxReplicas"] == 20
        assert items(after, "metrics") == metrics_of(f"{OWN}, {SIDECAR}")


async def test_amount_target_stays_amount() -> None:
    """``averageValue: 700m`` became 70 %."""
    async with attached(AMOUNT, UNNAMED, status=WORKING) as run:
        after = await spec(run)
        assert after["maxReplicas"] == 20
        assert items(after, "metrics") == metrics_of(AMOUNT)


async def test_limits_are_requests_that_nobody_wrote() -> None:
    """If a container has a limit, its pods request that amount, so its metric is managed."""
    async with attached(CPU, UNNAMED, LIMITS, status=WORKING) as run:
        await recommended(run)
        after = await spec(run)
        assert (after["minReplicas"], after["maxReplicas"]) == (5, 20)
        assert [child(each, "containerResource")["container"] for each in items(after, "metrics")] == ["app"]


async def test_requests_of_a_limit_range_come_from_pods() -> None:
    """A LimitRange fills in what the template leaves out, in pods alone."""
    async with attached(CPU, UNNAMED, BARE, status=WORKING) as run:
        untouched = await spec(run)
        await run.cluster.make(SERVICE_ACCOUNTS, "{metadata: {name: default}}")
        await recommended(run)
        assert await spec(run) == untouched  # no pod, no size, nothing to manage
        pod = POD.replace("NAME", "web-1").replace("app: resource-consumer", "app: web")
        await run.cluster.make(PODS, pod.replace("resource-consumer", "app"))
        await run.cluster.patch(TORTOISES, "lovely", {"status": WORKING}, "status")
        await recommended(run)
        assert [child(each, "containerResource")["container"] for each in items(await spec(run), "metrics")] == ["app"]
