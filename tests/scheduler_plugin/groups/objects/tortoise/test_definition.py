"""The definition of Tortoises, as an API server serves it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import httpx2 as httpx
import pytest_asyncio
import yaml

from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import CUSTOM_RESOURCE_DEFINITIONS
from scheduler_plugin.groups.core.tortoise.configuration import Configuration
from scheduler_plugin.groups.core.tortoise.decide import decide
from scheduler_plugin.groups.core.tortoise.tortoise_memory import ObservedAutoscalers, Spec, TortoiseMemory
from scheduler_plugin.groups.objects.tortoise.manifest import parse_tortoise
from scheduler_plugin.groups.objects.tortoise.tortoise_status import read_memory, write_status
from tests.local.apiserver.running import running_api_server
from tests.scheduler_plugin.groups.core.tortoise.cluster_model import recommendation, workload

CRD = Path(__file__).parents[5] / "deploy/kubernetes/crds/tortoises.yaml"
TORTOISES = "/apis/autoscaling.mercari.com/v1beta3/namespaces/default/tortoises"
MERGE = {"Content-Type": "application/merge-patch+json"}
USUAL = Configuration()


@pytest_asyncio.fixture
async def api(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """An API server with the definition."""
    async with running_api_server(tmp_path) as server:
        token = {"Authorization": f"Bearer {server.token}"}
        async with httpx.AsyncClient(base_url=server.url, headers=token, trust_env=False) as http:
            answer = await http.post(CUSTOM_RESOURCE_DEFINITIONS.path(), json=yaml.safe_load(CRD.read_text()))
            assert answer.status_code == 201, answer.text
            yield http


def tortoise(**spec: object) -> Json:
    refs = {"scaleTargetRef": {"kind": "Deployment", "name": "shop"}}
    return {
        "apiVersion": "autoscaling.mercari.com/v1beta3",
        "kind": "Tortoise",
        "metadata": {"name": "lovely", "namespace": "default"},
        "spec": {"targetRefs": refs, **spec},
    }


async def test_a_tortoise_and_its_memory_are_stored_whole(api: httpx.AsyncClient) -> None:
    created = (await api.post(TORTOISES, json=tortoise())).raise_for_status().json()
    assert parse_tortoise(created, USUAL).spec == Spec(USUAL)
    now = datetime(2026, 5, 4, 10, tzinfo=UTC)
    seen = ObservedAutoscalers(None, recommendation(1))
    decision, memory = decide(Spec(USUAL), workload(6, 2), seen, TortoiseMemory.empty(USUAL), now)
    status = {"status": {**write_status(memory, decision), "kept": [], "intent": {"replicas": 3}}}
    stored = (await api.patch(f"{TORTOISES}/lovely/status", json=status, headers=MERGE)).raise_for_status().json()
    assert stored["status"] == status["status"]
    assert read_memory(stored["status"], USUAL) == memory


async def test_impossible_group_is_refused_by_crd(api: httpx.AsyncClient) -> None:
    bad = [
        tortoise(updateMode="on"),
        tortoise(maxReplicas=0),
        tortoise(targetRefs={}),
        tortoise(resourcePolicy=[{"containerName": "app", "minAllocatedResources": {"cpu": "much"}}]),
        tortoise(autoscalingPolicy=[{"containerName": "app", "policy": {"cpu": "Sideways"}}]),
        tortoise(autoscalingPolicy=[{"containerName": "app"}, {"containerName": "app"}]),
    ]
    answers = [await api.post(TORTOISES, json=each) for each in bad]
    assert [answer.status_code for answer in answers] == [422] * len(bad)
