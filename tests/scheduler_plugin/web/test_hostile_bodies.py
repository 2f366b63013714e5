"""For any request bytes: never 5xx, never a crash, and a quick response."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler_plugin.web.extender import MAX_BODY
from tests.examples import examples
from tests.fake_clock import FakeClock
from tests.scheduler_plugin.fake_cluster import NODES, PODS, VMS, FakeCluster
from tests.scheduler_plugin.objects import node, plain_pod, token_of, token_text, vm, vm_pod
from tests.scheduler_plugin.running import running

VERBS = ("filter", "prioritize", "bind", "preempt")
DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
NUMBERS: tuple[str, ...] = ("1e1000000000000000000", "9" * 5000, "-1", "NaN", "1Zi", "0x10", "1e-99999999")
WRONG_VERSIONS: tuple[Any, ...] = (-1, 99, 10**30, "4", 1.5, [])
QUANTITIES: tuple[Any, ...] = (*NUMBERS, True, None, [], {}, 1e308)
POD = vm_pod("db", "n1")


def pod_with(quantity: object) -> dict[str, Any]:
    pod = plain_pod("p")
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = quantity
    return pod


BODIES = [
    b"",
    b"{",
    b"[]",
    b"\xff\xfe",
    DEEP,
    b'{"Pod":%s,"NodeNames":["n1"]}' % DEEP,
    b'{"Pod":{"metadata":{"name":"p"},"spec":%s},"NodeNames":["n1"]}' % DEEP,
    b'{"Pod":{},"Nodes":{"items":[%s]}}' % DEEP,
    b'{"PodName":' + b"9" * 10_000 + b"}",
    *(json.dumps({"Pod": pod_with(each), "NodeNames": ["n1"]}).encode() for each in QUANTITIES),
    *(json.dumps({"Pod": plain_pod("p"), "Nodes": {"items": [node("n1", cpu=each)]}}).encode() for each in QUANTITIES),
]


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster()
    for path, obj in ((NODES, node("n1")), (VMS, vm("db")), (PODS, POD)):
        cluster.put(path, obj)
    cluster.tokens["t"] = token_of(POD)
    return cluster


async def test_no_body_makes_the_extender_fail(cluster: FakeCluster) -> None:
    async with running(cluster, FakeClock()) as scheduler:
        before = (await scheduler.probe("nodes")).json()["nodes"]
        for verb in VERBS:
            for body in BODIES:
                answer = await scheduler.client.post(f"http://extender/{verb}", content=body)
                assert answer.status_code in (200, 400), (verb, body[:80], answer.text)
                assert answer.status_code == 400 or answer.text
                assert len(answer.content) < 5000
        assert (await scheduler.probe("nodes")).json()["nodes"] == before


async def test_a_body_that_is_too_large_is_refused(cluster: FakeCluster) -> None:
    async with running(cluster, FakeClock()) as scheduler:
        for verb in ("prioritize", "preempt"):
            answer = await scheduler.client.post(f"http://extender/{verb}", content=b" " * (MAX_BODY + 1))
            assert answer.status_code == 413
        for verb in ("filter", "bind"):
            answer = await scheduler.client.post(f"http://extender/{verb}", content=b" " * (MAX_BODY + 1))
            assert answer.json()["Error"] == f"a request has at most {MAX_BODY} bytes"


def request_with(**parts: object) -> bytes:
    body = {
        "protoVersion": 4,
        "pod": {"name": "db-pod", "namespace": "default"},
        "resources": {"vCPUs": 1, "mem": 4},
        "lastPermit": None,
        "metrics": {"loadAvg1M": 0.5},
    }
    return json.dumps(body | parts).encode()


async def test_no_body_makes_the_agents_port_fail(cluster: FakeCluster) -> None:
    wrong = [request_with(resources={"vCPUs": each, "mem": each}) for each in QUANTITIES]
    wrong += [request_with(lastPermit={"vCPUs": each, "mem": 1}) for each in QUANTITIES[:-1]]
    wrong += [request_with(protoVersion=each) for each in WRONG_VERSIONS]
    headers = {"Authorization": f"Bearer {token_text('t')}"}
    async with running(cluster, FakeClock()) as scheduler:
        for body in [*BODIES[:10], *wrong]:
            answer = await scheduler.client.post("http://agents/", content=body[:60_000], headers=headers)
            assert answer.status_code == 400, (body[:80], answer.text)
        scheduler.check()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(NUMBERS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = st.sampled_from(
    ("Pod", "Nodes", "NodeNames", "PodName", "PodNamespace", "PodUID", "Node", "NodeNameToMetaVictims")
)


async def test_extender_survives_any_field_type(cluster: FakeCluster) -> None:
    async with running(cluster, FakeClock()) as scheduler:

        @settings(max_examples=examples(40, 150), deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(st.sampled_from(VERBS), st.dictionaries(FIELDS, JSON, max_size=4), st.binary(max_size=4))
        def collect(verb: str, body: dict[str, object], tail: bytes) -> None:
            calls.append((verb, json.dumps({"Pod": plain_pod("p"), "NodeNames": ["n1"], **body}).encode() + tail))

        calls: list[tuple[str, bytes]] = []
        collect()
        for verb, body in calls:
            answer = await scheduler.client.post(f"http://extender/{verb}", content=body)
            assert answer.status_code in (200, 400), (verb, body, answer.text)


@pytest.mark.parametrize("verb", VERBS)
async def test_large_bodies_do_not_block_loop(cluster: FakeCluster, verb: str) -> None:
    """Linear in the length: 4 MiB of the worst take a fraction of a second even where many tests run at once."""
    bodies = [b'{"a":' * 800_000, b'{"Pod":"' + b"\\u0000" * 600_000 + b'"}', b"[" * 4_000_000]
    async with running(cluster, FakeClock()) as scheduler:
        for body in bodies:
            began = time.process_time()
            answer = await scheduler.client.post(f"http://extender/{verb}", content=body)
            assert answer.status_code in (200, 400)
            assert time.process_time() - began < 1.0
