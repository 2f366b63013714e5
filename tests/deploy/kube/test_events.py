"""Events: written once and then counted, and whoever must be heard learns that he may not have been."""

from __future__ import annotations

import httpx
import pytest

from deploy.kube.client import ApiClient, ApiUnavailableError
from deploy.kube.events import REMEMBERED, Events
from protocol.kubernetes.objects import Json
from tests.fake_clock import FakeClock

WRITTEN, COUNTED = "POST /api/v1/namespaces/default/events", "PATCH /api/v1/namespaces/default/events/e"


def pod(uid: str) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "default", "uid": uid}}


class Desk:
    """Answers what a test says, and notes what it was sent."""

    def __init__(self) -> None:
        self.answer = httpx.codes.OK
        self.sent: list[str] = []
        client = ApiClient(httpx.AsyncClient(transport=httpx.MockTransport(self._handle), base_url="http://api"))
        self.events = Events(client, "test", FakeClock())

    def _handle(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(f"{request.method} {request.url.path}")
        return httpx.Response(self.answer, json={"metadata": {"name": "e"}})

    async def tell(self, uid: str = "u", message: str = "it ended") -> None:
        await self.events.tell(pod(uid), "Ended", message)


async def test_an_event_that_is_told_again_is_only_counted() -> None:
    desk = Desk()
    for message in ("it ended", "it ended", "otherwise", "it ended"):
        await desk.tell(message=message)
    assert desk.sent == [WRITTEN, COUNTED, WRITTEN, WRITTEN]


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_a_server_in_trouble_has_not_been_told_and_is_told_again(status: int) -> None:
    desk = Desk()
    desk.answer = httpx.codes(status)
    with pytest.raises(ApiUnavailableError, match=str(status)):
        await desk.tell()
    await desk.events.say(pod("u"), "Ended", "it ended")
    desk.answer = httpx.codes.OK
    await desk.tell()
    assert desk.sent == [WRITTEN] * 3


@pytest.mark.parametrize("status", [403, 404, 422])
async def test_an_event_that_is_refused_is_dropped(status: int) -> None:
    desk = Desk()
    desk.answer = httpx.codes(status)
    await desk.tell()
    assert desk.sent == [WRITTEN]


async def test_only_the_latest_events_are_remembered_so_that_objects_which_are_gone_take_no_room() -> None:
    desk = Desk()
    for uid in ("old", "kept", *map(str, range(REMEMBERED - 2)), "kept", "one too many"):
        await desk.tell(uid)
    del desk.sent[:]
    await desk.tell("kept")
    await desk.tell("old")
    assert desk.sent == [COUNTED, WRITTEN]
