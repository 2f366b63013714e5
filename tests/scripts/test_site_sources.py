"""The programs that a recorder and the page query about a database through a site."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.kubernetes.objects import Json, name_of
from scripts.autoscale.site import NAME_LABEL, SiteSources
from tests.fake_clock import FakeClock
from tests.pod_databases import pod_database
from tests.scheduler_plugin.history.fleet_pictures import account, vm

RUNNING: Json = {**vm(), "status": {"podName": "db-x", "node": "n1"}}


class StillSite:
    """A cluster in which nothing happens."""

    client: Any = None

    async def of_agent(self, found: Json, path: str) -> Json | None:
        asked = name_of(found)
        return account(asked.namespace) if path == "/explain" and asked.name == "db-x" else None


def source(*pods_in: str, pods: tuple[Json, ...] = ()) -> SiteSources:
    """With a pod of the VM's name in each of these namespaces, and other pods."""
    runners: list[Json] = [{"metadata": {"namespace": each, "name": "db-x"}} for each in pods_in]
    found = SiteSources(StillSite(), FakeClock())  # type: ignore[arg-type]  # what is asked of a site
    for pod in (*runners, *pods):
        found.pods.learn(pod)
    found.pods.synced.set()
    return found


async def test_an_agent_is_asked_through_its_pod() -> None:
    found = source("default")
    assert await found.of_vm(RUNNING) == account("default")
    assert await found.of_vm(vm("gone")) is None


@pytest.mark.parametrize(
    ("pods_in", "said"),
    [(("default", "other"), account("default")), (("other", "default"), account("default")), (("other",), None)],
)
async def test_pod_in_other_namespace_explains_no_vm(pods_in: tuple[str, ...], said: Json | None) -> None:
    assert await source(*pods_in).of_vm(RUNNING) == said


AGENT_OF_NODE: Json = {
    "metadata": {"namespace": "kube-system", "name": "agent-n1", "labels": {NAME_LABEL: "autoscaling-agent"}},
    "spec": {"nodeName": "n1"},
}


def asked_of_agents(found: SiteSources) -> list[tuple[str, str]]:
    """Each request to an agent from now on: the pod and the path. Only the agent of the node answers."""
    asked: list[tuple[str, str]] = []

    async def of_agent(pod: Json, path: str) -> Json | None:
        asked.append((str(name_of(pod)), path))
        return account("node") if name_of(pod).name == "agent-n1" else None

    found._site.of_agent = of_agent  # type: ignore[method-assign]  # the agent of the node
    return asked


@pytest.mark.parametrize(
    ("containers", "asked"),
    [
        (["neonvm-runner"], [("kube-system/agent-n1", "/explain/default/db")]),
        (
            ["neonvm-runner", "autoscaler-agent"],
            [("default/db-x", "/explain"), ("kube-system/agent-n1", "/explain/default/db")],
        ),
    ],
)
async def test_only_agents_are_asked(containers: list[str], asked: list[tuple[str, str]]) -> None:
    """A VM's pod without an agent may forward the agent's port to its guest."""
    spec: Json = {"nodeName": "n1", "containers": [{"name": name} for name in containers]}
    runner: Json = {"metadata": {"namespace": "default", "name": "db-x"}, "spec": spec}
    found = source(pods=(runner, AGENT_OF_NODE))
    requests = asked_of_agents(found)
    assert (await found.of_vm(RUNNING), requests) == (account("node"), asked)


async def test_agent_of_the_node_explains_pods() -> None:
    """The pod itself is never asked."""
    pod = pod_database("db-x", "shop")
    found = source(pods=(pod, AGENT_OF_NODE))
    asked = asked_of_agents(found)
    assert await found.of_vm(pod) == account("node")
    assert asked == [("kube-system/agent-n1", "/explain/shop/pod/db-x")]


async def test_new_pods_are_found() -> None:
    found = source()
    assert await found.of_vm(RUNNING) is None
    found.pods.learn({"metadata": {"namespace": "default", "name": "db-x"}})
    assert await found.of_vm(RUNNING) == account("default")
