"""Only the VM's own agent may send requests for it: 401 without a token, 403 for the pod of another VM, and no
change.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from protocol.kubernetes.access_reviews import CallerIdentity, identity_in
from scheduler_plugin.settings.document import parse_settings
from scheduler_plugin.web.apps import agents_app
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import NODES, PODS, VMS, FakeCluster, Fault, to
from tests.scheduler_plugin.objects import Obj, node, plain_pod, token_of, token_text, vm, vm_pod
from tests.scheduler_plugin.running import SETTINGS, Running, running

POD = vm_pod("db", "n1")
NODE_AGENT = plain_pod("agent-x", node="n1", namespace="kube-system", uid="pod-agent")


def node_agent(on: str, account: str = "autoscaling-agent") -> Obj:
    status = token_of(NODE_AGENT, node=on)
    status["user"]["username"] = f"system:serviceaccount:kube-system:{account}"
    return status


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster()
    cluster.put(NODES, node("n1"))
    cluster.put(VMS, vm("db"))
    cluster.put(PODS, POD)
    cluster.put(PODS, NODE_AGENT)
    return cluster


async def refused(scheduler: Running, token: str) -> int:
    """The status of a request that must change nothing."""
    before, patches = (await scheduler.probe("nodes")).json(), len(scheduler.cluster.made("PATCH", "/"))
    response = await scheduler.ask(POD, 2, 8, token=token)
    assert (await scheduler.probe("nodes")).json() == before
    assert len(scheduler.cluster.made("PATCH", "/")) == patches
    return response.status_code


OTHER = token_of(vm_pod("other", "n1"))
IMPOSTOR = token_of(vm_pod("db", "n1", namespace="elsewhere"))
SUCCESSOR = token_of(vm_pod("db", "n1", uid="an-older-pod"))


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (None, 401),
        ({"authenticated": False}, 401),
        (token_of(POD, audience="someone-else"), 401),
        ({**token_of(POD), "audiences": None}, 401),
        ({**token_of(POD), "user": {"username": "admin"}}, 401),
        ({"authenticated": "yes"}, 401),
        (OTHER, 403),
        (IMPOSTOR, 403),
        (SUCCESSOR, 403),
        (node_agent("n2"), 403),
        (node_agent("n1", account="stranger"), 403),
        ({**token_of(POD), "user": {"username": "system:serviceaccount:default:agent"}}, 403),
    ],
)
async def test_foreign_agent_changes_nothing(cluster: FakeCluster, status: Obj | None, expected: int) -> None:
    if status is not None:
        cluster.tokens["token"] = status
    async with running(cluster, FakeClock()) as scheduler:
        assert await refused(scheduler, "token") == expected


@pytest.mark.parametrize("status", [token_of(POD), node_agent("n1")])
async def test_sidecar_and_node_agent_are_heard(cluster: FakeCluster, status: Obj) -> None:
    cluster.tokens["token"] = status
    async with running(cluster, FakeClock()) as scheduler:
        assert (await scheduler.ask(POD, 2, 8, token="token")).status_code == 200


async def test_node_agent_needs_its_pod(cluster: FakeCluster) -> None:
    """Its token is still called valid: by the API server for ten seconds, by us for a minute."""
    cluster.tokens["token"] = node_agent("n1")
    async with running(cluster, FakeClock()) as scheduler:
        assert (await scheduler.ask(POD, 2, 8, token="token")).status_code == 200
        cluster.remove(PODS, "kube-system", "agent-x")
        await settle()
        assert await refused(scheduler, "token") == 404


async def test_missing_header_gets_401_with_challenge(cluster: FakeCluster) -> None:
    async with running(cluster, FakeClock()) as scheduler:
        response = await scheduler.ask(POD, 2, 8, token="")
        assert (response.status_code, response.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert cluster.made("POST", "/tokenreviews") == []


async def test_a_review_that_fails_is_503(cluster: FakeCluster) -> None:
    async with running(cluster, FakeClock()) as scheduler:
        cluster.faults.append(Fault(to("POST", "/tokenreviews")))
        assert await refused(scheduler, "token") == 503


async def test_verdicts_expire_after_minute_and_refusals_after_seconds(cluster: FakeCluster) -> None:
    clock = FakeClock()
    async with running(cluster, clock) as scheduler:
        assert [(await scheduler.ask(POD, 1, 4)).status_code for _ in range(3)] == [200] * 3
        assert [await refused(scheduler, "bad") for _ in range(3)] == [401] * 3
        assert len(cluster.made("POST", "/tokenreviews")) == 2
        await clock.advance(59)
        await scheduler.ask(POD, 1, 4)
        assert len(cluster.made("POST", "/tokenreviews")) == 2
        assert await refused(scheduler, "bad") == 401
        await clock.advance(1)
        await scheduler.ask(POD, 1, 4)
        assert len(cluster.made("POST", "/tokenreviews")) == 4


def test_unbound_token_names_only_account() -> None:
    review: Any = {"status": {**token_of(POD), "user": {"username": "system:serviceaccount:a:b", "extra": None}}}
    assert identity_in(review, "autoscale-scheduler") == CallerIdentity("a:b", "a")


async def test_extender_can_require_token(cluster: FakeCluster, tmp_path: Any) -> None:
    secret = tmp_path / "token"
    settings = parse_settings(SETTINGS.replace("{candidates: all}", f"{{tokenFile: {secret}}}"))
    async with running(cluster, FakeClock(), settings) as scheduler:
        args = {"Pod": plain_pod("p"), "NodeNames": ["n1"]}

        async def status(header: str) -> int:
            headers = {"Authorization": header}
            return (await scheduler.client.post("http://extender/filter", json=args, headers=headers)).status_code

        assert await status("Bearer s3cret") == 401
        await asyncio.to_thread(secret.write_text, "s3cret\n")
        assert [await status(header) for header in ("Bearer s3cret", "Bearer wrong", "")] == [200, 401, 401]


@pytest.mark.parametrize("path", ["/", "/permits"])
async def test_token_is_looked_at_before_the_body(cluster: FakeCluster, path: str) -> None:
    """The body of an unknown client would use our memory, so it is not read. An unknown token may be an agent's."""
    cluster.tokens["agent"] = token_of(POD)
    async with running(cluster, FakeClock()) as scheduler:
        asked = agents_app(scheduler.parts.service).paths[path]
        for authorization in (None, "Bearer junk"):
            refusal = asked.precheck(authorization, "10.0.0.9")
            assert refusal is not None
            assert (refusal.status, refusal.headers["www-authenticate"]) == (401, "Bearer")
        assert asked.precheck(f"Bearer {token_text('agent')}", "10.0.0.9") is None
