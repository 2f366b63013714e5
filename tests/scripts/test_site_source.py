"""What a recorder sees of a cluster through a site."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from protocol.kubernetes.objects import Json, name_of
from protocol.kubernetes.resources import MIGRATIONS, NODES, PODS, VIRTUAL_MACHINES, Resource
from protocol.messages import ObjectName
from scheduler_plugin.databases import database_name
from scheduler_plugin.history.recorder import LookError
from scripts.autoscale.history import recording as module
from scripts.autoscale.history.recording import SiteSource
from scripts.autoscale.site import NAME_LABEL
from tests.fake_clock import FakeClock
from tests.pod_databases import pod_database
from tests.scheduler_plugin.history.fleet_pictures import account, node, pod, vm


class StillInformer:
    """A cache that was filled once, or never."""

    def __init__(self, objects: Mapping[ObjectName, Json] | None) -> None:
        self.objects = objects or {}
        self.synced = asyncio.Event()
        if objects is not None:
            self.synced.set()


class StillSite:
    """A cluster in which nothing happens."""

    client: Any = None

    async def of_scheduler(self, path: str) -> Json | None:
        return {"nodes": [node(pod())]} if path == "/nodes" else None

    async def of_agent(self, found: Json, path: str) -> Json | None:
        asked = name_of(found)
        return account(asked.namespace) if path == "/explain" and asked.name == "db-x" else None


def source(*missing: Resource, pods_in: tuple[str, ...] = ("default",), pods: tuple[Json, ...] = ()) -> SiteSource:
    machine: Json = {"metadata": {"name": "n1", "labels": {"node.kubernetes.io/instance-type": "m5"}}}
    runners: list[Json] = [{"metadata": {"namespace": each, "name": "db-x"}} for each in pods_in]
    running = {**vm(), "status": {"podName": "db-x", "node": "n1"}}
    known: dict[Resource, list[Json]] = {
        VIRTUAL_MACHINES: [running],
        PODS: [*runners, *pods],
        NODES: [machine],
        MIGRATIONS: [],
    }
    found = SiteSource(StillSite(), FakeClock())  # type: ignore[arg-type]  # what a source asks of a site
    caches: Any = {
        kind: StillInformer(None if kind in missing else {name_of(each): each for each in known[kind]})
        for kind in known
    }
    found._informers = caches
    return found


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.01)


async def test_a_look_has_what_the_watches_and_the_scheduler_know() -> None:
    look = await source(MIGRATIONS).look()
    assert look.at == round(FakeClock().wall() * 1000)
    assert [name_of(each).name for each in look.vms] == ["db"]
    assert (look.nodes, look.price_keys, look.migrations) == ({"nodes": [node(pod())]}, {"n1": ("m5",)}, [])


async def test_an_agent_is_asked_through_its_pod() -> None:
    found = source()
    (seen,) = (await found.look()).vms
    assert await found.account(seen) == account("default")
    assert await found.account(vm("gone")) is None


@pytest.mark.parametrize(
    ("pods_in", "said"),
    [(("default", "other"), account("default")), (("other", "default"), account("default")), (("other",), None)],
)
async def test_a_pod_of_the_same_name_elsewhere_explains_no_vm(pods_in: tuple[str, ...], said: Json | None) -> None:
    found = source(pods_in=pods_in)
    (seen,) = (await found.look()).vms
    assert await found.account(seen) == said


@pytest.mark.usefixtures("impatient")
async def test_what_is_not_read_yet_is_said() -> None:
    with pytest.raises(LookError, match="not read yet: pods, nodes"):
        await source(PODS, NODES).look()


AGENT_OF_NODE: Json = {
    "metadata": {"namespace": "kube-system", "name": "agent-n1", "labels": {NAME_LABEL: "autoscaling-agent"}},
    "spec": {"nodeName": "n1"},
}


def asked_of_agents(found: SiteSource) -> list[tuple[str, str]]:
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
    found = source(pods_in=(), pods=(runner, AGENT_OF_NODE))
    requests = asked_of_agents(found)
    (seen,) = (await found.look()).vms
    assert (await found.account(seen), requests) == (account("node"), asked)


async def test_pods_that_opted_in_are_recorded() -> None:
    """The agent of the node is asked about them, never the pod itself."""
    found = source(pods=(pod_database("db-x", "shop"), AGENT_OF_NODE))
    asked = asked_of_agents(found)
    look = await found.look()
    assert [str(database_name(each)) for each in look.vms] == ["default/db", "shop/pod/db-x"]
    assert await found.account(look.vms[1]) == account("node")
    assert asked == [("kube-system/agent-n1", "/explain/shop/pod/db-x")]
