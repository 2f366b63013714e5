"""State that survives a restart of the API server."""

from __future__ import annotations

from pathlib import Path

import httpx2 as httpx

from tests.local.apiserver.running import ApiServerHandle, running_api_server
from tests.plain_http import plain_client


def client_of(handle: ApiServerHandle) -> httpx.AsyncClient:
    return plain_client(base_url=handle.url, headers={"Authorization": f"Bearer {handle.token}"})


async def test_objects_survive_a_restart_and_revisions_go_on(tmp_path: Path) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    async with running_api_server(tmp_path) as handle, client_of(handle) as client:
        made = (await client.post(path, json={"metadata": {"name": "kept"}, "data": {"a": "b"}})).json()
        (await client.post(path, json={"metadata": {"name": "dropped"}})).raise_for_status()
        (await client.delete(f"{path}/dropped")).raise_for_status()
        last = int((await client.get(path)).json()["metadata"]["resourceVersion"])

    async with running_api_server(tmp_path) as handle, client_of(handle) as client:
        listed = (await client.get(path)).json()
        newer = (await client.post(path, json={"metadata": {"name": "later"}})).json()

    assert listed["items"] == [made]
    assert int(listed["metadata"]["resourceVersion"]) == last
    assert int(newer["metadata"]["resourceVersion"]) > last
