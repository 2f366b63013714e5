"""Both clients of the Kubernetes API classify a server's responses in the same way: done, refused or unknown."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import parse_qs, urlsplit

import httpx2 as httpx
import pytest
from msgspec.structs import replace

from protocol.kubernetes.api import ApiCall, ApiError, ApiRefusedError, ApiUnknownError, PageTooLargeError, RawApi
from protocol.kubernetes.pages import Page
from protocol.runtime.credentials import Credentials, CredentialsError
from protocol.runtime.kubernetes.direct_api import DirectApi
from protocol.runtime.kubernetes.http_api import HttpApi, http_client
from protocol.runtime.kubernetes.pool import ConnectionPool
from protocol.units import Seconds
from tests.nesting import DEEP, DEEP_LIST
from tests.protocol.runtime.kubernetes.api_server import CALL, END, LAST_CHUNK, Server, answer, chunks, serving

NAME: Final = "autoscale-scheduler"
Make = Callable[[Credentials], RawApi]


def direct(reached: Credentials) -> RawApi:
    return DirectApi(ConnectionPool(reached, 1), reached.token, NAME)


def over_httpx(reached: Credentials) -> RawApi:
    return HttpApi(http_client(reached, httpx.Limits(), NAME), reached.token)


pytestmark = pytest.mark.parametrize("make", [direct, over_httpx])


@asynccontextmanager
async def api(make: Make, *answers: Sequence[bytes], token: str | None = None) -> AsyncIterator[tuple[RawApi, Server]]:
    async with serving(*answers, token=token) as (reached, served):
        client = make(reached)
        try:
            yield client, served
        finally:
            await client.aclose()


@pytest.mark.parametrize("token", ["secret", None])
async def test_call_carries_body_query_and_token(make: Make, token: str | None) -> None:
    async with api(make, token=token) as (client, served):
        assert await client.call(CALL) == {"kind": "Node"}
    (request,) = served.asked
    head, _, body = request.decode().partition("\r\n\r\n")
    first, *lines = head.split("\r\n")
    method, target, _ = first.split()
    path, query = urlsplit(target).path, urlsplit(target).query
    headers = dict(line.split(": ", 1) for line in lines)
    assert (method, path, parse_qs(query), body) == ("PATCH", "/cluster/api/v1/nodes/n1", {"a": ["b c"]}, '{"x":1}')
    assert headers["Content-Type"] == "application/merge-patch+json"
    assert headers["User-Agent"] == NAME
    assert headers.get("Authorization") == (token and f"Bearer {token}")


@pytest.mark.parametrize(
    ("said", "kind", "message"),
    [
        (answer("409 Conflict", b'{"message":"changed"}'), ApiRefusedError, "409: changed"),
        (answer("404 Not Found", b"<html>"), ApiRefusedError, "404: <html>"),
        (answer("429 Slow", b'{"message":"slow down"}', b"Retry-After: 7\r\n"), ApiRefusedError, "429: slow down"),
        (answer("500 Oh", b'{"message":"broken"}'), ApiUnknownError, "500: broken"),
        (answer("200 OK", b"[1]"), ApiUnknownError, "PATCH /api/v1/nodes/n1: UnreadableAnswerError"),
        (answer("200 OK", DEEP), ApiUnknownError, "fewer levels of nesting"),
        ([END], ApiUnknownError, "PATCH /api/v1/nodes/n1: "),
        ([b"SSH-2.0\r\n\r\n"], ApiUnknownError, "PATCH /api/v1/nodes/n1: "),
    ],
)
async def test_failures_say_what_is_known(make: Make, said: list[bytes], kind: type[ApiError], message: str) -> None:
    async with api(make, said) as (client, _):
        with pytest.raises(kind, match=message) as caught:
            await client.call(CALL)
    assert caught.value.retry_after == (Seconds(7.0) if message.startswith("429") else None)


async def test_unreachable_server_is_unknown(make: Make) -> None:
    client = make(Credentials("http://127.0.0.1:1", True, lambda: None))
    with pytest.raises(ApiUnknownError, match=r"ConnectError|OSError|ConnectionRefusedError"):
        await client.call(CALL)
    with pytest.raises(ApiUnknownError, match=r"ConnectError|OSError|ConnectionRefusedError"):
        async with client.stream(CALL):
            pass


async def test_token_that_cannot_be_read_is_unknown(make: Make) -> None:
    def no_token() -> str:
        raise CredentialsError("the plug-in failed")

    async with serving() as (reached, served):
        client = make(Credentials(reached.server, True, no_token))
        with pytest.raises(ApiUnknownError, match="CredentialsError: the plug-in failed"):
            await client.call(CALL)
    assert served.asked == []


async def lines(make: Make, said: list[bytes], silence: float = 3.0) -> list[bytes]:
    async with (
        api(make, said) as (client, _),
        client.stream(ApiCall("GET", "/", Seconds(silence))) as stream,
    ):
        return [line async for line in stream]


async def test_lines_are_whole_however_the_bytes_were_cut(make: Make) -> None:
    said = [*chunks(b"on", b"e\ntwo\n\nth", b"ree", b"\nincomp", b"lete"), LAST_CHUNK]
    assert await lines(make, said) == [b"one", b"two", b"three"]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (chunks(b"one\n", END), "BrokenConnectionError|RemoteProtocolError"),
        (chunks(b"one\n"), "TimeoutError|ReadTimeout"),
    ],
)
async def test_broken_or_silent_stream_is_unknown(make: Make, said: list[bytes], message: str) -> None:
    with pytest.raises(ApiUnknownError, match=message):
        await lines(make, said, 0.05)


async def test_a_refused_stream_says_why(make: Make) -> None:
    with pytest.raises(ApiRefusedError, match="410: too old"):
        await lines(make, answer("410 Gone", b'{"message":"too old"}'))


async def page_of(make: Make, said: list[bytes], call: ApiCall = CALL) -> Page:
    async with api(make, said) as (client, _):
        return await client.page(call)


async def test_a_page_is_taken_apart_object_by_object(make: Make) -> None:
    deep = b'{"metadata":{"name":"a"},"spec":' + DEEP_LIST + b"}"
    body = b'{"metadata":{"resourceVersion":"9","continue":"more"},"items":[%s,{"kind":"Node"}]}' % deep
    page = await page_of(make, [*chunks(body[:100], body[100:]), LAST_CHUNK])
    assert (page.version, page.continue_token, page.objects) == ("9", "more", [{"kind": "Node"}])
    assert [str(each.name) for each in page.unreadable] == ["/a"]


async def test_largest_object_of_an_api_server_is_read(make: Make) -> None:
    """etcd stores 1.5 MiB, and Go escapes ``<``. A tenant's pod of this form ended the watch of all pods, forever."""
    found = b'{"metadata":{"name":"db"},"spec":"' + b"\\u003c" * (3 * 2**19) + b'"}'
    page = await page_of(make, [*chunks(b'{"metadata":{},"items":[' + found + b"]}"), LAST_CHUNK])
    assert page.objects == [{"metadata": {"name": "db"}, "spec": "<" * (3 * 2**19)}]
    assert await lines(make, [*chunks(found + b"\n"), LAST_CHUNK]) == [found]


async def test_oversized_page_is_cut_off(make: Make) -> None:
    with pytest.raises(PageTooLargeError, match="more than 10 bytes"):
        await page_of(make, chunks(b"123456", b"789012"), replace(CALL, longest=10))


@pytest.mark.parametrize(
    ("said", "kind", "message"),
    [
        (answer("200 OK", b"[]"), ApiUnknownError, "document: expected an object"),
        (chunks(b"{", END), ApiUnknownError, "BrokenConnectionError|RemoteProtocolError"),
        (answer("403 No", b'{"message": "no"}'), ApiRefusedError, "403: no"),
    ],
)
async def test_a_page_that_cannot_be_had_says_why(
    make: Make, said: list[bytes], kind: type[ApiError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        await page_of(make, said)


async def test_slow_call_is_unknown(make: Make) -> None:
    async with api(make, []) as (client, _):
        with pytest.raises(ApiUnknownError, match="TimeoutError"):
            await client.call(ApiCall("GET", "/", Seconds(0.02)))


async def test_other_paths_have_answers_of_any_length(make: Make) -> None:
    async with api(make, answer("200 OK", b"ok" * 10, b"Date: today\r\n"), [END]) as (client, _):
        body, headers = await client.raw(ApiCall("GET", "/readyz", Seconds(3), longest=10))
        # A direct client does not parse headers.
        assert (body, headers.get("date")) == (b"ok" * 10, None if make is direct else "today")
        with pytest.raises(ApiUnknownError, match=r"BrokenConnectionError|RemoteProtocolError"):
            await client.raw(CALL)
