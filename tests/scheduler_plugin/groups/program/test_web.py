"""The program's HTTP responses: health, metrics, and explanations of groups."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx

from protocol.kubernetes.resources import DEPLOYMENTS, HVPAS
from scheduler_plugin.groups.app import assemble
from scheduler_plugin.groups.settings import GroupsSettings
from scheduler_plugin.groups.web import groups_app
from tests.fake_clock import FakeClock
from tests.scheduler_plugin.groups.program.cluster import EmbeddedCluster
from tests.scheduler_plugin.groups.program.running import DEPLOYMENT, FOLLOWED, World, world
from tests.scheduler_plugin.groups.program.test_hvpa import INTERVALS
from tests.scheduler_plugin.groups.program.test_problem_reports import changed, named
from tests.scheduler_plugin.groups.program.vm_group_story import story


@asynccontextmanager
async def asked(run: World) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(groups_app(run.processes["first"]))
    async with httpx.AsyncClient(transport=transport, base_url="http://groups") as client:
        yield client


async def begun(run: World) -> None:
    await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
    await run.cluster.patch(DEPLOYMENTS, "resource-consumer", {"spec": {"replicas": 3}}, "scale")
    await run.cluster.make(HVPAS, INTERVALS)
    await run.start()
    await run.recommend("hvpa-sample", 6, cpu="1500m", memory="1500Mi")
    await run.passes(15)


async def test_healthy_at_once_ready_after_list() -> None:
    clock = FakeClock()
    program = assemble(EmbeddedCluster(clock).connection(), clock, GroupsSettings(), "one")
    transport = httpx.ASGITransport(groups_app(program))
    async with httpx.AsyncClient(transport=transport, base_url="http://groups") as client:
        assert (await client.get("/healthz")).status_code == 200
        away = await client.get("/readyz")
        assert (away.status_code, "deployments" in away.text) == (503, True)


async def test_it_says_whether_it_leads() -> None:
    async with world(FOLLOWED) as run:
        await run.start()
        async with asked(run) as client:
            assert (await client.get("/readyz")).text == "ok, leading\n"
            run.cluster.connections[0].is_cut = True
            await run.passes(10)
            assert (await client.get("/readyz")).text == "ok, standing by\n"


async def test_explain_lists_wish_done_and_kept() -> None:
    async with world() as run:
        await begun(run)
        async with asked(run) as client:
            found: Any = (await client.get("/explain/default/hvpa/hvpa-sample")).json()
            requests = {"cpu": "1100m", "memory": "1100Mi"}
            container = {"name": "resource-consumer", "resources": {"requests": requests}}
            assert found["group"] == "Hvpa default/hvpa-sample"
            assert found["target"] == {
                "name": "Deployment resource-consumer",
                "replicas": 5,
                "ready": 0,
                "containers": [container],
            }
            assert found["recommended"] == {
                "replicas": 6,
                "bounds": {"min": 1, "max": 10},
                "containers": [{"name": "resource-consumer", "cpu": "1500m", "memory": "1500Mi"}],
            }
            assert found["lastScaled"]["replicas"] == {"from": 3, "to": 5}
            assert {each["rule"] for each in found["kept"]} == {"Delay"}
            assert (await client.get("/explain/default/Hvpa/nobody")).status_code == 404
            assert (await client.get("/explain/default/Pod/hvpa-sample")).status_code == 404


async def test_metrics_count_groups_scalings_and_what_stopped_them() -> None:
    async with world() as run:
        await begun(run)
        await run.cluster.make(HVPAS, named(INTERVALS, "another"))
        await run.passes(0)
        async with asked(run) as client:
            page = (await client.get("/metrics")).text
            for line in (
                "autoscale_groups_leading 1.0",
                "autoscale_groups_ready 1.0",
                'autoscale_groups_count{kind="Hvpa"} 2.0',
                'autoscale_groups_count{kind="Tortoise"} 0.0',
                'autoscale_groups_stopped{kind="Hvpa",reason="TargetTaken"} 2.0',
                'autoscale_groups_scalings_total{axis="horizontal",direction="up",kind="Hvpa"} 1.0',
                'autoscale_groups_scalings_total{axis="vertical",direction="up",kind="Hvpa"} 1.0',
                'autoscale_groups_writes_total{outcome="done",what="replicas"} 1.0',
            ):
                assert line in page.splitlines(), line
            await run.cluster.delete(HVPAS, "another")
            await run.passes(0)
            page = (await client.get("/metrics")).text
            assert 'autoscale_groups_stopped{kind="Hvpa",reason="TargetTaken"} 0.0' in page


async def test_explain_says_what_is_missing_or_wrong() -> None:
    async with world() as run:
        await run.cluster.make(HVPAS, INTERVALS)
        await run.cluster.make(HVPAS, changed(named(INTERVALS, "broken"), scaleUpDelay="soon"))
        await run.start()
        async with asked(run) as client:
            waiting: Any = (await client.get("/explain/default/hvpa/hvpa-sample")).json()
            assert waiting["target"] == {"name": "Deployment resource-consumer", "problem": "it does not exist"}
            assert waiting["recommended"] == {"replicas": None, "bounds": None, "containers": []}
            broken: Any = (await client.get("/explain/default/hvpa/broken")).json()
            assert "scaleUpDelay" in broken["problem"]
            await run.cluster.make(DEPLOYMENTS, DEPLOYMENT.replace("cpu: 500m", "cpu: much"))
            await run.passes(0)
            unread: Any = (await client.get("/explain/default/hvpa/hvpa-sample")).json()
            assert "requests.cpu" in unread["target"]["problem"]


async def test_explain_reports_unreadable_vpa() -> None:
    async with world() as run:
        await begun(run)
        await run.recommend("hvpa-sample", cpu="a lot")
        async with asked(run) as client:
            found: Any = (await client.get("/explain/default/hvpa/hvpa-sample")).json()
            assert "target.cpu" in found["recommended"]["containers"][0]["problem"]


async def test_explain_lists_vm_group_members() -> None:
    async with story() as run:
        program = await run.start()
        await run.create(replicas=1, scaling={"maxReplicas": 2})
        await run.pass_time(6)
        transport = httpx.ASGITransport(groups_app(program))
        async with httpx.AsyncClient(transport=transport, base_url="http://groups") as client:
            found: Any = (await client.get("/explain/default/virtualmachinegroup/shop")).json()
            assert [each["name"] for each in found["members"]] == ["shop-primary", "shop-replica-0"]
            assert found["scaling"]["replicas"] == 1
            assert (await client.get("/explain/default/virtualmachinegroup/none")).status_code == 404
