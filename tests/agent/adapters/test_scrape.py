"""The guest's node_exporter over HTTP, with every fault a guest can have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from agent.adapters.scrape import BYTES_PER_SECOND, LARGEST, NodeExporter
from agent.core.events import Fault
from agent.core.guest import GuestSample
from agent.ports import PortError
from deploy.neonvm.network.sockets import free_port
from protocol.runtime.http_connection import MAX_OUTSIDE_BODY
from protocol.units import Seconds

PAGE = b"node_load1 0.5\n"
SELECTED = ["cpu", "stat", "loadavg", "meminfo", "pressure", "vmstat", "textfile"]


def answer(status: int = 200, body: bytes = PAGE) -> bytes:
    return b"HTTP/1.1 %d Said\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


@dataclass(slots=True)
class Guest:
    """An exporter that answers each request with the next of ``answers``; after the last it closes the connection."""

    answers: Sequence[bytes]
    url: str = ""
    asked: list[str] = field(default_factory=list)
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while len(self.asked) < len(self.answers):
                self.asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
                writer.write(self.answers[len(self.asked) - 1])
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def guest(*answers: bytes, deadline: float = 2.0, query: str = "") -> AsyncIterator[tuple[NodeExporter, Guest]]:
    served = Guest(answers)
    async with await asyncio.start_server(served.serve, "127.0.0.1", 0) as listening:
        served.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/metrics{query}"
        exporter = NodeExporter(served.url, Seconds(deadline))
        yield exporter, served
        exporter.close()


async def failure(exporter: NodeExporter) -> tuple[Fault, str]:
    with pytest.raises(PortError) as caught:
        await exporter.scrape()
    return caught.value.fault, caught.value.reason


async def test_requests_needed_collectors_over_one_connection() -> None:
    async with guest(answer(), answer()) as (exporter, served):
        assert [await exporter.scrape(), await exporter.scrape()] == [GuestSample(load1=0.5)] * 2
    wanted = "&".join(f"collect%5B%5D={name}" for name in SELECTED)
    host = served.url.removeprefix("http://").removesuffix("/metrics")
    asked = (
        f"GET /metrics?{wanted} HTTP/1.1\r\nHost: {host}\r\n"
        "User-Agent: autoscale-agent\r\nAccept-Encoding: identity\r\n\r\n"
    )
    assert (served.asked, served.connections) == ([asked, asked], 1)


async def test_falls_back_when_collectors_are_refused() -> None:
    """An exporter that refuses a selection is asked for fewer collectors, then for all."""
    async with guest(*[answer(400)] * 4, answer(), answer(400), query="?a=b") as (exporter, served):
        for _ in range(4):
            assert await failure(exporter) == (Fault.GUEST, f"the guest's metrics at {served.url} returned 400")
        assert await exporter.scrape() == GuestSample(load1=0.5)
        assert await failure(exporter) == (Fault.GUEST, f"the guest's metrics at {served.url} returned 400")
    lines = [asked.split()[1] for asked in served.asked]
    selections = [SELECTED, SELECTED[:-1], [*SELECTED[:-2], "textfile"], SELECTED[:-2]]
    assert lines[:4] == ["/metrics?a=b&" + "&".join(f"collect%5B%5D={name}" for name in names) for names in selections]
    assert lines[4:] == ["/metrics?a=b"] * 2


async def test_a_guest_in_trouble_says_so() -> None:
    async with guest(answer(500)) as (exporter, served):
        assert await failure(exporter) == (Fault.GUEST, f"the guest's metrics at {served.url} returned 500")


async def test_endless_page_is_cut_off() -> None:
    endless = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (LARGEST + 1)
    async with guest(endless) as (exporter, _):
        assert await failure(exporter) == (Fault.GUEST, f"the guest's metrics page exceeds {LARGEST} bytes")


@pytest.mark.parametrize(
    "begun",
    [
        b"HTTP/1.1 200 OK\r\nX: ",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX: ",
    ],
)
async def test_oversized_non_page_is_cut_off(begun: bytes) -> None:
    async with guest(begun + b"x" * 4 * MAX_OUTSIDE_BODY) as (exporter, _):
        fault, reason = await failure(exporter)
    assert (fault, "more than 65536 bytes outside of its body" in reason) == (Fault.NETWORK, True)


async def test_page_of_single_bytes_is_cut_off() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with guest(head + b"1\r\n\n\r\n" * (LARGEST // 2) + b"0\r\n\r\n") as (exporter, served):
        fault, reason = await failure(exporter)
    broken = "BrokenConnectionError: the response arrives in pieces of less than 64 bytes"
    assert (fault, reason) == (Fault.NETWORK, f"the guest's metrics at {served.url} cannot be reached: {broken}")


async def test_truncated_page_is_an_error() -> None:
    """The next scrape opens a new connection."""
    async with guest(answer()[:-1], answer()) as (exporter, served):
        served.answers = served.answers[:1]
        fault, reason = await failure(exporter)
        served.answers = [b"", answer()]
        assert await exporter.scrape() == GuestSample(load1=0.5)
    assert (fault, reason.endswith("BrokenConnectionError: the server closed the connection")) == (Fault.NETWORK, True)
    assert served.connections == 2


async def test_unreachable_guest_blames_network() -> None:
    fault, reason = await failure(NodeExporter(f"http://127.0.0.1:{free_port()}/metrics", Seconds(2.0)))
    assert (fault, "cannot be reached: ConnectionRefusedError" in reason) == (Fault.NETWORK, True)


async def test_invalid_address_is_unreachable() -> None:
    fault, reason = await failure(NodeExporter("http://[pod]:9100/metrics", Seconds(2.0)))
    assert (fault, "cannot be reached: ValueError" in reason) == (Fault.NETWORK, True)


async def test_silent_guest_times_out() -> None:
    async with guest(b"", answer(), deadline=0.02) as (exporter, served):
        expected = Fault.NETWORK, f"the guest's metrics at {served.url} did not respond within 0.02 s"
        assert await failure(exporter) == expected
    assert served.asked


async def test_large_pages_are_read_less_often() -> None:
    """Guests that served a megabyte four times a second would take all CPU time of their node's agent."""
    page = PAGE + b"#" * 64 * 1024
    async with guest(answer(), answer(body=page), answer()) as (exporter, _):
        loop = asyncio.get_running_loop()
        await exporter.scrape()
        # A stall between the large page and a later time would hide some of the wait.
        began = loop.time()
        await exporter.scrape()
        await exporter.scrape()
    assert loop.time() - began >= len(page) / BYTES_PER_SECOND > 0.1
