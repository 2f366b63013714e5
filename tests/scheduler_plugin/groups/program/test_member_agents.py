"""Agents' reports on their VMs, including every unusable response."""

from __future__ import annotations

import asyncio
import gzip
from contextlib import suppress

import httpx2 as httpx
import pytest

from deploy.neonvm.network.sockets import free_port
from protocol.guest.database import DatabaseState
from protocol.kubernetes.objects import Json
from protocol.units import Bytes, Seconds
from scheduler_plugin.groups.controllers import member_agents
from scheduler_plugin.groups.controllers.member_agents import LARGEST, HttpMemberAgents
from scheduler_plugin.groups.core.replicas.scaling import AgentCpuCount
from scheduler_plugin.groups.objects.vm_use import GuestUse

VM: Json = {"metadata": {"name": "db"}, "status": {"podIP": "10.0.0.7"}}
DATABASE = b'{"standby": true, "streaming": true, "lagSeconds": 0.5, "sessions": 2, "oldestTransactionSeconds": 1.5}'


def agents(body: bytes, status: int = 200) -> HttpMemberAgents:
    def answer(request: httpx.Request) -> httpx.Response:
        assert str(request.url).startswith("http://10.0.0.7:9101/")
        return httpx.Response(status, stream=httpx.ByteStream(body))

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


@pytest.mark.parametrize("size", [1, 2**20])
async def test_answer_without_end_is_none(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant's pod may send single bytes, or as much as it can. It kept a worker, or took all memory, of a program
    that serves the groups of all tenants.
    """
    monkeypatch.setattr(member_agents, "_TIMEOUT", Seconds(0.5))
    sent, ended = 0, asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with suppress(OSError):
            while not writer.is_closing():
                writer.write(b" " * size)
                sent += size
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.transport.abort()
        await asyncio.sleep(0)
        ended.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, asyncio.timeout(10):
        port = server.sockets[0].getsockname()[1]
        async with httpx.AsyncClient(trust_env=False) as http:
            assert await HttpMemberAgents(http, port).database({"status": {"podIP": "127.0.0.1"}}) is None
        await ended.wait()
    assert sent < 2**25


async def test_compressed_answer_is_not_expanded() -> None:
    packed = gzip.compress(DATABASE)
    headers = {"Content-Encoding": "gzip"}
    answer = httpx.MockTransport(lambda _: httpx.Response(200, stream=httpx.ByteStream(packed), headers=headers))
    assert await HttpMemberAgents(httpx.AsyncClient(transport=answer)).database(VM) is None


async def test_unreachable_agent_has_no_answer() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    away = HttpMemberAgents(httpx.AsyncClient(transport=httpx.MockTransport(refuse)))
    assert await away.database(VM) is None
    assert await agents(DATABASE).database({"status": {}}) is None


@pytest.mark.parametrize("address", ["not an address:", "10.0.0.8/secrets?", "10.0.0.8:80/secrets#", "shop.example"])
async def test_only_addresses_of_pods_are_asked(address: str) -> None:
    """Users who may write a VM's status could make this program send requests, with its token, to any URL."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(200, stream=httpx.ByteStream(DATABASE))

    agents = HttpMemberAgents(httpx.AsyncClient(transport=httpx.MockTransport(answer)))
    assert await agents.database({"status": {"podIP": address}}) is None
    assert asked == []
    assert await agents.database({"status": {"podIP": "fd00::7"}}) is not None
    assert asked == ["http://[fd00::7]:9101/database"]


async def test_silent_agents_delay_no_other_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant can make all his agents silent with a NetworkPolicy. Then no connection was left for other agents: other
    replicas counted as silent too, and left their read endpoints.
    """
    monkeypatch.setattr(member_agents, "_TIMEOUT", Seconds(1.0))
    monkeypatch.setattr(member_agents, "MAX_QUERIES", 4, raising=False)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if b"127.0.0.2" in await reader.readuntil(b"\r\n\r\n"):
            await reader.read()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(DATABASE) + DATABASE)
        writer.close()

    def member(namespace: str, address: str) -> Json:
        return {"metadata": {"namespace": namespace, "name": "db"}, "status": {"podIP": address}}

    limits = httpx.Limits(max_connections=4)
    # Outside of the range of outgoing connections, one of which might have it on the other address.
    port = free_port()
    async with (
        await asyncio.start_server(serve, ["127.0.0.1", "127.0.0.2"], port),
        httpx.AsyncClient(trust_env=False, limits=limits) as http,
    ):
        agents = HttpMemberAgents(http, port)
        vms = [*(member("evil", "127.0.0.2") for _ in range(9)), member("shop", "127.0.0.1")]
        states = await asyncio.gather(*(agents.database(vm) for vm in vms))
    assert [state is not None for state in states] == [False] * 9 + [True]
