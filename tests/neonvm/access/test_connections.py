"""The controller talks only to the runner of a pod that has proven which pod it is, never to another program there."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from deploy.neonvm.access import connections as access
from deploy.neonvm.access.authenticated_listener import AuthenticatedListener
from deploy.neonvm.access.connections import (
    ImpostorError,
    RunnerConnections,
    RunnerEndpoint,
    RunnerHttpResponse,
    ask,
)
from deploy.neonvm.access.keys import PodIdentity
from deploy.neonvm.access.pod_connection import PodConnection
from deploy.neonvm.network.sockets import listening, tcp_socket
from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.qemu_process import EventListeners, Monitor
from deploy.neonvm.remote.runner_client import PollLimiter, RunnerClient
from protocol.units import MilliCpu
from tests.neonvm.access.secured_pod import Reviews, SecuredPod, Streams, connections, pem, secured_pod, showing


async def test_a_pod_proves_once_which_it_is(pod: SecuredPod) -> None:
    reviews = Reviews()
    client = RunnerClient(connections(reviews), pod.place, PollLimiter())
    assert (await client.status()).cpu == 1000
    assert await client.set_cpu(MilliCpu(2500)) == MilliCpu(2500)
    assert await client.is_ready()
    assert reviews.asked == 1


async def test_another_pods_token_proves_nothing(tmp_path: Path) -> None:
    """A pod at another pod's former address presents its own token: it gets no order."""
    async with secured_pod(tmp_path, 2) as other:
        with pytest.raises(ImpostorError):
            await connections(Reviews()).api(other.place)
        with pytest.raises(ImpostorError):
            await connections(Reviews()).monitor(other.place)
        assert (other.pod.daemon.asked, other.monitor.heard) == ([], [])


@pytest.mark.parametrize("answer", [b"", b"[]", b'{"token": ""}', b'{"token": 7}', b"[" * 70_000])
async def test_an_answer_without_a_token_proves_nothing(answer: bytes) -> None:
    async def serve(_: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)
        await reader.read()

    door = AuthenticatedListener(
        listening(tcp_socket(), "127.0.0.1", 0), serve, PodIdentity("any", pem(), Path()).context
    )
    with pytest.raises(OSError, match="did not prove"):
        await connections(Reviews()).api(RunnerEndpoint("default/db-x", "uid-1", "127.0.0.1", door.port, 1))
    await door.close()


async def test_unidentified_pod_delays_no_other(pod: SecuredPod, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked again after a change of authorities. Without a timeout, 64 sleeping pods of one tenant would keep all
    places for the long polls by which others wake, for an hour.
    """
    monkeypatch.setattr(access, "INTRODUCTION_SECONDS", 0.2)
    monkeypatch.setattr(access, "_MAX_HANDSHAKES", 1)

    async def hear(_: str, reader: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        await reader.read()

    door = AuthenticatedListener(
        listening(tcp_socket(), "127.0.0.1", 0), hear, PodIdentity("any", pem(), Path()).context
    )
    known, silent = connections(Reviews()), RunnerEndpoint("default/db-y", "uid-2", "127.0.0.1", door.port, 1)
    waiting = asyncio.create_task(known.long_poll(silent, "GET", "/woken", b""))
    await asyncio.sleep(0.05)
    async with asyncio.timeout(10):
        assert (await known.long_poll(pod.place, "GET", "/healthz", b"")).status == 200
        with pytest.raises(OSError, match="timed out"):
            await waiting
    await door.close()


@pytest.mark.parametrize("request_name", ["ask", "long_poll"])
async def test_hanging_runners_delay_no_other_namespace(
    pod: SecuredPod, monkeypatch: pytest.MonkeyPatch, request_name: str
) -> None:
    """A tenant's own runner may take an order and never respond. With enough such pods nobody else's VM was polled,
    resized or woken.
    """
    monkeypatch.setattr(access, "_MAX_REQUESTS", 2)
    monkeypatch.setattr(access, "_MAX_HANDSHAKES", 2)

    async def hear(_: str, reader: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        await reader.read()

    door = AuthenticatedListener(
        listening(tcp_socket(), "127.0.0.1", 0), hear, PodIdentity("any", pem(), Path()).context
    )
    known = connections(Reviews())
    hanging = [RunnerEndpoint(f"evil/{number}", f"e-{number}", "127.0.0.1", door.port, 1) for number in range(5)]
    send = getattr(known, request_name)
    waiting = [asyncio.create_task(send(endpoint, "POST", "/cpu_change", b"")) for endpoint in hanging]
    await asyncio.sleep(0.05)
    async with asyncio.timeout(2):
        assert (await send(pod.place, "GET", "/healthz", b"")).status == 200
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    await door.close()


async def test_pod_with_stolen_address_is_rejected(pod: SecuredPod) -> None:
    """The same address with another key: it gets nothing, not even with a copy of the first pod's token."""
    reviews = Reviews()
    known = connections(reviews)
    (await known.api(pod.place)).close()
    asked: list[str] = []

    async def serve(who: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(f"{who} {(await reader.readline()).decode()}")
        writer.close()

    thief = AuthenticatedListener(
        listening(tcp_socket(), "127.0.0.1", 0), serve, PodIdentity("thief", pem(), Path()).context
    )
    stolen = RunnerEndpoint("default/db-x", "uid-1", "127.0.0.1", thief.port, thief.port)
    for speak in (known.api, known.monitor):
        with pytest.raises(ImpostorError):
            await speak(stolen)
    await thief.close()
    assert not [each for each in asked if each.strip() != "neonvm-controller"]
    known.forget("uid-1")
    (await known.api(pod.place)).close()
    assert reviews.asked == 2


async def test_never_falls_back_to_plain_text(tmp_path: Path) -> None:
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(1))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        place = RunnerEndpoint("default/db-x", "uid-1", "127.0.0.1", port, port)
        with pytest.raises(GuestError, match="cannot be reached"):
            await RunnerClient(connections(Reviews()), place, PollLimiter()).set_cpu(MilliCpu(1000))
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await connections(Reviews()).monitor(place)
    assert set(heard) == {b"\x16"}, "a handshake, and nothing else"


async def test_an_open_pod_is_spoken_to_plainly() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.0 200 OK\r\n\r\n{"VCPUs": 2}')
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        place = RunnerEndpoint("default/db-x", "uid-1", "127.0.0.1", port, port, is_open=True)
        known = connections(Reviews())
        assert await RunnerClient(known, place, PollLimiter()).cpu() == MilliCpu(2000)
        (await known.monitor(place)).close()
        await asyncio.sleep(0.01)  # the relay closes its sockets in the loop


@asynccontextmanager
async def silent_runner(
    tls: Callable[[], ssl.SSLContext] | None,
) -> AsyncIterator[tuple[int, asyncio.Future[bytes | OSError]]]:
    """The port of a runner that never answers, and how its only connection ends after a request."""
    ended: asyncio.Future[bytes | OSError] = asyncio.get_running_loop().create_future()

    async def serve(_: str, reader: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            ended.set_result(await reader.read())
        except OSError as error:
            ended.set_result(error)

    door = AuthenticatedListener(listening(tcp_socket(), "127.0.0.1", 0), serve, tls)
    yield door.port, ended
    await door.close()


@pytest.mark.parametrize(
    "order_it", [lambda to: to.set_cpu(MilliCpu(4000)), lambda to: to.wake(1)], ids=["grow", "wake"]
)
async def test_order_given_up_is_discarded(order_it: Callable[[RunnerClient], Coroutine[None, None, object]]) -> None:
    """Otherwise the kernel sends it once the network is back, after newer orders: a guest would grow or wake again."""
    async with silent_runner(None) as (port, ended), asyncio.timeout(10):
        place = RunnerEndpoint("default/db-x", "uid-1", "127.0.0.1", port, port, is_open=True)
        order = asyncio.create_task(order_it(RunnerClient(connections(Reviews()), place, PollLimiter())))
        await asyncio.sleep(0.05)
        order.cancel()
        assert isinstance(await ended, ConnectionResetError)


async def test_tls_connections_are_reset_too() -> None:
    async with silent_runner(PodIdentity("any", pem(), Path()).context) as (port, ended), asyncio.timeout(10):
        connection = await PodConnection.opened("127.0.0.1", port, showing().context)
        order = asyncio.create_task(ask(connection, "POST", "/cpu_change", b""))
        await asyncio.sleep(0.05)
        order.cancel()
        connection.reset()
        assert isinstance(await ended, ConnectionResetError)


async def test_only_the_leader_gives_orders(pod: SecuredPod) -> None:
    leads = [True]
    known = RunnerConnections(showing, Reviews().pod_of, lambda: leads[-1])
    client = RunnerClient(known, pod.place, PollLimiter())
    assert await client.set_cpu(MilliCpu(2500)) == MilliCpu(2500)
    leads.append(False)
    with pytest.raises(GuestError, match="does not hold the Lease"):
        await client.set_cpu(MilliCpu(4000))
    for order in (client.fall_asleep(0), client.wake(1)):
        with pytest.raises(GuestError, match="does not hold the Lease"):
            await order
    with pytest.raises(OSError, match="does not hold the Lease"):
        await known.monitor(pod.place)
    assert (await client.status()).cpu == 1000, "reading is no order"
    assert not pod.pod.runner.sleep.is_on


async def test_new_authorities_reach_a_pod_that_runs(pod: SecuredPod) -> None:
    """The controller's CA changes: it notifies the pod with its old certificate, and then authenticates with its new
    one.
    """
    reviews, both = Reviews(), pem() + pem("next")
    shown = [showing()]
    known = RunnerConnections(lambda: shown[-1], reviews.pod_of)
    (await known.api(pod.place)).close()
    assert await pod.ask(showing(by="next").context, "GET", "/cpu_current") is None
    shown.append(showing(trusted=both))
    (await known.api(pod.place)).close()
    shown.append(showing(by="next", trusted=pem("next")))
    (await known.api(pod.place)).close()
    answer = await pod.ask(showing(by="next").context, "GET", "/cpu_current")
    assert answer is not None
    assert answer.status == 200
    assert await pod.ask(showing().context, "GET", "/cpu_current") is None, "the old one is trusted no more"


async def test_authorities_that_cannot_be_read_change_nothing(pod: SecuredPod) -> None:
    for unusable in ("", "nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        answer = await pod.ask(showing().context, "POST", "/introduce", {"authorities": unusable})
        assert answer is not None
        assert answer.status == 400
    pod.token.unlink()
    answer = await pod.ask(showing().context, "POST", "/introduce", {"authorities": pem("theirs")})
    assert answer is not None
    assert answer.status == 503
    assert await pod.ask(showing().context, "GET", "/cpu_current")


async def test_a_monitor_is_used_through_tls(pod: SecuredPod) -> None:
    end = await connections(Reviews()).monitor(pod.place)
    monitor = Monitor("default/db-x", EventListeners())
    await monitor.connect(end)
    assert await monitor.call("query-version") == {}
    with pytest.raises(GuestError, match="was not migrated away"):
        await monitor.call("quit")
    await monitor.close()
    assert pod.monitor.heard == ["qmp_capabilities", "query-version"]


async def asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> RunnerHttpResponse:
    return await Streams(reader, writer).ask("GET", "/status", b"")


@pytest.mark.parametrize(
    "said",
    [b"", b"SSH-2.0\r\n\r\n", b"HTTP/1.0 x\r\n\r\n", b"HTTP/1.0 200\r\nContent-Length: 9\r\n\r\nshort",
     b"HTTP/1.0 200\r\nContent-Length: 999999999\r\n\r\n", b"HTTP/1.0 200\r\nContent-Length: -1\r\n\r\n",
     b"HTTP/1.0 200\r\n\r\n" + b"x" * 300_000, b"HTTP/1.0 200\r\nA: " + b"x" * 100_000],
)  # fmt: skip
async def test_an_answer_that_is_none_is_a_fault(said: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        with pytest.raises(OSError, match="invalid response to"):
            await asked(reader, writer)
        writer.close()


async def test_an_answer_ends_with_its_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nA: b\r\n\r\nnothing here")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        assert await asked(reader, writer) == RunnerHttpResponse(404, {"a": "b"}, b"nothing here")
        writer.close()


async def test_a_packed_answer_is_not_unpacked(pod: SecuredPod, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod may run any program: a response that would decompress to gigabytes is an error."""

    async def packed(*_: object) -> RunnerHttpResponse:
        return RunnerHttpResponse(200, {"content-encoding": "gzip"}, b"\x1f\x8b")

    known = connections(Reviews())
    (await known.api(pod.place)).close()
    monkeypatch.setattr(access, "ask", packed)
    with pytest.raises(GuestError, match="compressed response"):
        await RunnerClient(known, pod.place, PollLimiter()).status()
