"""A pod's status goes to that very pod, and is written until the API takes it."""

from __future__ import annotations

import asyncio
import json

import httpx2 as httpx
import pytest

from deploy.kube.client import ApiClient
from deploy.local.kubelet.reporting import keep_writing_status, write_status
from protocol.kubernetes.api import ApiRefusedError
from protocol.kubernetes.objects import Json
from protocol.runtime.kubernetes.http_api import HttpApi
from tests.fake_clock import FakeClock

POD: Json = {"metadata": {"name": "a", "namespace": "d", "uid": "first"}}
STATUS: Json = {"phase": "Running"}


class FakeApi:
    """Answers writes with the next of ``answers`` (the last one forever), and reads with the current pod."""

    def __init__(self, *answers: int, there: str = "first") -> None:
        self.answers, self.there = list(answers), there
        self.written: list[Json] = []
        self.client = ApiClient(
            HttpApi(httpx.AsyncClient(transport=httpx.MockTransport(self._answer), base_url="http://api"), lambda: None)
        )

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            found = {"metadata": {"name": "a", "namespace": "d", "uid": self.there}}
            return httpx.Response(200, json=found) if self.there else httpx.Response(404, json={"reason": "NotFound"})
        self.written.append(json.loads(request.content))
        return httpx.Response(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0], json={})


async def test_status_carries_pod_uid() -> None:
    api = FakeApi(200)
    await write_status(api.client, POD, STATUS)
    assert api.written == [{"metadata": {"uid": "first"}, "status": {"phase": "Running"}}]


@pytest.mark.parametrize(("answer", "there"), [(404, "first"), (409, "second"), (409, "")])
async def test_gone_pod_gets_no_status(answer: int, there: str) -> None:
    api = FakeApi(answer, there=there)
    await write_status(api.client, POD, STATUS)
    assert len(api.written) == 1


@pytest.mark.parametrize("answer", [409, 422, 403])
async def test_refused_status_of_existing_pod_is_reported(answer: int) -> None:
    with pytest.raises(ApiRefusedError):
        await write_status(FakeApi(answer).client, POD, STATUS)


async def test_refused_status_backs_off_and_logs_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api, clock = FakeApi(422, 503, 422, 200), FakeClock(jitter=0.0)
    writing = asyncio.ensure_future(keep_writing_status(api.client, POD, STATUS, clock))
    for pause, attempts in ((0.0, 1), (1.0, 2), (1.9, 2), (0.1, 3), (4.0, 4)):
        await clock.advance(pause)
        assert len(api.written) == attempts
    await writing
    assert [vars(record)["pod"] for record in caplog.records] == ["d/a"]
