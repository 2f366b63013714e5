"""The CA whose clients runner pods accept, kept in Secrets by the leading controller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx2 as httpx
import pytest

from deploy.neonvm.access.keys import PodIdentity
from deploy.neonvm.service.runner_authority import AUTHORITIES, OF_AGENTS, OWN, RunnerAuthority
from protocol.kubernetes.api import ApiCall
from protocol.kubernetes.objects import Json, text
from protocol.kubernetes.resources import SECRETS
from protocol.messages import ObjectName
from protocol.runtime.kubernetes.http_api import HttpApi
from protocol.runtime.kubernetes.lease import Leadership, LeaseTerms
from protocol.units import Seconds
from tests.fake_clock import FakeClock, settle
from tests.neonvm.in_process import InProcess

NAMESPACE = "kube-system"


@dataclass
class World:
    """An API server and controllers."""

    clock: FakeClock = field(default_factory=FakeClock)
    server: InProcess = field(default_factory=InProcess)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.client = self.server.client()
        headers = {"Authorization": "Bearer secret"}
        http = httpx.AsyncClient(transport=self.server, base_url="http://api", headers=headers)
        self.api = HttpApi(http, lambda: "secret")

    async def make_secrets(self) -> None:
        for name in (AUTHORITIES, OWN, OF_AGENTS):
            body: Json = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}
            await self.client.create(SECRETS, NAMESPACE, body)

    async def secret(self, name: str, key: str) -> str:
        return text(await self.client.get(SECRETS, ObjectName(NAMESPACE, name)), "data", key)

    def replica(self) -> RunnerAuthority:
        """Another controller, which leads once no other one does."""
        terms = LeaseTerms(ObjectName(NAMESPACE, "neonvm-controller"), Seconds(1.6), Seconds(0.1))
        leadership = Leadership(self.api, self.clock, terms, f"replica-{len(self.tasks)}")
        made = RunnerAuthority(self.api, leadership, self.clock, NAMESPACE)
        self.tasks += [asyncio.create_task(leadership.run()), asyncio.create_task(made.run())]
        return made

    async def pass_by(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            await self.clock.advance(Seconds(1.0))
            await settle()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    for each in made.tasks:
        each.cancel()
    await asyncio.gather(*made.tasks, return_exceptions=True)
    await made.client.__aexit__()
    made.server.server.close()


async def test_authority_is_created_once_and_reused(world: World) -> None:
    await world.make_secrets()
    first = world.replica()
    await world.pass_by(5)
    assert first.ready.is_set()
    PodIdentity("db-x", first.authorities, Path())  # what pods are told can be used
    kept = await world.secret(OWN, "tls.crt")
    for each in world.tasks:
        each.cancel()
    world.tasks.clear()
    second = world.replica()
    await world.pass_by(60)
    assert (second.authorities, await world.secret(OWN, "tls.crt")) == (first.authorities, kept)
    assert await world.secret(OF_AGENTS, "tls.key")


async def test_without_its_secrets_nothing_is_shown(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """No pod is created then, because it would be open, or closed to its own controller. The log reports what is
    missing once.
    """
    found = world.replica()
    await world.pass_by(10)
    assert not found.ready.is_set()
    with pytest.raises(OSError, match="no certificate"):
        found.identity()
    (said,) = [each for each in caplog.records if each.name == "neonvm.authority"]
    assert "apply the manifests" in str(vars(said)["reason"])
    await world.make_secrets()
    await world.pass_by(5)
    assert found.ready.is_set()


async def test_its_certificate_is_renewed_in_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.make_secrets()
    found = world.replica()
    await world.pass_by(5)
    shown, kept = found.identity(), await world.secret(OWN, "tls.crt")
    later = world.clock.wall() + 61 * 86_400.0
    monkeypatch.setattr(world.clock, "wall", lambda: later)
    await world.pass_by(70)
    assert (found.identity() is shown, await world.secret(OWN, "tls.crt") == kept) == (False, False)


async def test_a_runners_token_is_reviewed_for_its_audience(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[ApiCall] = []
    found = world.replica()

    async def answer(call: ApiCall) -> dict[str, object]:
        asked.append(call)
        extra = {"authentication.kubernetes.io/pod-uid": ["uid-1"]}
        user = {"username": "system:serviceaccount:default:default", "extra": extra}
        audiences = ["neonvm-runner"] if len(asked) < 2 else ["https://kubernetes.default.svc"]
        return {"status": {"authenticated": True, "audiences": audiences, "user": user}}

    monkeypatch.setattr(world.api, "call", answer, raising=False)
    assert [await found.pod_of("token"), await found.pod_of("token")] == ["uid-1", ""]
    assert asked[0].body == {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": "token", "audiences": ["neonvm-runner"]},
    }
