"""Events are written once and then counted; a caller whose event must be delivered learns that it may be lost."""

from __future__ import annotations

import json

import httpx2 as httpx
import pytest

from deploy.kube.client import ApiClient
from deploy.kube.events import CACHED_OBJECTS, COUNT_INTERVAL, WARNING, EventRecorder
from protocol.kubernetes.api import ApiUnknownError
from protocol.kubernetes.objects import Json
from protocol.runtime.kubernetes.http_api import HttpApi
from tests.fake_clock import FakeClock

WRITTEN, COUNTED = "POST /api/v1/namespaces/default/events", "PATCH /api/v1/namespaces/default/events/e"


def pod(uid: str) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "default", "uid": uid}}


class FakeApi:
    """An API with the responses of a test, which records requests."""

    def __init__(self) -> None:
        self.answer = httpx.codes.OK
        self.sent: list[str] = []
        self.written: list[Json] = []
        self.counted: list[Json] = []
        client = ApiClient(
            HttpApi(httpx.AsyncClient(transport=httpx.MockTransport(self._handle), base_url="http://api"), lambda: None)
        )
        self.clock = FakeClock()
        self.events = EventRecorder(client, "test", self.clock)

    def _handle(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(f"{request.method} {request.url.path}")
        (self.written if request.method == "POST" else self.counted).append(json.loads(request.content))
        return httpx.Response(self.answer, json={"metadata": {"name": "e"}})

    async def record(self, uid: str = "u", message: str = "it ended") -> None:
        await self.events.record_or_raise(pod(uid), "Ended", message)


async def test_event_is_about_the_object() -> None:
    api = FakeApi()
    migration = pod("u") | {"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration"}
    await api.events.record(migration, "Ended", "it ended")
    await api.events.record(pod("v"), "Failed", "no room", WARNING)
    about: Json = {"namespace": "default", "name": "a"}
    assert [(one["involvedObject"], one["type"], one["source"]) for one in api.written] == [
        (
            {**about, "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration", "uid": "u"},
            "Normal",
            {"component": "test"},
        ),
        ({**about, "apiVersion": "v1", "kind": "Pod", "uid": "v"}, "Warning", {"component": "test"}),
    ]


async def test_an_event_that_is_repeated_is_only_counted() -> None:
    api = FakeApi()
    for message in ("it ended", "it ended", "otherwise", "it ended"):
        await api.record(message=message)
        await api.clock.advance(COUNT_INTERVAL)
    assert api.sent == [WRITTEN, COUNTED, WRITTEN, WRITTEN]


async def test_count_is_written_once_a_minute() -> None:
    """A VM whose pod is refused is retried every ten seconds, and each retry was a write."""
    api = FakeApi()
    for _ in range(19):
        await api.record(message="x" * 5000)
        await api.clock.advance(10.0)
    assert api.sent == [WRITTEN, COUNTED, COUNTED, COUNTED]
    assert [one["count"] for one in api.counted] == [7, 13, 19]


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_failed_event_is_written_again(status: int) -> None:
    api = FakeApi()
    api.answer = httpx.codes(status)
    with pytest.raises(ApiUnknownError, match=str(status)):
        await api.record()
    await api.events.record(pod("u"), "Ended", "it ended")
    api.answer = httpx.codes.OK
    await api.record()
    assert api.sent == [WRITTEN] * 3


@pytest.mark.parametrize("status", [403, 404, 422])
async def test_an_event_that_is_refused_is_dropped(status: int) -> None:
    api = FakeApi()
    api.answer = httpx.codes(status)
    await api.record()
    assert api.sent == [WRITTEN]


async def test_remembered_events_are_bounded() -> None:
    api = FakeApi()
    for uid in ("old", "kept", *map(str, range(CACHED_OBJECTS - 2)), "kept", "one too many"):
        await api.record(uid)
    del api.sent[:]
    await api.clock.advance(COUNT_INTERVAL)
    await api.record("kept")
    await api.record("old")
    assert api.sent == [COUNTED, WRITTEN]
