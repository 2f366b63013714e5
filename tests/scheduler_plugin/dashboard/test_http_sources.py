from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx2 as httpx
import msgspec
import pytest

from protocol.kubernetes.objects import Json
from scheduler_plugin.dashboard.sources.http_sources import LONGEST_OF_AGENT, SELECTOR, HttpSources, NodeAgentAddresses
from tests.fake_clock import FakeClock
from tests.pod_databases import pod_database
from tests.scheduler_plugin.fake_cluster import PODS, FakeCluster


class Around:
    """The programs of a cluster: every URL that is asked for, and what is answered."""

    def __init__(self, answer: Any) -> None:
        self.asked: list[str] = []
        self._body = answer if isinstance(answer, bytes) else msgspec.json.encode(answer)

    def sources(self) -> HttpSources:
        def answered(request: httpx.Request) -> httpx.Response:
            self.asked.append(str(request.url))
            return httpx.Response(200, stream=httpx.ByteStream(self._body))

        http = httpx.AsyncClient(transport=httpx.MockTransport(answered))
        return HttpSources(http, "http://scheduler:10297/", "")


def a_vm(address: str) -> Json:
    return {"metadata": {"namespace": "shop", "name": "db"}, "status": {"podIP": address}}


@pytest.mark.parametrize(
    ("address", "host"), [("10.0.0.7", "10.0.0.7"), ("fd00::7", "[fd00::7]"), ("FD00:0::7", "[fd00::7]")]
)
async def test_agent_is_asked_at_its_address(address: str, host: str) -> None:
    around = Around({"vm": "shop/db", "because": "idle"})
    answer = await around.sources().of_vm(a_vm(address))
    assert (answer, around.asked) == ({"vm": "shop/db", "because": "idle"}, [f"http://{host}:9101/explain"])


@pytest.mark.parametrize(
    "address",
    ["", "scheduler:10297/nodes?", "scheduler", "10.0.0.7:10297/nodes?x=", "a@10.0.0.7", "fe80::1%]:1/x#", "7"],
)
async def test_bogus_status_address_is_not_asked(address: str) -> None:
    around = Around({"vm": "shop/db", "nodes": ["a secret"]})
    assert (await around.sources().of_vm(a_vm(address)), around.asked) == (None, [])


@pytest.mark.parametrize("answer", [{"nodes": []}, {"vm": ""}, {"vm": "bank/db"}, [], "shop/db"])
async def test_answer_for_other_vm_is_dropped(answer: object) -> None:
    assert await Around(answer).sources().of_vm(a_vm("10.0.0.7")) is None


@pytest.mark.parametrize(
    "answer",
    [b"", b"{", b"\xff", b'{"vm": "shop/db", "because": "\xff"}', b'{"vm": "shop/db", "deep": ' + b'{"a":' * 100_000],
)
async def test_an_answer_that_is_no_json_is_none(answer: bytes) -> None:
    around = Around(answer)
    assert await around.sources().of_vm(a_vm("10.0.0.7")) is None
    assert await around.sources().of_scheduler("/nodes") is None


async def test_oversized_agent_answer_is_dropped() -> None:
    long = b'{"vm": "shop/db", "because": "' + b"x" * LONGEST_OF_AGENT + b'"}'
    assert await Around(long).sources().of_vm(a_vm("10.0.0.7")) is None


async def test_absent_groups_program_is_not_asked() -> None:
    around = Around({})
    assert (await around.sources().of_groups("/explain/a/b/c"), around.asked) == (None, [])
    assert (await around.sources().of_scheduler("/nodes"), around.asked) == ({}, ["http://scheduler:10297/nodes"])


async def test_pod_is_explained_by_agent_of_its_node() -> None:
    """The pod has postgres in it, which is not asked."""
    around = Around({"vm": "shop/pod/pg-1", "because": "idle"})
    assert (await around.sources().of_vm(pod_database("pg-1", "shop")), around.asked) == (None, [])
    cluster = FakeCluster()
    about = {"namespace": "ours", "name": "agent", "labels": dict([SELECTOR.split("=")])}
    status = {"phase": "Running", "podIP": "10.0.0.9"}
    cluster.put(PODS, {"metadata": about, "spec": {"nodeName": "n1"}, "status": status})
    sources = replace(around.sources(), agents=NodeAgentAddresses(cluster, "ours", FakeClock()))
    assert await sources.of_vm(pod_database("pg-1", "shop")) == {"vm": "shop/pod/pg-1", "because": "idle"}
    assert around.asked == ["http://10.0.0.9:9101/explain/shop/pod/pg-1"]
