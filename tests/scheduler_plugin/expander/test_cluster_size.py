"""The number of nodes comes from one small page of the API, and a failure keeps the last one."""

from __future__ import annotations

import asyncio
import json

import httpx2 as httpx
import pytest

from protocol.runtime.kubernetes.http_api import HttpApi
from protocol.units import Seconds
from scheduler_plugin.expander.cluster_size import ClusterSize
from tests.fake_clock import FakeClock

PAGE = {"kind": "NodeList", "metadata": {"remainingItemCount": 41}, "items": [{"metadata": {"name": "n1"}}]}


async def test_failed_node_count_keeps_last(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers = [httpx.Response(200, content=json.dumps(PAGE)), httpx.Response(500), httpx.Response(200, content=b"[]")]
    answers.append(httpx.Response(200, content=b'{"metadata": {}, "items": [{}, {}]}'))
    asked: list[httpx.Request] = []
    counts: list[tuple[float, int | None]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return answers[len(asked) - 1]

    class Pauses(FakeClock):
        """Notes the count at each pause, and ends the story with the last answer."""

        async def sleep(self, duration: Seconds) -> None:
            counts.append((duration, size.nodes()))
            if len(asked) == len(answers):
                raise asyncio.CancelledError

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="https://api") as client:
        size = ClusterSize(None, HttpApi(client, lambda: "secret"))
        with pytest.raises(asyncio.CancelledError):
            await size.follow(Pauses())
    assert counts == [(60, 42), (10, 42), (10, 42), (60, 2)]
    assert str(asked[0].url) == "https://api/api/v1/nodes?limit=1"
    assert asked[0].headers["Authorization"] == "Bearer secret"
    assert [vars(each)["nodes"] for each in caplog.records] == [42, 42]


async def test_configured_node_count_wins() -> None:
    size = ClusterSize(7, None)
    await size.follow(FakeClock())
    assert size.nodes() == 7
