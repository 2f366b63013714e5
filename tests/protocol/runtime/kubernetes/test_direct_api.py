"""Connections to the API server: what is sent over them, how long they are kept, and when they are given up."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from math import isinf

import pytest
from msgspec.structs import replace

from protocol.kubernetes.api import ApiCall, ApiRefusedError, ApiUnknownError
from protocol.runtime import http_connection
from protocol.runtime.credentials import Credentials
from protocol.runtime.keep_alive import KEEPALIVE
from protocol.runtime.kubernetes import pool
from protocol.runtime.kubernetes.direct_api import DirectApi
from protocol.runtime.kubernetes.pool import ConnectionPool
from protocol.units import Instant, Seconds
from tests.protocol.runtime.kubernetes.api_server import CALL, DONE, END, LAST_CHUNK, Server, answer, chunks, serving


@asynccontextmanager
async def api(
    *answers: Sequence[bytes], token: str | None = None, most: int = 8
) -> AsyncIterator[tuple[DirectApi, Server]]:
    async with serving(*answers, token=token) as (reached, served), ConnectionPool(reached, most) as connections:
        yield DirectApi(connections, reached.token, "autoscale-scheduler"), served


async def test_a_call_carries_path_query_token_and_body() -> None:
    async with api(token="secret") as (found, served):
        assert await found.call(CALL) == {"kind": "Node"}
    assert served.asked == [
        b"PATCH /cluster/api/v1/nodes/n1?a=b+c HTTP/1.1\r\n"
        b"Host: %s\r\nUser-Agent: autoscale-scheduler\r\nAccept: application/json\r\n"
        b"Authorization: Bearer secret\r\nContent-Type: application/merge-patch+json\r\nContent-Length: 7\r\n\r\n"
        b'{"x":1}' % served.address.encode()
    ]


async def test_a_path_never_becomes_a_second_line() -> None:
    async with api() as (found, served):
        await found.call(ApiCall("GET", "/a\r\nEvil: yes HTTP/1.1", Seconds(3)))
    assert served.asked[0].startswith(b"GET /cluster/a%0D%0AEvil%3A%20yes%20HTTP/1.1 HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ([END], "the server closed the connection"),
        ([DONE[:-1], END], "the server closed the connection"),
        ([b"SSH-2.0\r\n\r\n"], "the response is not HTTP"),
        (answer("200 OK", b"{}", b"X: y\r\n" * 201), "the response is not HTTP"),
    ],
)
async def test_answer_that_breaks_off_is_unknown(said: list[bytes], message: str) -> None:
    async with api(said) as (found, _):
        with pytest.raises(ApiUnknownError, match=message):
            await found.call(CALL)


async def test_call_past_deadline_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The token may come from a file, which takes as long as it takes."""
    time = [1.0]

    def slow_token() -> str:
        time[0] = 3.0
        return "secret"

    async with api() as (found, served):
        monkeypatch.setattr(found, "_token", slow_token)
        monkeypatch.setattr(found, "_now", lambda: time[0])
        with pytest.raises(ApiUnknownError, match="too late to send the request"):
            await found.call(replace(CALL, not_after=Instant(2.0)))
    assert served.asked == []


async def test_slow_call_is_unknown_and_drops_connection() -> None:
    async with api([]) as (found, served):
        with pytest.raises(ApiUnknownError, match="TimeoutError"):
            await found.call(ApiCall("GET", "/", Seconds(0.02)))
        assert await found.call(CALL) == {"kind": "Node"}
    assert served.connections == 2


async def test_connection_is_reused_after_refusals() -> None:
    async with api([DONE], answer("409 Conflict"), [DONE[:30], DONE[30:]]) as (found, served):
        await found.call(CALL)
        with pytest.raises(ApiRefusedError):
            await found.call(CALL)
        await found.call(CALL)
    assert served.connections == 1


async def test_calls_wait_for_pool_connections() -> None:
    async with api(most=2) as (found, served):
        await asyncio.gather(*(found.call(CALL) for _ in range(5)))
    assert (len(served.asked), served.connections) == (5, 2)


async def test_call_without_connection_times_out_alone() -> None:
    async with api([], most=1) as (found, _):
        slow = asyncio.create_task(found.call(replace(CALL, timeout=Seconds(0.2))))
        await asyncio.sleep(0)
        with pytest.raises(ApiUnknownError, match="TimeoutError"):
            await found.call(replace(CALL, timeout=Seconds(0.02)))
        with pytest.raises(ApiUnknownError, match="TimeoutError"):
            await slow
        assert await found.call(CALL) == {"kind": "Node"}


async def test_abandoned_call_returns_its_connection() -> None:
    async with api([], most=1) as (found, served):
        given_up = asyncio.create_task(found.call(CALL))
        while not served.asked:  # noqa: ASYNC110 - the server is a real one
            await asyncio.sleep(0)
        given_up.cancel()
        assert await found.call(CALL) == {"kind": "Node"}
    assert served.connections == 2


async def test_long_answer_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "MAX_UNREAD", 1000)
    body = b'{"kind":"%s"}' % (b"x" * 10_000)
    async with api([*chunks(*(body[at : at + 700] for at in range(0, len(body), 700))), LAST_CHUNK]) as (found, _):
        assert await found.call(CALL) == {"kind": "x" * 10_000}


@pytest.mark.parametrize(
    "last",
    [
        [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"],
        [DONE + b"HTTP/1.1 200 OK\r\n"],  # said more than was asked
        [DONE, END],
    ],
)
async def test_a_connection_that_cannot_go_on_is_left(last: list[bytes]) -> None:
    async with api(last) as (found, served):
        await found.call(CALL)
        await asyncio.sleep(0.02)
        assert await found.call(CALL) == {"kind": "Node"}
    assert served.connections == 2


async def test_long_idle_connection_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "IDLE", Seconds(-1.0))
    async with api() as (found, served):
        await found.call(CALL)
        await found.call(CALL)
    assert served.connections == 2


async def test_fast_server_is_throttled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "MAX_UNREAD", 1000)
    held: list[str] = []
    watch(monkeypatch, held.append)
    said = [*chunks(*[b"x" * 99 + b"\n"] * 50), LAST_CHUNK]
    async with api([b"".join(said)]) as (found, _), found.stream(ApiCall("GET", "/", Seconds(3))) as stream:
        assert [line async for line in stream] == [b"x" * 99] * 50
    assert held[:2] == ["pause_reading", "resume_reading"]


def watch(monkeypatch: pytest.MonkeyPatch, tell: Callable[[str], None]) -> None:
    """Call ``tell`` when a transport pauses or resumes reading."""
    transport = asyncio.selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
    for name in ("pause_reading", "resume_reading"):
        usual = getattr(transport, name)

        def told(self: object, name: str = name, usual: Callable[[object], None] = usual) -> None:
            tell(name)
            usual(self)

        monkeypatch.setattr(transport, name, told)


@asynccontextmanager
async def never_answering() -> AsyncIterator[ConnectionPool]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        async with ConnectionPool(Credentials(url, True, lambda: None), 1) as pooled:
            yield pooled


async def test_idle_connection_is_probed() -> None:
    async with never_answering() as pooled, pooled.connection() as opened:
        found = [(level, option, opened.socket.getsockopt(level, option)) for level, option, _ in KEEPALIVE]
    assert found == list(KEEPALIVE)


async def test_connect_timeout_is_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "CONNECT", 0.0)
    async with never_answering() as pooled:
        with pytest.raises(ApiUnknownError, match="TimeoutError"):
            async with DirectApi(pooled, lambda: None, "test").stream(CALL):
                pass


@pytest.mark.parametrize("is_patient", [True, False])
async def test_only_impatient_clients_time_out_waiting(monkeypatch: pytest.MonkeyPatch, *, is_patient: bool) -> None:
    async with ConnectionPool(Credentials("http://127.0.0.1:1", True, lambda: None), 1) as busy:
        deadlines: list[float] = []

        async def acquire(deadline: float) -> None:
            deadlines.append(deadline)
            raise TimeoutError

        monkeypatch.setattr(busy, "acquire", acquire)
        with pytest.raises(ApiUnknownError, match="TimeoutError"):
            await DirectApi(busy, lambda: None, "test", is_patient=is_patient).raw(CALL)
    assert [isinf(deadline) for deadline in deadlines] == [is_patient]
