"""What the scheduler makes of what a server says over real sockets: done, refused or unknown, and what is kept open."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import isinf

import pytest
from msgspec.structs import replace

from protocol.kubernetes.api import ApiCall, ApiRefusedError, ApiUnknownError, PageTooLargeError
from protocol.runtime import http_connection
from protocol.runtime.credentials import Credentials
from protocol.runtime.keep_alive import KEEPALIVE
from protocol.runtime.kubernetes import direct_api, large_pages, pool
from protocol.runtime.kubernetes.direct_api import DirectApi
from protocol.runtime.kubernetes.pool import ConnectionPool
from protocol.units import Instant, Seconds
from tests.nesting import DEEP_LIST

CALL = ApiCall(
    "PATCH",
    "/api/v1/nodes/n1",
    Seconds(3),
    query={"a": "b c"},
    body={"x": 1},
    content_type="application/merge-patch+json",
)
DONE = b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"kind":"Node"}'
END = b""
"""In place of an answer: the server ends the connection."""


@dataclass(slots=True)
class Server:
    """Answers each request with the next of ``answers``; counts connections and keeps what it was asked."""

    answers: list[Sequence[bytes]]
    address: str = ""
    asked: list[bytes] = field(default_factory=list)
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
                self.asked.append(head + await reader.readexactly(length))
                for piece in self.answers.pop(0) if self.answers else [DONE]:
                    if piece == END:
                        return
                    writer.write(piece)
                    await asyncio.sleep(0)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def api(
    *answers: Sequence[bytes], token: str | None = None, most: int = 8
) -> AsyncIterator[tuple[DirectApi, Server]]:
    served = Server(list(answers))
    listening = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    async with listening:
        served.address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        reached = Credentials(f"http://{served.address}/cluster/", True, lambda: token)
        async with ConnectionPool(reached, most) as connections:
            yield DirectApi(connections, reached.token, "autoscale-scheduler"), served


def answer(status: str, body: bytes = b"", head: bytes = b"") -> list[bytes]:
    return [b"HTTP/1.1 %s\r\n%sContent-Length: %d\r\n\r\n" % (status.encode(), head, len(body)) + body]


async def test_a_call_carries_path_query_token_and_body() -> None:
    async with api(token="secret") as (found, served):
        assert await found.call(CALL) == {"kind": "Node"}
    assert served.asked == [
        b"PATCH /cluster/api/v1/nodes/n1?a=b+c HTTP/1.1\r\n"
        b"Host: %s\r\nUser-Agent: autoscale-scheduler\r\nAccept: application/json\r\n"
        b"Authorization: Bearer secret\r\nContent-Type: application/merge-patch+json\r\nContent-Length: 7\r\n\r\n"
        b'{"x":1}' % served.address.encode()
    ]


async def test_without_a_token_none_is_shown() -> None:
    async with api() as (found, served):
        await found.call(CALL)
    assert b"Authorization" not in served.asked[0]


async def test_a_path_never_becomes_a_second_line() -> None:
    async with api() as (found, served):
        await found.call(ApiCall("GET", "/a\r\nEvil: yes HTTP/1.1", Seconds(3)))
    assert served.asked[0].startswith(b"GET /cluster/a%0D%0AEvil%3A%20yes%20HTTP/1.1 HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("said", "kind", "message"),
    [
        (answer("409 Conflict", b'{"message":"changed"}'), ApiRefusedError, "409: changed"),
        (answer("404 Not Found", b"<html>"), ApiRefusedError, "404: <html>"),
        (answer("500 Oh", b'{"message":"broken"}'), ApiUnknownError, "500: broken"),
        (answer("200 OK", b"[1]"), ApiUnknownError, r"PATCH /api/v1/nodes/n1: UnreadableAnswerError"),
        ([END], ApiUnknownError, "the server ended the connection"),
        ([DONE[:-1], END], ApiUnknownError, "the server ended the connection"),
        ([b"SSH-2.0\r\n\r\n"], ApiUnknownError, "the answer is not HTTP"),
        (answer("200 OK", b"{}", b"X: y\r\n" * 201), ApiUnknownError, "the answer is not HTTP"),
    ],
)
async def test_failures_say_what_is_known(said: list[bytes], kind: type[Exception], message: str) -> None:
    async with api(said) as (found, _):
        with pytest.raises(kind, match=message):
            await found.call(CALL)


async def test_a_refusal_says_when_to_come_again() -> None:
    async with api(answer("429 Slow", b"{}", b"Retry-After: 7\r\n")) as (found, _):
        with pytest.raises(ApiRefusedError) as caught:
            await found.call(CALL)
    assert caught.value.refusal.retry_after == Seconds(7.0)


async def test_call_past_deadline_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The token may come from a file, which takes as long as it takes."""
    time = [1.0]

    def slow_token() -> str:
        time[0] = 3.0
        return "secret"

    async with api() as (found, served):
        monkeypatch.setattr(found, "_token", slow_token)
        monkeypatch.setattr(found, "_now", lambda: time[0])
        with pytest.raises(ApiUnknownError, match="its time was over before it could be sent"):
            await found.call(replace(CALL, not_after=Instant(2.0)))
    assert served.asked == []


async def test_nothing_that_listens_is_unknown() -> None:
    async with ConnectionPool(Credentials("http://127.0.0.1:1", True, lambda: None), 1) as nowhere:
        found = DirectApi(nowhere, lambda: None, "test")
        with pytest.raises(ApiUnknownError, match=r"OSError|ConnectionRefusedError"):
            await found.call(CALL)
        with pytest.raises(ApiUnknownError, match=r"OSError|ConnectionRefusedError"):
            async with found.stream(CALL):
                pass


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
    monkeypatch.setattr(http_connection, "MOST_UNREAD", 1000)
    body = b'{"kind":"%s"}' % (b"x" * 10_000)
    async with api([*chunks(*(body[at : at + 700] for at in range(0, len(body), 700))), b"0\r\n\r\n"]) as (found, _):
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


def chunks(*pieces: bytes) -> list[bytes]:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return [head, *(b"%x\r\n%s\r\n" % (len(piece), piece) if piece else END for piece in pieces)]


async def lines(said: list[bytes], silence: float = 3.0) -> list[bytes]:
    async with (
        api(said) as (found, _),
        found.stream(ApiCall("GET", "/", Seconds(silence))) as stream,
    ):
        return [line async for line in stream]


async def test_lines_are_whole_however_the_bytes_were_cut() -> None:
    said = [*chunks(b"on", b"e\ntwo\n\nth", b"ree", b"\nincomp", b"lete"), b"0\r\n\r\n"]
    assert await lines(said) == [b"one", b"two", b"three"]


@pytest.mark.parametrize(
    ("said", "message"), [(chunks(b"one\n", END), "the server ended"), (chunks(b"one\n"), "TimeoutError")]
)
async def test_broken_or_silent_stream_is_unknown(said: list[bytes], message: str) -> None:
    with pytest.raises(ApiUnknownError, match=message):
        await lines(said, 0.05)


async def test_a_refused_stream_says_why() -> None:
    with pytest.raises(ApiRefusedError, match="410: too old"):
        await lines(answer("410 Gone", b'{"message":"too old"}'))


async def test_a_page_is_taken_apart_object_by_object() -> None:
    deep = b'{"metadata":{"name":"a"},"spec":' + DEEP_LIST + b"}"
    body = b'{"metadata":{"resourceVersion":"9","continue":"more"},"items":[%s,{"kind":"Node"}]}' % deep
    async with api([*chunks(body[:100], body[100:]), b"0\r\n\r\n"]) as (found, _):
        page = await found.page(CALL)
    assert (page.version, page.rest, page.objects) == ("9", "more", [{"kind": "Node"}])
    assert [str(each.name) for each in page.unreadable] == ["/a"]


async def test_oversized_page_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_api, "LONGEST_PAGE", 10)
    monkeypatch.setattr(large_pages, "LONGEST_PAGE", 10)
    async with api(chunks(b"123456", b"789012")) as (found, _):
        with pytest.raises(PageTooLargeError, match="more than 10 bytes"):
            await found.page(CALL)


async def test_fast_server_is_throttled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "MOST_UNREAD", 1000)
    held: list[str] = []
    watch(monkeypatch, held.append)
    said = [*chunks(*[b"x" * 99 + b"\n"] * 50), b"0\r\n\r\n"]
    assert await lines([b"".join(said)]) == [b"x" * 99] * 50
    assert held[:2] == ["pause_reading", "resume_reading"]


def watch(monkeypatch: pytest.MonkeyPatch, tell: Callable[[str], None]) -> None:
    """Tells what is asked of transports."""
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


async def test_other_paths_have_answers_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_api, "LONGEST_PAGE", 10)
    monkeypatch.setattr(large_pages, "LONGEST_PAGE", 10)
    async with api(answer("200 OK", b"ok" * 10), [END]) as (found, _):
        assert await found.raw(CALL) == (b"ok" * 10, {})
        with pytest.raises(ApiUnknownError, match="the server ended the connection"):
            await found.raw(CALL)


@pytest.mark.parametrize("is_patient", [True, False])
async def test_only_the_impatient_give_up_waiting_for_a_connection(
    monkeypatch: pytest.MonkeyPatch, *, is_patient: bool
) -> None:
    async with ConnectionPool(Credentials("http://127.0.0.1:1", True, lambda: None), 1) as busy:
        deadlines: list[float] = []

        async def lend(deadline: float) -> None:
            deadlines.append(deadline)
            raise TimeoutError

        monkeypatch.setattr(busy, "lend", lend)
        with pytest.raises(ApiUnknownError, match="TimeoutError"):
            await DirectApi(busy, lambda: None, "test", is_patient=is_patient).raw(CALL)
    assert [isinf(deadline) for deadline in deadlines] == [is_patient]
