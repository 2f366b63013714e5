"""A dispute over a field with another writer is detected, reported, paused for longer each time, and ends on its
own.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import msgspec
import pytest
import yaml
from msgspec import structs

from protocol.kubernetes.api import ApiCall
from protocol.kubernetes.objects import Json, child
from protocol.kubernetes.resources import (
    DEPLOYMENTS,
    HORIZONTAL_AUTOSCALERS,
    HVPAS,
    PODS,
    SERVICE_ACCOUNTS,
    TORTOISES,
    VERTICAL_AUTOSCALERS,
    Resource,
)
from scheduler_plugin.groups.controllers.disputes import part_of
from tests.scheduler_plugin.groups.program import running
from tests.scheduler_plugin.groups.program.cluster import condition_of
from tests.scheduler_plugin.groups.program.running import World, world
from tests.scheduler_plugin.groups.program.test_in_place import HVPA, POD, SIZED, pair, requests, sized
from tests.scheduler_plugin.groups.program.test_problem_reports import changed
from tests.scheduler_plugin.groups.program.test_put_back import THEIR_HPA
from tests.scheduler_plugin.groups.program.test_tortoise import DEPLOYMENT, HPA, TORTOISE, WORKING
from tests.scheduler_plugin.groups.program.test_two_writers import ONLY_REPLICAS

ARGO = "argocd-controller"


@dataclass(slots=True)
class Dispute:
    """A group, and another writer that keeps a field of an object at its own value."""

    run: World
    group: tuple[Resource, str]
    object: tuple[Resource, str]
    theirs: Json
    stopped: bool = False

    async def minutes(self, minutes: float) -> int:
        """The other writer checks every five seconds for this many minutes. Returns how often the group wrote the
        object.
        """
        before = len(self._writes())
        for _ in range(int(minutes * 12)):
            if not self.stopped:
                await self.reverted()
            await self.run.passes(5)
        return len(self._writes()) - before

    async def reverted(self) -> None:
        """The other writer applies its manifest, if the object differs."""
        found = await self.run.cluster.get(*self.object)
        resource, name = self.object
        if not _holds(child(found, "spec"), self.theirs):
            body: Json = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": self.theirs}
            await self.run.cluster.request(
                "PATCH",
                resource.path("default", name),
                {**body, "metadata": {"name": name}},
                "application/apply-patch+yaml",
                f"fieldManager={ARGO}&force=true",
            )

    async def said(self) -> tuple[str, str, str]:
        return condition_of(await self.run.cluster.get(*self.group), "Contested")

    def _writes(self) -> list[str]:
        resource, name = self.object
        return [each for each in self.run.cluster.writes() if resource.path("default", name) in each]


def _holds(spec: Json, theirs: Json) -> bool:
    return part_of(spec, theirs) == theirs


@asynccontextmanager
async def over_hpa() -> AsyncIterator[Dispute]:
    """A Tortoise, and a repository that has the HPA's bounds."""
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        await run.cluster.make(HORIZONTAL_AUTOSCALERS, HPA)
        await run.cluster.make(TORTOISES, TORTOISE)
        await run.cluster.patch(TORTOISES, "lovely", {"status": WORKING}, "status")
        dispute = Dispute(run, (TORTOISES, "lovely"), (HORIZONTAL_AUTOSCALERS, "web"), {"minReplicas": 3})
        await dispute.reverted()
        await run.start()
        yield dispute


@asynccontextmanager
async def over_replicas() -> AsyncIterator[Dispute]:
    """An Hvpa, and a repository that has the Deployment's replicas."""
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, running.DEPLOYMENT)
        await run.cluster.make(HVPAS, ONLY_REPLICAS)
        await run.start()
        await run.recommend("hvpa-sample", 5)
        yield Dispute(run, (HVPAS, "hvpa-sample"), (DEPLOYMENTS, "resource-consumer"), {"replicas": 1})


@asynccontextmanager
async def over_requests() -> AsyncIterator[Dispute]:
    """An Hvpa, and a Git repository that also sets the Deployment's requests: each rewrite causes a rollout."""
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, running.DEPLOYMENT)
        await run.cluster.make(HVPAS, changed(HVPA, updateMode="Template"))
        await run.start()
        await run.recommend("sizes", cpu="1", memory="1Gi")
        container = {"name": "resource-consumer", "resources": {"requests": {"cpu": "500m", "memory": "500Mi"}}}
        theirs: Json = {"template": {"spec": {"containers": [container]}}}
        yield Dispute(run, (HVPAS, "sizes"), (DEPLOYMENTS, "resource-consumer"), theirs)


@asynccontextmanager
async def over_adopted() -> AsyncIterator[Dispute]:
    """An Hvpa that has adopted an HPA, and the repository that the HPA comes from."""
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, running.DEPLOYMENT)
        await run.cluster.make(HORIZONTAL_AUTOSCALERS, THEIR_HPA.replace("hvpa-sample", "sizes"))
        await run.cluster.make(HVPAS, changed(HVPA, hpaTemplate={"maxReplicas": 9}))
        dispute = Dispute(run, (HVPAS, "sizes"), (HORIZONTAL_AUTOSCALERS, "sizes"), {"maxReplicas": 5})
        await dispute.reverted()
        await run.start()
        yield dispute


Begin = Callable[[], AbstractAsyncContextManager[Dispute]]


@pytest.mark.parametrize("begin", [over_hpa, over_replicas, over_requests, over_adopted])
async def test_dispute_is_paused_reported_and_ends(begin: Begin) -> None:
    """It was rewritten forty times in ten minutes, and all conditions were fine."""
    async with begin() as dispute:
        assert await dispute.minutes(10) <= 5
        status, reason, message = await dispute.said()
        assert (status, reason) == ("True", "Overwritten")
        assert message.startswith(f"{ARGO} has overwritten ")
        told = [event for event, _ in await dispute.run.events() if event == "Contested"]
        assert len(told) == 1
        assert await dispute.minutes(60) <= 4  # after 5, 10, 20 minutes, and so on
        dispute.stopped = True
        assert await dispute.minutes(70) == 1
        assert await dispute.said() == ("", "", "")


async def test_the_condition_says_what_when_and_whom() -> None:
    async with over_hpa() as dispute:
        await dispute.minutes(2)
        said = (await dispute.said())[2]
        assert said == (
            f"{ARGO} has overwritten minReplicas of HorizontalPodAutoscaler web 3 times: it is not written until "
            "2026-01-01T00:22:10Z; only one of the two may manage it"
        )


async def test_returning_hpa_is_only_writer_of_replicas() -> None:
    """The HPA from Git targets the Deployment. Only it writes the replicas."""
    theirs: Json = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "resource-consumer"}
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, running.DEPLOYMENT)
        await run.cluster.make(HORIZONTAL_AUTOSCALERS, THEIR_HPA)
        await run.cluster.make(HVPAS, ONLY_REPLICAS)
        await run.start()
        hpa = (HORIZONTAL_AUTOSCALERS, "hvpa-sample")
        dispute = Dispute(run, (HVPAS, "hvpa-sample"), hpa, {"scaleTargetRef": theirs})
        await dispute.minutes(3)
        assert (await dispute.said())[0] == "True"
        await run.recommend("hvpa-sample", 5)
        await dispute.minutes(1)
        assert child(await run.cluster.get(*hpa), "spec", "scaleTargetRef") == theirs
        assert (await run.size())[0] == 1
        dispute.theirs = {}
        await dispute.minutes(15)
        assert (await run.size())[0] == 5


async def test_returning_vpa_is_only_writer_of_sizes() -> None:
    """The VPA from Git is in mode Auto. Only it sizes the pods."""
    about = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "resource-consumer"}
    vpa: Json = {"metadata": {"name": "sizes"}, "spec": {"targetRef": about}}
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, running.DEPLOYMENT)
        await run.cluster.make(SERVICE_ACCOUNTS, "{metadata: {name: default}}")
        await run.cluster.make(PODS, POD.replace("NAME", "one"))
        await run.cluster.make(VERTICAL_AUTOSCALERS, yaml.safe_dump(vpa))
        await run.cluster.make(HVPAS, HVPA)
        await run.start()
        theirs: Json = {"updatePolicy": {"updateMode": "Auto"}}
        dispute = Dispute(run, (HVPAS, "sizes"), (VERTICAL_AUTOSCALERS, "sizes"), theirs)
        await dispute.minutes(3)
        await run.recommend("sizes", cpu="1", memory="1Gi")
        await dispute.minutes(1)
        assert (await requests(run, "one"))["cpu"] == "500m"
        dispute.theirs = {}
        await dispute.minutes(15)
        assert (await requests(run, "one"))["cpu"] != "500m"


async def test_what_nobody_disputes_is_still_written() -> None:
    """The repository defines the HPA's bounds; only the Tortoise writes the Deployment's requests."""
    async with over_hpa() as dispute:
        await dispute.minutes(3)
        vertical = [{"containerName": "app", "policy": {"cpu": "Vertical"}}]
        await dispute.run.cluster.patch(TORTOISES, "lovely", {"spec": {"autoscalingPolicy": vertical}})
        row: Json = {"containerName": "app", "target": {"cpu": "4"}, "upperBound": {"cpu": "5"}}
        status: Json = {"recommendation": {"containerRecommendations": [row]}}
        await dispute.run.cluster.patch(VERTICAL_AUTOSCALERS, "tortoise-monitor-lovely", {"status": status}, "status")
        await dispute.minutes(1)
        assert (await dispute.run.size("web"))[1] == {"cpu": "4840m"}


async def test_an_edit_now_and_then_is_no_dispute() -> None:
    async with over_hpa() as dispute:
        for _ in range(6):
            await dispute.reverted()
            dispute.run.clock.jump(3700)
            await dispute.run.passes(20)
            assert child(await dispute.run.cluster.get(*dispute.object), "spec")["minReplicas"] == 5
        assert (await dispute.said())[0] == ""


async def test_a_writer_that_gives_in_ends_the_dispute() -> None:
    """The repository takes over our values: nothing is left to be written."""
    async with over_hpa() as dispute:
        await dispute.minutes(3)
        dispute.theirs = {"minReplicas": 5}
        await dispute.minutes(12)
        assert ((await dispute.said())[0], await dispute.minutes(30)) == ("", 0)


async def test_dispute_with_unknown_writer_is_paused() -> None:
    async with over_hpa() as dispute:
        listed = HORIZONTAL_AUTOSCALERS.path("default")
        dispute.run.cluster.connections[0].refuse[f"GET {listed}"] = 403
        await dispute.minutes(3)
        status, _, message = await dispute.said()
        assert (status, message.partition(" has ")[0]) == ("True", "another writer or a webhook")


async def test_pods_resized_by_another_writer_are_skipped() -> None:
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, running.DEPLOYMENT)
        await run.cluster.make(SERVICE_ACCOUNTS, "{metadata: {name: default}}")
        await run.cluster.make(PODS, POD.replace("NAME", "one"))
        await run.cluster.make(HVPAS, HVPA)
        await run.start()
        await run.recommend("sizes", cpu="1", memory="1Gi")
        theirs: Json = {"name": "resource-consumer", "resources": {"requests": {"cpu": "500m", "memory": "500Mi"}}}
        before = len(run.cluster.writes())
        for _ in range(60):
            if (await requests(run, "one"))["cpu"] != "500m":
                path = PODS.path("default", "one", "resize")
                body: Json = {"spec": {"containers": [theirs]}}
                await run.cluster.request("PATCH", path, body, "application/strategic-merge-patch+json")
            await run.passes(10)
        resizes = [each for each in run.cluster.writes()[before:] if "resize" in each]
        assert len(resizes) <= 5
        said = condition_of(await run.cluster.get(HVPAS, "sizes"), "PodsResizable")
        why = "another writer or a webhook keeps overwriting its sizes"
        assert said == ("False", "Refused", f"one cannot be resized: {why}")


def webhook_with_cpu(part: str, cpu: str) -> Callable[[ApiCall], ApiCall]:
    """An admission webhook that stores another CPU request in patches of paths with ``part``."""

    def alter(call: ApiCall) -> ApiCall:
        if call.method != "PATCH" or part not in call.path or call.body is None:
            return call
        body = re.sub(rb'"cpu":"[^"]+"', f'"cpu":"{cpu}"'.encode(), msgspec.json.encode(call.body))
        return structs.replace(call, body=msgspec.json.decode(body))

    return alter


async def test_write_altered_by_webhook_is_paused() -> None:
    """A webhook caps the requests: each reconcile wrote the template again, with an Event and a change of its time."""
    async with over_requests() as dispute:
        run = dispute.run
        dispute.stopped = True
        run.cluster.connections[0].webhook = webhook_with_cpu("deployments/resource-consumer", "800m")
        await run.recommend("sizes", cpu="2", memory="1Gi")
        assert await dispute.minutes(10) <= 5
        assert (await run.size())[1] == {"cpu": "800m", "memory": "1Gi"}
        assert (await dispute.said())[:2] == ("True", "Overwritten")
        run.cluster.connections[0].webhook = lambda call: call
        await dispute.minutes(130)
        assert ((await run.size())[1]["cpu"], await dispute.said()) == ("2", ("", "", ""))


async def test_standby_altered_by_webhook_blocks_no_primary() -> None:
    """The standby never gets the size that was written, so the primary used to wait for it forever."""
    async with pair("small") as run:
        run.cluster.connections[0].webhook = webhook_with_cpu("pods/db-1/resize", "1")
        await run.recommend("sizes", None, **SIZED["large"])
        for _ in range(8):
            await run.passes(15)
        assert await sized(run) == ("large",)
        resizes = [write for write in run.cluster.writes() if write.endswith("db-1/resize")]
        assert len(resizes) <= 4
