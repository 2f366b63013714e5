"""The dashboard's rights match its calls: it reads objects and reviews tokens and access."""

from __future__ import annotations

import asyncio

from scheduler_plugin.dashboard.sources.cluster_sampler import ClusterSampler
from scheduler_plugin.dashboard.sources.http_sources import NodeAgentAddresses
from tests.deploy.test_rights import granted, right
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.dashboard.page_cluster import page, put_pod, put_vm
from tests.scheduler_plugin.fake_cluster import FakeCluster

OF_PODS = {("", "pods", verb) for verb in ("get", "list", "watch")}
"""What the chart adds with ``pods.enabled``; without it the page shows no pods."""


async def test_finds_node_agents_in_own_namespace() -> None:
    calls = FakeCluster()
    calls.is_away = True
    await NodeAgentAddresses(calls, "kube-system", FakeClock()).address("n1")
    assert {right(each.method, each.path, each.query) for each in calls.calls} == granted(
        "Role", "autoscaling-dashboard"
    )


async def test_role_grants_exactly_what_is_used() -> None:
    async with page(on_a_cluster=True) as run:
        put_vm(run.cluster, "db")
        put_pod(run.cluster, "pg-1")
        await settle()
        run.cluster.people = {"clerk": {"default", "default/pods"}}
        await run.sign_in("clerk")
        for name in ("db", "pod/pg-1"):
            assert (await run.http.get(f"/api/vms/default/{name}")).status_code == 200
        looks = ClusterSampler(run.cluster, run.told, run.clock, run.dashboard.telemetry)
        recording = asyncio.ensure_future(looks.run())
        await settle()
        recording.cancel()
        asked = {right(each.method, each.path, each.query) for each in run.cluster.calls}
        watched = {(group, plural, "watch") for group, plural, verb in asked if verb == "list"}
        assert asked | watched == granted("ClusterRole", "autoscaling-dashboard") | OF_PODS
