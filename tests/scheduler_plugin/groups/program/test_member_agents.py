"""What agents say of their VMs, with every answer that cannot be used."""

from __future__ import annotations

import httpx2 as httpx
import pytest

from protocol.guest.database import DatabaseState
from protocol.kubernetes.objects import Json
from protocol.units import Bytes, Seconds
from scheduler_plugin.groups.controllers.member_agents import LARGEST, HttpMemberAgents
from scheduler_plugin.groups.core.replicas.scaling import AgentCpuCount
from scheduler_plugin.groups.objects.vm_use import GuestUse

VM: Json = {"metadata": {"name": "db"}, "status": {"podIP": "10.0.0.7"}}
DATABASE = b'{"standby": true, "streaming": true, "lagSeconds": 0.5, "sessions": 2, "oldestTransactionSeconds": 1.5}'


def agents(body: bytes, status: int = 200) -> HttpMemberAgents:
    def answer(request: httpx.Request) -> httpx.Response:
        assert str(request.url).startswith("http://10.0.0.7:9101/")
        return httpx.Response(status, content=body)

    return HttpMemberAgents(httpx.AsyncClient(transport=httpx.MockTransport(answer)))


async def test_agent_reports_database_and_load() -> None:
    assert await agents(DATABASE).database(VM) == DatabaseState(True, True, Seconds(0.5), 2, Seconds(1.5))
    assert await agents(b'{"standby": false}').database(VM) == DatabaseState(False)
    metrics = b'{"cores_busy": 1.25, "mem_used": "1Gi", "mem_total": "2Gi", "oom_kills": 3, "load1": 2}'
    said = await agents(b'{"vm": "db", "metrics": ' + metrics + b"}").use(VM)
    assert said == GuestUse(1.25, Bytes(2**30), Bytes(2**31), 3)
    assert await agents(b'{"vm": "db", "metrics": {"cores_busy": 1.25, "mem_used": "much"}}').use(VM) == GuestUse(1.25)
    assert await agents(b'{"vm": "db", "metrics": null}').use(VM) == GuestUse()


@pytest.mark.parametrize(
    ("metrics", "count"),
    [
        (b'{"cpu_seconds": 12.5, "seen_seconds": 60}', AgentCpuCount(Seconds(12.5), Seconds(60.0))),
        (b'{"cpu_seconds": 12.5}', None),
        (b'{"cpu_seconds": -1, "seen_seconds": 60}', None),
        (b"null", None),
    ],
)
async def test_an_agent_says_what_it_has_counted(metrics: bytes, count: AgentCpuCount | None) -> None:
    assert await agents(b'{"metrics": %s}' % metrics).cpu_count(VM) == count


@pytest.mark.parametrize(
    ("body", "status"),
    [(DATABASE, 503), (b"<html>", 200), (b'{"standby": 1}', 200), (b'{"standby": true, "sessions": -1}', 200),
     (b" " * LARGEST + DATABASE, 200)],
)  # fmt: skip
async def test_an_answer_that_cannot_be_used_is_none(body: bytes, status: int) -> None:
    assert await agents(body, status).database(VM) is None


async def test_unreachable_agent_has_no_answer() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    away = HttpMemberAgents(httpx.AsyncClient(transport=httpx.MockTransport(refuse)))
    assert await away.database(VM) is None
    assert await away.database({"status": {"podIP": "not an address:"}}) is None
    assert await agents(DATABASE).database({"status": {}}) is None
