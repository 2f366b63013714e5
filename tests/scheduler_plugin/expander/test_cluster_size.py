"""The number of nodes comes from one small page of the API, and a failure keeps the last one."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from protocol.units import Seconds
from scheduler_plugin.expander.cluster_size import ClusterSize
from tests.fake_clock import FakeClock

PAGE = {"kind": "NodeList", "metadata": {"remainingItemCount": 41}, "items": [{"metadata": {"name": "n1"}}]}


@pytest.fixture
def token(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("secret\n")
    return tmp_path / "token"


async def test_nodes_are_counted_again_and_again_and_a_failure_keeps_the_count(
    token: Path, caplog: pytest.LogCaptureFixture
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
        size = ClusterSize(None, client, token)
        with pytest.raises(asyncio.CancelledError):
            await size.follow(Pauses())
    assert counts == [(60, 42), (10, 42), (10, 42), (60, 2)]
    assert str(asked[0].url) == "https://api/api/v1/nodes?limit=1"
    assert asked[0].headers["Authorization"] == "Bearer secret"
    assert "cannot count the cluster's nodes, keeping 42" in caplog.text


async def test_a_number_from_the_settings_wins_and_outside_a_cluster_nothing_is_counted(tmp_path: Path) -> None:
    size = ClusterSize(7, None, tmp_path / "token")
    await size.follow(FakeClock())
    assert size.nodes() == 7
