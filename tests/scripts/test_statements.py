"""Diagnosis of a failed demo from its VMs: the guest or the connection to it."""

from typing import cast

import httpx2 as httpx

from deploy.kube.client import ApiClient
from protocol.kubernetes.objects import Json, name_of
from protocol.runtime.kubernetes.http_api import HttpApi
from scripts.autoscale.demonstration.statements import statement, statements
from scripts.autoscale.site import Site
from tests.pod_databases import pod_database

VM: Json = {
    "metadata": {"namespace": "default", "name": "demo"},
    "spec": {"guest": {"cpus": {"max": 4}, "memorySlots": {"max": 8}}},
    "status": {"phase": "Running", "node": "node-1", "podName": "demo-7", "cpus": "1500m", "memorySize": "512Mi"},
}
EXPLAINED: Json = {
    "because": "the page cache needs 512Mi",
    "metrics": {"cores_busy": 0.1, "cores_in_iowait": 0.0, "mem_stall": None, "mem_used": "90Mi"},
    "troubles": [{"with_": "guest", "reason": "no response within 3 s"}],
}
DATABASE: Json = {"standby": False, "sessions": 8, "oldestTransactionSeconds": 80.5}


def test_responding_guest_with_waiting_clients_blames_network() -> None:
    assert statement(VM, EXPLAINED, DATABASE) == (
        "demo: Running on node-1, 1500m CPU, 512Mi; "
        "the agent saw 0.1 CPUs busy, 0.0 waiting for the disk, 90Mi used; "
        "its size: the page cache needs 512Mi; guest: no response within 3 s; "
        "the database has 8 sessions, 80.5 s since the oldest transaction began"
    )


def test_a_pod_speaks_through_its_agent_alone() -> None:
    assert statement(pod_database(), EXPLAINED, None) == (
        "pg-1: Running on n1, 1 CPU, 1Gi; the agent saw 0.1 CPUs busy, 0.0 waiting for the disk, 90Mi used; "
        "its size: the page cache needs 512Mi; guest: no response within 3 s"
    )


def test_who_gives_no_answer_is_named() -> None:
    assert statement(VM, EXPLAINED, None).endswith("; guest: no response within 3 s; the database does not respond")
    assert statement({"metadata": {"name": "new"}}, None, None) == (
        "new: Pending on no node, ? CPU, ?; the agent does not respond; the database does not respond"
    )
    assert statement(VM, {}, DATABASE).startswith(
        "demo: Running on node-1, 1500m CPU, 512Mi; the agent saw nothing yet"
    )


POD: Json = {
    "metadata": {"namespace": "default", "name": "demo-7"},
    "spec": {"nodeName": "node-1"},
}
AGENT: Json = {
    "metadata": {
        "namespace": "autoscaling",
        "name": "agent-1",
        "labels": {"app.kubernetes.io/name": "autoscaling-agent"},
    },
    "spec": {"nodeName": "node-1"},
}


class Asked:
    """A site with one agent, which serves a whole node."""

    def __init__(self, status: int = 200) -> None:
        self._status, self._has_begun = status, False
        self.client = ApiClient(
            HttpApi(httpx.AsyncClient(base_url="http://api", transport=httpx.MockTransport(self._answer)), lambda: None)
        )

    def _answer(self, request: httpx.Request) -> httpx.Response:
        found = [VM] if request.url.path.endswith("/virtualmachines") else [POD, AGENT]
        return httpx.Response(self._status, json={"metadata": {"resourceVersion": "1"}, "items": found})

    async def of_agent(self, pod: Json, path: str) -> Json | None:
        if name_of(pod).name != "agent-1":
            return None
        if path == "/database/default/demo" and not self._has_begun:
            self._has_begun = True
            return None
        return {"/explain/default/demo": EXPLAINED, "/database/default/demo": DATABASE}.get(path)


async def test_statements_wait_for_slow_databases() -> None:
    assert await statements(cast("Site", Asked())) == [statement(VM, EXPLAINED, DATABASE)]


async def test_unresponsive_cluster_has_no_statements() -> None:
    assert await statements(cast("Site", Asked(status=403))) == []
