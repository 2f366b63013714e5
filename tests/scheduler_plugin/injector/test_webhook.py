"""The webhook's responses: an agent, the reason for none, or a refusal; never an internal error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx
import pytest

from protocol.kubernetes.api import ApiCall, ApiRefusedError, ApiUnknownError
from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.refusals import classify
from protocol.runtime.followed_file import SettingsError
from scheduler_plugin.injector.admission import injector
from scheduler_plugin.injector.admission.injector import ACCOUNT_KEPT, LOOKUPS, Injector
from scheduler_plugin.injector.admission.reviews import MOST_VALUES
from scheduler_plugin.injector.predecessors import Predecessors
from scheduler_plugin.injector.settings import parse_settings
from scheduler_plugin.injector.telemetry import InjectorTelemetry
from scheduler_plugin.injector.web import LONGEST_REVIEW, MUTATE, webhook_app
from scheduler_plugin.web.hot_paths import HotRequest
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.groups.program.cluster import Connection, EmbeddedCluster
from tests.scheduler_plugin.injector.injecting import SETTINGS
from tests.scheduler_plugin.injector.pods import original, response, review


class Accounts(Connection):
    """An API with service accounts in some namespaces; with ``failure`` it returns that instead."""

    namespaces: tuple[str, ...] = ("default",)
    failure: Exception | None = None
    hold: asyncio.Event | None = None

    async def call(self, call: ApiCall) -> JsonObject:
        self.asked.append(call)
        if self.hold is not None:
            await self.hold.wait()
        if self.failure is not None:
            raise self.failure
        if call.path not in {f"/api/v1/namespaces/{each}/serviceaccounts/vm-agent" for each in self.namespaces}:
            raise ApiRefusedError(classify(404))
        return {}


class Asked:
    """An injector that is asked over HTTP, without a network."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.api = Accounts(EmbeddedCluster(self.clock))
        self.outcomes: list[str] = []
        predecessors = Predecessors(self.clock, InjectorTelemetry())
        template = parse_settings(SETTINGS).template()
        self.injector = Injector(self.api, self.clock, predecessors, template, self.outcomes.append, "")

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        transport = httpx.ASGITransport(webhook_app(self.injector))
        async with httpx.AsyncClient(transport=transport, base_url="http://injector") as client:
            yield client

    async def ask(self, body: bytes, *, allowed: bool = True) -> dict[str, Any]:
        async with self.client() as client:
            answer = await client.post(MUTATE, content=body)
            assert answer.status_code == 200, answer.text
        found = response(answer.content)
        assert (found["uid"], found["allowed"]) == ("u-1", allowed)
        return found


async def test_only_vm_pods_are_patched() -> None:
    asked = Asked()
    found = await asked.ask(review(original()))
    assert found["patchType"] == "JSONPatch"
    assert [each["path"] for each in found["patch"]][-1] == "/spec/serviceAccountName"
    for pod, more in (
        ({"metadata": {}}, {}),
        (original(), {"operation": "UPDATE"}),
        (None, {"operation": "DELETE"}),
        (original(), {"subResource": "x", "dryRun": True, "unknown": [1]}),
    ):
        assert "warnings" not in await asked.ask(review(pod, **more))
    assert asked.outcomes == ["injected", "no_vm", "not_a_new_pod", "not_a_new_pod", "injected"]


async def test_missing_service_account_is_reported() -> None:
    asked = Asked()
    found = await asked.ask(review(original(), namespace="other"))
    assert "patch" not in found
    assert found["warnings"] == [
        "autoscaling: no agent injected: namespace other has no service account vm-agent (apply agent-sidecar.yaml)"
    ]
    asked.api.failure = ApiUnknownError("no answer")
    found = await asked.ask(review(original()))
    assert "cannot be read: no answer" in found["warnings"][0]
    asked.api.failure = ApiRefusedError(classify(403))
    assert "warnings" in await asked.ask(review(original()))
    assert asked.outcomes == ["no_account"] * 3


async def test_found_account_is_remembered() -> None:
    asked = Asked()
    await asked.ask(review(original()))
    # As during a flood of reviews of invented namespaces.
    asked.api.failure = TimeoutError()
    await asked.clock.advance(ACCOUNT_KEPT - 1)
    await asked.ask(review(original()))
    await asked.clock.advance(1)
    found = await asked.ask(review(original()))
    assert "cannot be read: timed out" in found["warnings"][0]
    assert asked.outcomes == ["injected", "injected", "no_account"]


async def test_invented_namespaces_take_few_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anyone may send reviews. A flood took all connections, and pods of VMs were created without an agent."""
    monkeypatch.setattr(injector, "MAX_KEPT", 2)
    asked, go_on = Asked(), asyncio.Event()
    await asked.ask(review(original()))
    asked.api.hold = go_on
    flood = [asyncio.ensure_future(asked.ask(review(original(), namespace=f"n{i}"))) for i in range(100)]
    await settle()
    assert len(asked.api.asked) == 1 + LOOKUPS
    assert "patch" in await asked.ask(review(original()))
    go_on.set()
    assert not any("patch" in answer for answer in await asyncio.gather(*flood))
    for namespace in ("default", "other"):
        asked.api.namespaces = (namespace,)
        asked.api.asked.clear()
        await asked.clock.advance(ACCOUNT_KEPT)
        assert "patch" in await asked.ask(review(original(), namespace=namespace))
    asked.api.namespaces = ("third",)
    assert "patch" in await asked.ask(review(original(), namespace="third")), "few are remembered"


async def test_pod_naming_agent_volumes_is_refused() -> None:
    asked, pod = Asked(), original()
    pod["spec"]["initContainers"][0]["volumeMounts"] = [{"name": "autoscaling-agent-api-access", "mountPath": "/x"}]
    found = await asked.ask(review(pod), allowed=False)
    assert found["status"] == {
        "code": 403,
        "reason": "Forbidden",
        "message": "autoscaling: the pod uses names of the agent's volumes: autoscaling-agent-api-access",
    }
    assert ("patch" in found, asked.outcomes) == (False, ["refused"])


async def test_own_account_vm_starts_without_sidecar() -> None:
    asked, pod = Asked(), original()
    pod["spec"]["serviceAccountName"] = "postgres"
    found = await asked.ask(review(pod))
    assert found["warnings"] == [
        "autoscaling: no agent injected: the pod has the service account postgres, but an agent needs vm-agent"
    ]
    assert ("patch" in found, asked.outcomes) == (False, ["own_account"])


async def test_internal_error_leaves_pod_alone() -> None:
    asked = Asked()
    asked.api.failure = KeyError("a mistake of ours")
    found = await asked.ask(review(original()))
    assert ("patch" in found, asked.outcomes) == (False, ["failed"])
    assert found["warnings"] == ["autoscaling: internal error, see the injector's log; the pod is created unchanged"]


async def test_while_it_may_not_inject_it_says_why() -> None:
    asked = Asked()
    asked.injector.problem = "too old: " + "x" * 400
    found = await asked.ask(review(original()))
    assert len(found["warnings"][0]) == 250
    assert asked.api.asked == []


WRONG = json.loads(review(original()))


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"[" * 100_000, ""),
        (b"null", "expected object"),
        (json.dumps(WRONG | {"apiVersion": "admission.k8s.io/v1beta1"}).encode(), "apiVersion"),
        (json.dumps(WRONG | {"request": {}}).encode(), "request.uid"),
        (json.dumps(WRONG | {"request": {"uid": 7, "operation": "CREATE"}}).encode(), "request.uid"),
        (b" " * (LONGEST_REVIEW + 1), "at most"),
    ],
    ids=["empty", "cut", "deep", "null", "version", "no uid", "bad uid", "long"],
)
async def test_what_is_no_review_is_answered_with_why(body: bytes, complaint: str) -> None:
    asked = Asked()
    async with asked.client() as client:
        answer = await client.post(MUTATE, content=body)
        assert answer.status_code in {400, 413}
        assert complaint in answer.json()["error"]
        assert (await client.get(MUTATE)).status_code == 405
        assert (await client.post("/other")).status_code == 404
    assert asked.outcomes == ["too_large" if answer.status_code == 413 else "malformed"]


async def test_too_large_pod_is_reported() -> None:
    """It started without its agent, and only the API server's log said so."""
    asked, pod = Asked(), original()
    pod["spec"]["volumes"] = [[]] * MOST_VALUES
    found = await asked.ask(review(pod))
    assert found["warnings"] == ["autoscaling: the pod has more than 100000 values and is created unchanged"]
    assert ("patch" in found, asked.outcomes) == (False, ["too_large"])


async def test_text_of_strings_does_not_count() -> None:
    """A script, or data in an argument, may have any number of commas and brackets."""
    asked, pod = Asked(), original()
    pod["spec"]["containers"][0]["args"] = ['{"a": [1]}, \\"' * (MOST_VALUES // 2)]
    assert "patch" in await asked.ask(review(pod))
    assert asked.outcomes == ["injected"]


async def test_answer_authenticates_nobody() -> None:
    """Anyone can call the webhook: a response must not entitle a stranger to a slot that the API server needs."""
    asked = Asked()
    path = webhook_app(asked.injector).paths[MUTATE]
    answer = path.handler(HotRequest(review(original())))
    assert isinstance(answer, Awaitable)
    assert not (await answer).authenticates


@pytest.mark.parametrize("pod", [1, [], "x", {"spec": 1}, {"spec": {"containers": 7}, "metadata": {"labels": []}}])
async def test_a_pod_that_is_none_is_let_through(pod: Any) -> None:
    asked = Asked()
    async with asked.client() as client:
        answer = await client.post(MUTATE, content=review(pod))
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "agent: expected a value, the field is missing"),
        (SETTINGS + "x: 1", "document: object contains unknown field x"),
        (SETTINGS + "certificates: {life: soon}", "certificates: expected seconds or a duration"),
        (SETTINGS + "certificates: {life: 90d, authorityLife: 200d}", "certificates.life: expected 10s to a third"),
        (SETTINGS + "lease: {durationSeconds: 5}", "lease.renewSeconds: expected at most half"),
        (SETTINGS + "namespace: A_B", "namespace: expected str matching regex"),
    ],
)
def test_bad_settings_name_the_field(text: str, problem: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_settings(text)
    assert str(refused.value).startswith(problem)
