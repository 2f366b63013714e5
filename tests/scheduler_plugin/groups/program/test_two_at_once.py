"""Two processes on one cluster: one acts, the other stands by, and nothing is done twice."""

from __future__ import annotations

from datetime import datetime
from operator import attrgetter

import pytest

from protocol.kubernetes.conditions import condition_of
from protocol.kubernetes.objects import JsonObject, name_of
from protocol.kubernetes.resources import CNPG_CLUSTERS, DEPLOYMENTS, HVPAS, VIRTUAL_MACHINES, VM_GROUPS, Resource
from scheduler_plugin.groups.controllers.group_controller import GroupController
from scheduler_plugin.groups.controllers.policies import (
    DEPENDENCIES,
    DesiredState,
    GroupFacts,
    GroupPolicy,
    PolicyDecision,
)
from scheduler_plugin.groups.core.workload import Workload
from tests.scheduler_plugin.groups.program.cluster import status_of
from tests.scheduler_plugin.groups.program.running import DEPLOYMENT, FOLLOWED, world
from tests.scheduler_plugin.groups.program.test_hvpa import INTERVALS
from tests.scheduler_plugin.groups.program.test_killed import settled, short
from tests.scheduler_plugin.groups.program.test_problem_reports import named
from tests.scheduler_plugin.groups.program.vm_group_story import FOLLOWED_SOON, story


async def test_one_acts_and_the_other_only_looks() -> None:
    async with world(FOLLOWED) as run:
        await settled(run)
        await run.start("second")
        await run.recommend("hvpa-sample", 6, cpu="1500m", memory="1500Mi")
        await run.passes(60)
        first, second = run.cluster.connections
        assert (await run.size())[0] == 5
        assert [short(each) for _, each in second.applied] == []
        assert any("deployments" in each for _, each in first.applied)


async def test_the_second_goes_on_within_fifteen_seconds() -> None:
    async with world(FOLLOWED) as run:
        await settled(run)
        await run.start("second")
        run.cluster.connections[0].is_cut = True
        killed_at = run.clock.now()
        await run.recommend("hvpa-sample", 6, cpu="1500m", memory="1500Mi")
        while (await run.size())[0] == 3:
            await run.passes(0.5)
        assert run.clock.now() - killed_at < 15


async def test_silent_watch_hides_no_member() -> None:
    """A dead connection goes unnoticed for up to 50 s. A successor lists everything before it takes VMs for deleted."""
    async with story(FOLLOWED_SOON) as run:
        first, second = run.cluster.connection(), run.cluster.connection()
        second.mute = "/virtualmachines"
        await run.start(first)
        program = await run.start(second)
        await run.create(replicas=2)
        await run.pass_time(15)
        first.is_cut = True
        await run.pass_time(15)
        assert program.leadership.leads
        assert await run.offered() == ["replica-0", "replica-1"]
        assert condition_of(await run.cluster.get(VM_GROUPS, "shop"), "PrimaryReady")["status"] == "True"


@pytest.mark.parametrize("kind", [*DEPENDENCIES, DEPLOYMENTS], ids=attrgetter("plural"))
async def test_new_leader_waits_for_lists(kind: Resource) -> None:
    """While one list fails, it neither scales nor writes a status; then it does both."""
    async with world(FOLLOWED) as run:
        await settled(run)
        second = await run.start("second")
        first_way, second_way = run.cluster.connections
        first_way.is_cut = True
        second_way.refuse = {f"GET {kind.path()}": 503}
        before = run.cluster.writes()
        await run.passes(20)
        await run.recommend("hvpa-sample", 6, cpu="1500m", memory="1500Mi")
        await run.passes(40)
        assert (second.leadership.leads, run.cluster.writes()) == (True, before)
        second_way.refuse.clear()
        await run.passes(20)
        assert await run.size() == (5, {"cpu": "1100m", "memory": "1100Mi"})


@pytest.mark.parametrize("kind", [VIRTUAL_MACHINES, VM_GROUPS, HVPAS], ids=attrgetter("plural"))
async def test_new_leader_of_vms_waits(kind: Resource) -> None:
    async with story(FOLLOWED_SOON) as run:
        first, second = run.cluster.connection(), run.cluster.connection()
        await run.start(first)
        await run.create(replicas=1)
        await run.start(second)
        first.is_cut, second.refuse = True, {f"GET {kind.path()}": 503}
        before = run.cluster.writes()
        await run.pass_time(8)
        await run.scale(2)
        await run.pass_time(8)
        assert run.cluster.writes() == before
        second.refuse = {}
        await run.pass_time(8)
        assert await run.vms() == {"primary": "primary", "replica-0": "replica", "replica-1": "replica"}


async def test_unlistable_kind_stops_only_its_groups() -> None:
    """Clusters cannot be listed (a webhook of their CRD is down): a successor once scaled nothing at all."""
    async with world(FOLLOWED) as run:
        await settled(run)
        way = run.cluster.connection()
        way.refuse = {f"GET {CNPG_CLUSTERS.path()}": 500}
        second = await run.start("second", way)
        run.cluster.connections[0].is_cut = True
        await run.passes(20)
        await run.recommend("hvpa-sample", 6, cpu="1500m", memory="1500Mi")
        assert await run.size() == (5, {"cpu": "1100m", "memory": "1100Mi"})
        of_cluster = (
            named(INTERVALS, "pg").replace("apps/v1", CNPG_CLUSTERS.api_version).replace("Deployment", "Cluster")
        )
        await run.cluster.make(HVPAS, of_cluster)
        await run.passes(20)
        assert (second.cache.missing, status_of(await run.cluster.get(HVPAS, "pg"))) == (["clusters"], {})
        way.refuse.clear()
        await run.passes(20)
        assert condition_of(await run.cluster.get(HVPAS, "pg"), "AbleToScale")["reason"] == "TargetMissing"


async def test_orderly_end_hands_over_at_once() -> None:
    async with world(FOLLOWED) as run:
        await settled(run)
        second = await run.start("second")
        run.tasks[0].cancel()
        await run.passes(2)
        assert second.leadership.leads
        await run.recommend("hvpa-sample", 6, cpu="1500m", memory="1500Mi")
        assert (await run.size())[0] == 5


async def test_crashing_group_affects_no_other() -> None:
    async with world(FOLLOWED) as run:
        await settled(run)
        controller = run.processes["first"].controllers["Hvpa"]
        assert isinstance(controller, GroupController)
        controller.policy = BreaksOn("hvpa-sample", controller.policy)
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT.replace("resource-consumer", "other"))
        await run.cluster.make(HVPAS, named(INTERVALS, "other").replace("name: resource-consumer", "name: other"))
        await run.passes(0)
        await run.recommend("hvpa-sample", 6)
        await run.recommend("other", 2)
        assert [(await run.size(name))[0] for name in ("resource-consumer", "other")] == [3, 2]
        page = run.processes["first"].page().decode()
        assert 'autoscale_groups_reconciles_total{kind="Hvpa",outcome="failed"}' in page


class BreaksOn:
    """A policy with a mistake that one object brings to light."""

    def __init__(self, name: str, policy: GroupPolicy) -> None:
        self._name = name
        self._policy = policy
        self.kind = policy.kind

    def desired(self, group: JsonObject) -> DesiredState:
        return self._policy.desired(group)

    def decide(self, facts: GroupFacts, workload: Workload, now: datetime) -> PolicyDecision:
        if name_of(facts.group).name == self._name:
            raise ZeroDivisionError
        return self._policy.decide(facts, workload, now)


async def test_hung_holder_writes_nothing() -> None:
    async with world(FOLLOWED) as run:
        await settled(run)
        hung = run.cluster.connections[0]
        hung.is_cut = True
        await run.start("second")
        await run.passes(14)
        hung.is_cut = False
        before = len(hung.applied)
        await run.recommend("hvpa-sample", 6, cpu="1500m", memory="1500Mi")
        await run.passes(30)
        assert (run.processes["first"].leadership.leads, run.processes["second"].leadership.leads) == (False, True)
        assert len(hung.applied) == before
        on_target = [short(each) for each in run.cluster.writes() if "deployments" in each]
        assert on_target == ["PATCH deployments/resource-consumer", "PATCH deployments/resource-consumer/scale"]


async def test_two_holders_write_once() -> None:
    """Even without the Lease, only one of two status writes succeeds, because both name the version that they read."""
    async with world(FOLLOWED) as run:
        await settled(run)
        second = await run.start("second")
        second.leadership._until = run.processes["first"].leadership._until
        await run.recommend("hvpa-sample", 6, cpu="1500m", memory="1500Mi")
        on_target = [short(each) for each in run.cluster.writes() if "deployments" in each]
        assert on_target == ["PATCH deployments/resource-consumer", "PATCH deployments/resource-consumer/scale"]
        assert await run.size() == (5, {"cpu": "1100m", "memory": "1100Mi"})
        assert (await run.cluster.get(DEPLOYMENTS, "resource-consumer"))["kind"] == "Deployment"
        assert len(await run.cluster.every(HVPAS)) == 1
