"""A headless Service as a port of this machine: each connection goes to an endpoint that is ready."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from deploy.kube.client import ApiClient
from deploy.local.cluster.control import ClusterForwards
from deploy.neonvm.network.sockets import connected, listening, tcp_socket
from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import ENDPOINT_SLICES
from protocol.messages import ObjectName
from protocol.runtime.serving.tcp_listener import TcpListener
from tests.neonvm.in_process import InProcess

SERVICE = ObjectName("default", "shop-read")


async def name_itself(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says on which address it was reached."""
    host: str = writer.get_extra_info("sockname")[0]
    writer.write(host.encode())
    await writer.drain()
    await reader.read()


def slice_of(port: int, **ready: bool) -> Json:
    endpoints = [
        {"addresses": [f"127.0.0.{name[1:]}"], "conditions": {"ready": serves}} for name, serves in ready.items()
    ]
    labels = {"kubernetes.io/service-name": SERVICE.name}
    return {
        "metadata": {"name": SERVICE.name, "labels": labels},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"port": port}],
    }


async def to_no_address(host: str, port: int) -> int:
    raise AssertionError(host, port)


@asynccontextmanager
async def forwarding() -> AsyncIterator[tuple[ApiClient, ClusterForwards, int]]:
    """Two endpoints that say who they are, on one port of two addresses; and a client of the API."""
    with listening(tcp_socket(), "127.0.0.2", 0) as probe:
        port: int = probe.getsockname()[1]
    servers = [TcpListener([listening(tcp_socket(), host, port)], name_itself) for host in ("127.0.0.2", "127.0.0.3")]
    client = InProcess().client()

    async def dial(host: str, at: int) -> socket.socket:
        return await connected(tcp_socket(), host, at)

    forwards = ClusterForwards(client, dial, to_no_address)
    try:
        yield client, forwards, port
    finally:
        await forwards.close()
        for server in servers:
            await server.close()


async def reached(port: int, times: int) -> list[str]:
    """The endpoints that answer this many connections, one after the other."""
    found = []
    for _ in range(times):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        found.append((await reader.read(64)).decode())
        writer.close()
    return found


async def test_connections_go_to_ready_replicas() -> None:
    async with forwarding() as (client, forwards, port):
        await client.create(ENDPOINT_SLICES, "default", slice_of(port, a2=True, a3=True))
        way = await forwards.open_service(SERVICE)
        assert await reached(way, 4) == ["127.0.0.2", "127.0.0.3"] * 2
        drains = slice_of(port, a2=False, a3=True)
        await client.merge_patch(ENDPOINT_SLICES, SERVICE, {"endpoints": drains["endpoints"]})
        assert await reached(way, 2) == ["127.0.0.3"] * 2
        assert await forwards.open_service(SERVICE) == way


async def test_silent_endpoint_is_skipped() -> None:
    async with forwarding() as (client, forwards, port):
        await client.create(ENDPOINT_SLICES, "default", slice_of(port, a4=True, a3=True))
        assert await reached(await forwards.open_service(SERVICE), 2) == ["127.0.0.3"] * 2


async def test_a_connection_ends_where_no_endpoint_is_ready() -> None:
    async with forwarding() as (_, forwards, _port):
        assert await reached(await forwards.open_service(SERVICE), 1) == [""]
