from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import httpx2 as httpx
import pytest

from agent.adapters.kubernetes_api import LightKubernetesApi
from agent.adapters.node_pods import NodePods, assignment_of, database_in
from agent.adapters.token import no_token
from agent.ports import ExpiredError, PortError, RefusedError, UnwatchedError
from protocol.kubernetes.objects import Json, name_of
from protocol.names import LABEL_VM_NAME
from protocol.units import Seconds
from tests.agent.adapters.answering import Chunks, client
from tests.fake_clock import settle
from tests.pod_databases import pod_database


@pytest.mark.parametrize(
    ("address", "is_asked"),
    [("10.0.0.7", True), ("fd00::7", True), ("", False), ("metadata.internal", False), ("10.0.0.7:80/x?", False)],
)
def test_assigns_pods_with_ip_address(address: str, is_asked: bool) -> None:
    metadata = {"namespace": "shop", "name": "db-1", "labels": {LABEL_VM_NAME: "db"}}
    found = assignment_of({"metadata": metadata, "status": {"podIP": address}})
    assert (found is not None) is is_asked


def test_leaves_a_pod_that_is_being_deleted() -> None:
    pod = pod_database()
    assert database_in(pod) is not None
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert database_in(pod) is None


def test_keeps_only_what_agents_read() -> None:
    """Twenty pods of one tenant with 80,000 labels each took all memory of their node's agent."""
    pod = pod_database()
    read = {"autoscaling.neon.tech/keep-awake": "true"}
    pod["metadata"]["labels"] |= {**read, **{str(number): "" for number in range(1000)}}
    floor = {"autoscaling.neon.tech/floor": "{}"}
    pod["metadata"]["annotations"] |= {**floor, "other": "x" * 100_000}
    database = database_in(pod)
    assert database is not None
    assert (database.labels, database.annotations) == (read, floor)


class PodServer:
    """An API server whose list has ``pods`` at ``version``; its watches end at once, after ``events``. None: 503."""

    def __init__(self, *pods: Json) -> None:
        self.pods: list[Json] | None = list(pods)
        self.version = 7
        self.events = b""

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if self.pods is None:
            return httpx.Response(503, json={"message": "starting"})
        if "watch" in request.url.params:
            return httpx.Response(200, stream=Chunks(self.events))
        return httpx.Response(200, json={"metadata": {"resourceVersion": str(self.version)}, "items": self.pods})


def versioned(version: int) -> dict[str, Any]:
    pod = pod_database()
    pod["metadata"]["resourceVersion"] = str(version)
    return pod


class TwoPages(PodServer):
    """Lists its pods one by one, and says 410 in place of the second until it is ``well``."""

    is_well = False

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if "watch" in request.url.params or self.pods is None:
            return super().__call__(request)
        rest = request.url.params.get("continue")
        if rest and not self.is_well:
            return httpx.Response(410, json={"message": "too old"})
        metadata = {"resourceVersion": "7", **({} if rest else {"continue": "more"})}
        return httpx.Response(200, json={"metadata": metadata, "items": [self.pods[1 if rest else 0]]})


async def test_list_that_breaks_off_changes_nothing() -> None:
    """Otherwise the agents of the pods on its missing pages would end."""
    first, second = pod_database(), pod_database()
    second["metadata"]["name"] = "second"
    server = TwoPages(first, second)
    pods = NodePods(LightKubernetesApi(client(server), "http://api", no_token, Seconds(1.0)), "n", serves_pods=True)
    with pytest.raises(ExpiredError):
        await anext(pods.sets())
    assert [await outcome(pods.states.follow(name_of(first)))] == [
        "unwatched: the API server returned 410 for GET /api/v1/pods: too old"
    ]
    server.is_well = True
    both = await anext(pods.sets())
    assert {each.pod.name for each in both} == {name_of(first).name, "second"}
    server.is_well = False
    with pytest.raises(ExpiredError):
        await anext(pods.sets())
    server.is_well = True
    first["spec"]["resources"] = second["spec"]["resources"] = {"requests": {"cpu": "1"}}
    assert await anext(pods.sets()) == both, "pods that cannot be decoded now keep their agents"


async def read_once(pods: NodePods) -> None:
    """Lists and watches until the watch ends."""
    with suppress(PortError):
        async for _ in pods.sets():
            pass


async def outcome(states: AsyncIterator[object]) -> str:
    """The version of the next state, or the reason why there is none."""
    try:
        return str(getattr(await anext(states), "resource_version", ""))
    except StopAsyncIteration:
        return "ended"
    except RefusedError as error:
        return f"refused: {error.reason}"
    except UnwatchedError as error:
        return f"unwatched: {error.reason}"
    except PortError as error:
        return f"failed: {error.reason}"


async def test_one_watch_serves_the_agents_of_all_pods() -> None:
    """An agent of 110 pods would otherwise keep 110 watches at the API server."""
    server, name = PodServer(versioned(5)), name_of(pod_database())
    pods = NodePods(LightKubernetesApi(client(server), "http://api", no_token, Seconds(1.0)), "n", serves_pods=True)
    seen: list[str] = []

    async def reads(*states: AsyncIterator[object]) -> None:
        await read_once(pods)
        seen.extend([await outcome(each) for each in states])

    await read_once(pods)
    first, second = pods.states.follow(name), pods.states.follow(name)
    assert [await outcome(first), await outcome(second)] == ["5", "5"]
    server.events = b"".join(
        json.dumps({"type": "MODIFIED", "object": found}).encode() + b"\n" for found in (versioned(8), versioned(9))
    )
    await reads(first, second)
    server.events = b""
    broken = versioned(10)
    broken["spec"]["resources"] = {"requests": {"cpu": "1"}}
    server.pods, server.version = [broken], 10
    await reads(first)
    server.pods = None
    await reads(second)
    server.pods, server.version = [versioned(11)], 11
    await reads(again := pods.states.follow(name))
    server.pods, server.version = [versioned(3)], 3
    await reads(again, pods.states.follow(name))
    server.pods = []
    await reads(pods.states.follow(name))
    assert seen == [
        *("9", "9"),
        "failed: the Pod cannot be decoded: spec.resources: pod-level resources are not supported: set the requests of"
        " the container",
        "unwatched: the API server returned 503 for GET /api/v1/pods: starting",
        "11",
        *("ended", "3"),
        f"refused: Pod {name} was deleted",
    ]


async def test_restored_store_may_have_a_higher_version() -> None:
    """``etcdutl snapshot restore --bump-revision``: only the versions of the pods show that the store was restored."""
    server, name = PodServer(versioned(9)), name_of(pod_database())
    server.version = 10
    pods = NodePods(LightKubernetesApi(client(server), "http://api", no_token, Seconds(1.0)), "n", serves_pods=True)
    await read_once(pods)
    states = pods.states.follow(name)
    assert await outcome(states) == "9"
    server.pods, server.version = [versioned(5)], 1_000_000
    await read_once(pods)
    assert await outcome(states) == "ended"
    assert await outcome(pods.states.follow(name)) == "5"


async def test_restart_of_a_container_is_no_trouble() -> None:
    """The supervisor ends the agent of the old container; until then it must not report that the pod was deleted."""
    server, name = PodServer(versioned(5)), name_of(pod_database())
    pods = NodePods(LightKubernetesApi(client(server), "http://api", no_token, Seconds(1.0)), "n", serves_pods=True)
    await read_once(pods)
    states = pods.states.follow(name)
    assert await outcome(states) == "5"
    waiting = asyncio.ensure_future(outcome(states))
    ended = versioned(8)
    ended["status"]["containerStatuses"][0]["state"] = {"terminated": {}}
    server.pods = [ended]
    await read_once(pods)
    await settle()
    assert not waiting.done()
    waiting.cancel()
