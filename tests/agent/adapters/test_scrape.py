"""The guest's node_exporter over HTTP, with every fault a guest can have."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from agent.adapters.scrape import LARGEST, NodeExporter
from agent.core.events import Fault
from agent.core.guest import GuestSample
from agent.ports import PortError
from protocol.units import Seconds
from tests.agent.adapters.answering import Chunks, client, silent, unreachable

URL = "http://10.255.255.254:9100/metrics"


def exporter(http: httpx.AsyncClient, deadline: float = 2.0) -> NodeExporter:
    return NodeExporter(http, URL, Seconds(deadline))


async def failure(http: httpx.AsyncClient, deadline: float = 2.0) -> tuple[Fault, str]:
    with pytest.raises(PortError) as caught:
        await exporter(http, deadline).scrape()
    return caught.value.fault, caught.value.reason


async def test_asks_only_for_what_it_needs_and_reads_it() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url.query, "ascii"))
        assert request.headers["Accept-Encoding"] == "identity"
        return httpx.Response(200, stream=Chunks(b"node_load1 0.5\n"))

    assert await exporter(client(answer)).scrape() == GuestSample(load1=0.5)
    wanted = ["cpu", "stat", "loadavg", "meminfo", "pressure", "vmstat"]
    assert asked == ["&".join(f"collect%5B%5D={name}" for name in wanted)]


async def test_an_exporter_that_refuses_a_selection_is_asked_for_everything_from_then_on() -> None:
    asked: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.query)
        return httpx.Response(400 if request.url.query else 200, stream=Chunks(b"node_load1 0.5\n"))

    guest = exporter(client(answer))
    for _ in range(2):
        with pytest.raises(PortError, match="answer 400"):
            await guest.scrape()
    assert await guest.scrape() == GuestSample(load1=0.5)
    assert asked[2] == b""


async def test_an_exporter_without_vmstat_is_asked_for_the_rest() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        refused = b"vmstat" in request.url.query
        return httpx.Response(400 if refused else 200, stream=Chunks(b"node_load1 0.5\n"))

    guest = exporter(client(answer))
    with pytest.raises(PortError, match="answer 400"):
        await guest.scrape()
    assert await guest.scrape() == GuestSample(load1=0.5)


async def test_a_guest_in_trouble_says_so() -> None:
    assert await failure(client(lambda _: httpx.Response(500))) == (
        Fault.GUEST,
        f"the guest's metrics at {URL} answer 500",
    )


async def test_a_page_that_does_not_end_is_not_read_to_the_end() -> None:
    body = Chunks(*[b"x" * (LARGEST // 2)] * 3)
    assert await failure(client(lambda _: httpx.Response(200, stream=body))) == (
        Fault.GUEST,
        f"the guest's metrics have more than {LARGEST} bytes",
    )


async def test_a_page_that_breaks_off_is_no_page() -> None:
    body = Chunks(b"node_load1 0.5\n", error=httpx.RemoteProtocolError("closed"))
    fault, reason = await failure(client(lambda _: httpx.Response(200, stream=body)))
    assert (fault, "RemoteProtocolError: closed" in reason) == (Fault.NETWORK, True)


async def test_a_guest_that_cannot_be_reached_is_the_networks_fault() -> None:
    assert await failure(unreachable()) == (
        Fault.NETWORK,
        f"the guest's metrics at {URL} cannot be reached: ConnectError: connection refused",
    )


async def test_a_guest_that_does_not_answer_is_given_up_at_the_deadline() -> None:
    assert await failure(silent(), 0.5) == (Fault.NETWORK, f"the guest's metrics at {URL} did not answer within 0.5 s")

    async def hang(_: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    hanging = httpx.AsyncClient(transport=httpx.MockTransport(hang))
    assert await failure(hanging, 0.0) == (Fault.NETWORK, f"the guest's metrics at {URL} did not answer within 0 s")
