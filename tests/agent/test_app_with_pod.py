"""The process of a node's agent with a postgres in a pod: with an API server and control groups, without a
scheduler.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from agent.app import run
from agent.settings import read_settings
from deploy.neonvm.network.sockets import free_port
from protocol.runtime.clock import SystemClock
from tests.agent.cgroups.trees import CONTAINER, UID, Layout, Tree
from tests.agent.fake_ports import Lines
from tests.agent.test_app import environment
from tests.local.apiserver.running import running_api_server
from tests.plain_http import plain_client

PODS = "/api/v1/namespaces/default/pods"
MERGE = {"Content-Type": "application/merge-patch+json"}


POD_UID = UID.replace("-", "_")


async def made_pod(url: str, identity: dict[str, str]) -> str:
    """Makes a running pod that has opted in; its UID."""
    resources = {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"memory": "512Mi"}}
    state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    status = {"name": "postgres", "containerID": f"containerd://{CONTAINER}", "state": state, "resources": resources}
    metadata = {
        "name": "pg-1",
        "labels": {"autoscaling.neon.tech/enabled": "true"},
        "annotations": {"autoscaling.neon.tech/bounds": '{"max": {"cpu": 4, "mem": "8Gi"}}'},
    }
    spec = {"nodeName": "node-1", "containers": [{"name": "postgres", "image": "postgres", "resources": resources}]}
    async with plain_client(base_url=url, headers=identity) as http:
        answer = await http.post(PODS, json={"metadata": metadata, "spec": spec})
        answer.raise_for_status()
        body = {"status": {"phase": "Running", "containerStatuses": [status]}}
        (await http.patch(f"{PODS}/pg-1/status", json=body, headers=MERGE)).raise_for_status()
        uid: str = answer.json()["metadata"]["uid"]
        return uid


async def test_pod_is_found_measured_and_explained(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "cgroup", Layout(is_v2=True, is_systemd=True)).make()
    (tmp_path / "explain").write_text("secret")
    async with running_api_server(tmp_path) as server, plain_client() as http:
        (tmp_path / "token").write_text(server.token)
        identity = {"Authorization": f"Bearer {server.token}"}
        uid = await made_pod(server.url, identity)
        # The kubelet names the group by the UID.
        tree.file("", of_pod=True).rename(tree.root / tree.layout.pod.replace(POD_UID, uid.replace("-", "_")))
        port, stop = free_port(), asyncio.Event()
        more = {
            "AGENT_MODE": "node",
            "NODE_NAME": "node-1",
            "CGROUP_ROOT": str(tree.root),
            "KUBERNETES_API_URL": server.url,
            "KUBERNETES_TOKEN_FILE": str(tmp_path / "token"),
            "EXPLAIN_TOKEN_FILE": str(tmp_path / "explain"),
        }
        settings = read_settings([], environment(tmp_path, port, **more))
        with Lines() as log:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(run(settings, SystemClock(), stop))
                await log.says("request to the scheduler failed")
                explained = f"http://127.0.0.1:{port}/explain/default/pod/pg-1"
                known: dict[str, Any] = {}
                while known.get("metrics") is None:
                    await asyncio.sleep(0.05)
                    known = (await http.get(explained, headers={"Authorization": "Bearer secret"})).json()
                database = await http.get(
                    explained.replace("explain", "database"), headers={"Authorization": "Bearer secret"}
                )
                stop.set()
    assert (known["vm"], known["pod"]) == ("default/pod/pg-1", "default/pg-1")
    assert known["size"]["least"] == {"cpu": "250m", "mem": "512Mi"}
    assert (known["metrics"]["mem_total"], known["metrics"]["mem_used"]) == ("512Mi", "200Mi")
    assert known["resize"] == {"objection": None, "pauses": []}
    assert (database.status_code, database.json()) == (
        503,
        {"error": "database status is not available for a database in a pod"},
    )
