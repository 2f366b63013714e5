"""The definition of VirtualMachineGroups, as an API server serves it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2 as httpx
import pytest_asyncio
import yaml

from protocol.kubernetes.objects import Json, child
from protocol.kubernetes.resources import CUSTOM_RESOURCE_DEFINITIONS, VM_GROUPS
from tests.local.apiserver.running import running_api_server
from tests.scheduler_plugin.groups.objects.sample_group import shop

CRD = Path(__file__).parents[4] / "deploy/kubernetes/crds/virtualmachinegroups.yaml"
MERGE = {"Content-Type": "application/merge-patch+json"}


@pytest_asyncio.fixture
async def api(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """An API server with the definition."""
    async with running_api_server(tmp_path) as server:
        token = {"Authorization": f"Bearer {server.token}"}
        async with httpx.AsyncClient(base_url=server.url, headers=token, trust_env=False) as http:
            answer = await http.post(CUSTOM_RESOURCE_DEFINITIONS.path(), json=yaml.safe_load(CRD.read_text()))
            assert answer.status_code == 201, answer.text
            yield http


def unnamed(body: Json) -> Json:
    metadata = child(body, "metadata")
    return {**body, "metadata": {"name": metadata["name"], "namespace": "default"}}


async def test_a_group_is_scaled_through_its_subresource(api: httpx.AsyncClient) -> None:
    created = (await api.post(VM_GROUPS.path("default"), json=unnamed(shop()))).raise_for_status().json()
    assert (created["spec"]["replicas"], created["spec"]["template"]) == (2, shop()["spec"]["template"])  # type: ignore[index]
    status = {"status": {"replicas": 1, "selector": "autoscaling.neon.tech/group=shop"}}
    path = VM_GROUPS.path("default", "shop")
    (await api.patch(f"{path}/status", json=status, headers=MERGE)).raise_for_status()
    await api.patch(f"{path}/scale", json={"spec": {"replicas": 3}}, headers=MERGE)
    scale = (await api.get(f"{path}/scale")).json()
    assert (scale["spec"], scale["status"]) == (
        {"replicas": 3},
        {"replicas": 1, "selector": "autoscaling.neon.tech/group=shop"},
    )


async def test_impossible_group_is_refused_by_crd(api: httpx.AsyncClient) -> None:
    bad = [
        shop(replicas=-1),
        shop(template={}),
        shop(drain={"gracePeriod": "soon"}),
        {**shop(), "metadata": {"name": "my.shop", "namespace": "default"}},
    ]
    answers = [await api.post(VM_GROUPS.path("default"), json=unnamed(each)) for each in bad]
    assert [answer.status_code for answer in answers] == [422] * 4
