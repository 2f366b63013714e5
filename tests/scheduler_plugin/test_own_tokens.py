"""Tokens that a program sends for explanations: never its token for the API server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2 as httpx
import msgspec
import pytest

from protocol.kubernetes.api import ApiCall, ApiUnknownError
from protocol.kubernetes.objects import Json, JsonObject
from protocol.runtime.explaining.explain_access import AUDIENCE
from scheduler_plugin.dashboard.sources.http_sources import HttpSources, NodeAgentAddresses
from scheduler_plugin.groups.controllers.member_agents import HttpMemberAgents
from scheduler_plugin.own_tokens import LIFETIME, RETRY_AFTER, USED_FOR, no_tokens, tokens_of
from tests.fake_clock import FakeClock
from tests.protocol.kubernetes.test_access_reviews import jwt
from tests.scheduler_plugin.fake_cluster import FakeCluster

OWN = jwt(sub="system:serviceaccount:kube-system:autoscaling-dashboard", aud="https://kubernetes.default.svc")
VM: Json = {
    "metadata": {"namespace": "shop", "name": "db"},
    "status": {"podIP": "10.1.0.7", "node": "n1"},
}


class Cluster(FakeCluster):
    """Makes tokens that name their audience."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[tuple[str, JsonObject]] = []
        self.refuses = False

    async def call(self, call: ApiCall) -> JsonObject:
        if not call.path.endswith("/token"):
            return {"items": [{"spec": {"nodeName": "n1"}, "status": {"phase": "Running", "podIP": "10.0.0.5"}}]}
        if self.refuses:
            raise ApiUnknownError("away")
        assert isinstance(call.body, dict)
        spec = call.body["spec"]
        assert isinstance(spec, dict)
        self.requests.append((call.path, spec))
        return {"status": {"token": f"for {spec['audiences']}"}}


async def test_token_is_requested_for_one_audience_and_kept() -> None:
    cluster, clock = Cluster(), FakeClock()
    tokens = tokens_of(None, cluster, lambda: OWN, clock)
    assert [await tokens("a"), await tokens("b"), await tokens("a")] == ["for ['a']", "for ['b']", "for ['a']"]
    path = "/api/v1/namespaces/kube-system/serviceaccounts/autoscaling-dashboard/token"
    expected = [(path, {"audiences": [each], "expirationSeconds": int(LIFETIME)}) for each in "ab"]
    assert cluster.requests == expected
    await clock.advance(USED_FOR + 1)
    await tokens("a")
    assert len(cluster.requests) == 3


async def test_audiences_do_not_wait_for_each_other() -> None:
    """There is an audience for each namespace: one slow answer must not hold up the others, nor known tokens."""
    slow = asyncio.Event()

    class SlowCluster(Cluster):
        async def call(self, call: ApiCall) -> JsonObject:
            if "slow" in str(call.body):
                await slow.wait()
            return await super().call(call)

    cluster = SlowCluster()
    tokens = tokens_of(None, cluster, lambda: OWN, FakeClock())
    async with asyncio.timeout(5):
        waiting = [asyncio.ensure_future(tokens("slow")) for _ in range(2)]
        await asyncio.sleep(0)
        assert [await tokens("a"), await tokens("a")] == ["for ['a']"] * 2
        slow.set()
        assert await asyncio.gather(*waiting) == ["for ['slow']"] * 2
    assert len(cluster.requests) == 2


async def test_refused_token_is_tried_again_later(caplog: pytest.LogCaptureFixture) -> None:
    cluster, clock = Cluster(), FakeClock()
    cluster.refuses = True
    tokens = tokens_of(None, cluster, lambda: OWN, clock)
    assert [await tokens("a"), await tokens("a")] == ["", ""]
    assert caplog.text.count("no token for explanations") == 1
    cluster.refuses = False
    await clock.advance(RETRY_AFTER + 1)
    assert await tokens("a") == "for ['a']"


async def test_person_gets_no_token_of_an_account() -> None:
    for own in (None, "opaque", jwt(sub="clerk")):
        assert await tokens_of(None, Cluster(), lambda own=own: own, FakeClock())("a") == ""  # type: ignore[misc]
    assert await no_tokens("a") == ""


async def test_token_in_a_file_is_for_everyone(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    tokens = tokens_of(tmp_path / "token", Cluster(), lambda: OWN, FakeClock())
    assert [await tokens("a"), await tokens("b")] == ["secret", "secret"]


async def test_each_program_is_shown_its_own_token() -> None:
    """Anyone who may run pods in a VM's namespace can impersonate an agent there."""
    cluster, clock = Cluster(), FakeClock()
    shown: dict[str, str] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        shown[f"{request.url.host}{request.url.path}"] = request.headers.get("Authorization", "")
        return httpx.Response(200, stream=httpx.ByteStream(msgspec.json.encode({})))

    tokens = tokens_of(None, cluster, lambda: OWN, clock)
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        agents = NodeAgentAddresses(cluster, "kube-system", clock)
        sources = HttpSources(http, "http://scheduler", "http://groups", agents, tokens)
        await sources.of_scheduler("/nodes")
        await sources.of_groups("/explain/shop/hvpa/a")
        await sources.of_vm(VM)
        await HttpMemberAgents(http, tokens=tokens).database(VM)
    assert shown == {
        "scheduler/nodes": f"Bearer for ['{AUDIENCE}']",
        "groups/explain/shop/hvpa/a": f"Bearer for ['{AUDIENCE}']",
        "10.0.0.5/explain/shop/db": f"Bearer for ['{AUDIENCE}/kube-system']",
        "10.1.0.7/explain": f"Bearer for ['{AUDIENCE}/shop']",
        "10.1.0.7/database": f"Bearer for ['{AUDIENCE}/shop']",
    }
