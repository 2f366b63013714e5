"""The client of a busy program: it uses its own connections to a real API server, and fails like other clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.kube.client import client_from_kubeconfig
from protocol.kubernetes.api import ApiCall, ApiRefusedError, ApiUnknownError
from protocol.kubernetes.objects import Json, name_of
from protocol.kubernetes.pages import read_event
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import NODES
from protocol.kubernetes.watch_times import WatchTimes, watch_query
from protocol.messages import ObjectName
from protocol.units import Seconds
from tests.local.apiserver.running import running_api_server


def node(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


async def test_a_busy_client_gets_the_same_answers(tmp_path: Path) -> None:
    async with (
        running_api_server(tmp_path) as server,
        client_from_kubeconfig(server.kubeconfig_path, is_busy=True) as client,
    ):
        version = await client.revision(NODES)
        for name in ("a", "b"):
            await client.create(NODES, "", node(name))
        assert [
            name_of(each).name for each in (await client.list(NODES, field_selector="metadata.name=b")).objects
        ] == ["b"]
        labelled = await client.merge_patch(NODES, ObjectName("", "a"), {"metadata": {"annotations": {"zone": "ö"}}})
        assert await client.get(NODES, ObjectName("", "a")) == labelled
        with pytest.raises(ApiRefusedError) as refused:
            await client.get(NODES, ObjectName("", "c"))
        assert refused.value.kind is RefusalKind.NOT_FOUND
        query = watch_query(version, WatchTimes(1, Seconds(10.0)))
        async with client.api.stream(ApiCall("GET", NODES.path(), Seconds(10.0), query=query)) as lines:
            seen = [(event.type, event.name.name) async for line in lines for event in [read_event(line)]]
        assert seen[:3] == [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a")]


async def test_a_server_that_is_away_is_unavailable(tmp_path: Path) -> None:
    async with running_api_server(tmp_path) as server:
        client = client_from_kubeconfig(server.kubeconfig_path, is_busy=True)
        await client.list(NODES)
    async with client:
        with pytest.raises(ApiUnknownError):
            await client.list(NODES)
