"""Groups beside HPAs of others on a real API server: what is written, what is put back, and who is fought with.

The API server fills in defaults, spells amounts its own way, keeps ``managedFields``, and asks our policies; the local
one does less of that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import pytest
import yaml

from protocol.names import ANNOTATION_ORIGINAL
from tests.kubernetes.failing.fleet import Obj, until
from tests.kubernetes.failing.stage import Stage
from tests.scheduler_plugin.groups.program.test_attached_hpa import CPU, SIDECAR
from tests.scheduler_plugin.groups.program.test_attached_hpa import HPA as ATTACHED
from tests.scheduler_plugin.groups.program.test_put_back import THEIR_HPA
from tests.scheduler_plugin.groups.program.test_tortoise import DEPLOYMENT, TORTOISE, WORKING
from tests.scheduler_plugin.groups.program.test_two_writers import ONLY_REPLICAS

pytestmark = pytest.mark.kubernetes

DEPLOYMENTS: Final = "/apis/apps/v1/namespaces/default/deployments"
HPAS: Final = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"
TORTOISES: Final = "/apis/autoscaling.mercari.com/v1beta3/namespaces/default/tortoises"
HVPAS: Final = "/apis/autoscaling.k8s.io/v1alpha1/namespaces/default/hvpas"
ARGO: Final = "argocd-controller"


@dataclass(frozen=True, slots=True)
class Guest:
    """A cluster with objects of others, and a replica of ``autoscale-groups``."""

    stage: Stage

    async def make(self, path: str, text: str, kind: str = "") -> Obj:
        found = yaml.safe_load(text)
        if kind:
            found |= {"kind": kind, "apiVersion": path.removeprefix("/apis/").partition("/namespaces")[0]}
        return await self.stage.fleet.create(path, found)

    async def get(self, path: str, name: str) -> Obj:
        found: Obj = (await self.stage.fleet.http.get(f"{path}/{name}")).json()
        return found

    async def spec(self, name: str) -> Obj:
        """The spec of an HPA."""
        found: Obj = (await self.get(HPAS, name))["spec"]
        return found

    async def delete(self, path: str, name: str) -> None:
        await self.stage.fleet.http.delete(f"{path}/{name}")

    async def is_as_it_was(self, before: Obj) -> bool:
        found = await self.get(HPAS, before["metadata"]["name"])
        has_record = ANNOTATION_ORIGINAL in found["metadata"].get("annotations", {})
        return bool(found["spec"] == before["spec"]) and not has_record


@asynccontextmanager
async def guest(stage: Stage) -> AsyncIterator[Guest]:
    found = Guest(stage)
    try:
        yield found
    finally:
        for path in (TORTOISES, HVPAS, HPAS, DEPLOYMENTS):
            await stage.fleet.http.delete(path)


async def test_hpa_of_deleted_tortoise_is_restored(stage: Stage) -> None:
    async with guest(stage) as found:
        await found.make(DEPLOYMENTS, DEPLOYMENT)
        before = await found.make(HPAS, ATTACHED.replace("METRICS", f"{CPU}, {SIDECAR}"))
        await found.make(TORTOISES, TORTOISE)
        await stage.fleet.patch(f"{TORTOISES}/lovely/status", {"status": WORKING})
        ours = await stage.groups(await stage.way())
        await until(ours.leads, "it leads")

        async def is_changed() -> bool:
            spec = await found.spec("web")
            containers = [each.get("containerResource", {}).get("container") for each in spec["metrics"]]
            return (spec["maxReplicas"], containers) == (20, ["istio-proxy", "app"])

        await until(is_changed, "the Tortoise manages the HPA")
        await found.delete(TORTOISES, "lovely")
        await until(lambda: found.is_as_it_was(before), "the HPA is as it was")


async def test_hpa_of_deleted_hvpa_is_restored(stage: Stage) -> None:
    """Its owner reference is not the Hvpa's: a garbage collector would take it."""
    async with guest(stage) as found:
        before = await found.make(HPAS, THEIR_HPA, "HorizontalPodAutoscaler")
        text = DEPLOYMENT.replace("name: web", "name: resource-consumer")
        await found.make(DEPLOYMENTS, text)
        await found.make(HVPAS, ONLY_REPLICAS, "Hvpa")
        ours = await stage.groups(await stage.way())
        await until(ours.leads, "it leads")

        async def is_adopted() -> bool:
            return bool((await found.spec("hvpa-sample"))["scaleTargetRef"]["kind"] == "Hvpa")

        await until(is_adopted, "the Hvpa has adopted the HPA")
        assert "ownerReferences" not in (await found.get(HPAS, "hvpa-sample"))["metadata"]
        await found.delete(HVPAS, "hvpa-sample")
        await until(lambda: found.is_as_it_was(before), "the HPA is as it was")


async def test_overwriting_manager_is_named(stage: Stage) -> None:
    """A tool that applies its manifest again and again, as GitOps does."""
    async with guest(stage) as found:
        await found.make(DEPLOYMENTS, DEPLOYMENT)
        await found.make(HPAS, ATTACHED.replace("METRICS", CPU))
        await found.make(TORTOISES, TORTOISE)
        await stage.fleet.patch(f"{TORTOISES}/lovely/status", {"status": WORKING})
        ours = await stage.groups(await stage.way())
        await until(ours.leads, "it leads")
        theirs = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "web"}}
        theirs["spec"] = {**yaml.safe_load(ATTACHED)["spec"], "metrics": yaml.safe_load(f"[{CPU}]")}

        async def is_named() -> bool:
            if (await found.spec("web"))["maxReplicas"] != 40:
                query = {"fieldManager": ARGO, "force": "true"}
                headers = {"Content-Type": "application/apply-patch+yaml"}
                await stage.fleet.http.patch(f"{HPAS}/web", params=query, headers=headers, json=theirs)
            await asyncio.sleep(1.0)
            status = (await found.get(TORTOISES, "lovely")).get("status", {})
            said = [each["message"] for each in status.get("conditions", ()) if each["type"] == "Contested"]
            return bool(said) and said[0].startswith(f"{ARGO} has overwritten ")

        await until(is_named, "the fight is noticed, and its other side is named", 120.0)
        await found.delete(TORTOISES, "lovely")
