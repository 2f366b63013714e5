"""What the HTTP adapter makes of a server's answers: done, refused or unknown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import httpx2 as httpx
import pytest

from protocol.kubernetes.api import ApiCall, ApiRefusedError, ApiUnknownError, PageTooLargeError
from protocol.kubernetes.pages import Page
from protocol.runtime.credentials import CredentialsError
from protocol.runtime.kubernetes import large_pages
from protocol.runtime.kubernetes.http_api import HttpApi
from protocol.units import Seconds
from tests.nesting import DEEP, DEEP_LIST

Handler = Callable[[httpx.Request], httpx.Response]
CALL = ApiCall(
    "PATCH",
    "/api/v1/nodes/n1",
    Seconds(3),
    query={"a": "b"},
    body={"x": 1},
    content_type="application/merge-patch+json",
)


def api(handler: Handler, token: str | None = None) -> HttpApi:
    client = httpx.AsyncClient(base_url="http://api", transport=httpx.MockTransport(handler))
    return HttpApi(client, lambda: token)


async def test_a_call_carries_body_query_and_token() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"kind": "Node"})

    assert await api(handler, "secret").call(CALL) == {"kind": "Node"}
    (request,) = seen
    assert (request.method, str(request.url), request.content) == (
        "PATCH",
        "http://api/api/v1/nodes/n1?a=b",
        b'{"x":1}',
    )
    assert request.headers["Authorization"] == "Bearer secret"
    assert request.headers["Content-Type"] == "application/merge-patch+json"


async def test_without_a_token_none_is_shown() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={})

    await api(handler).call(CALL)
    assert "Authorization" not in seen[0].headers


@pytest.mark.parametrize(
    ("response", "kind", "said"),
    [
        (httpx.Response(409, json={"message": "changed"}), ApiRefusedError, "409: changed"),
        (httpx.Response(404, content=b"<html>"), ApiRefusedError, "404: <html>"),
        (httpx.Response(429, json={"message": "slow down"}), ApiRefusedError, "429: slow down"),
        (httpx.Response(500, json={"message": "broken"}), ApiUnknownError, "500: broken"),
        (httpx.Response(200, content=b"[1]"), ApiUnknownError, "PATCH /api/v1/nodes/n1: UnreadableAnswerError"),
    ],
)
async def test_failures_say_what_is_known(response: httpx.Response, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match="^" + said.replace("[", r"\[")):
        await api(lambda _: response).call(CALL)


def broken(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("no route", request=request)


async def test_a_broken_connection_is_unknown() -> None:
    with pytest.raises(ApiUnknownError, match="ConnectError: no route"):
        await api(broken).call(CALL)
    with pytest.raises(ApiUnknownError, match="ConnectError: no route"):
        async with api(broken).stream(CALL):
            pass


async def test_a_call_that_takes_too_long_is_unknown() -> None:
    async def never(_: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        return httpx.Response(200)

    client = httpx.AsyncClient(base_url="http://api", transport=httpx.MockTransport(never))
    hurried = ApiCall("GET", "/", Seconds(0.0))
    with pytest.raises(ApiUnknownError, match="TimeoutError"):
        await HttpApi(client, lambda: None).call(hurried)


class Chunks(httpx.AsyncByteStream):
    """A body that arrives in pieces, and breaks off where a piece is an error."""

    def __init__(self, *chunks: bytes | Exception) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk


async def streamed(*chunks: bytes | Exception) -> list[bytes]:
    async with api(lambda _: httpx.Response(200, stream=Chunks(*chunks))).stream(CALL) as stream:
        return [line async for line in stream]


async def test_lines_are_whole_however_the_bytes_were_cut() -> None:
    assert await streamed(b"on", b"e\ntwo\n\nth", b"ree", b"\nincomp", b"lete") == [b"one", b"two", b"three"]


async def test_a_stream_that_breaks_is_unknown() -> None:
    with pytest.raises(ApiUnknownError, match="ReadError: cut"):
        await streamed(b"one\n", httpx.ReadError("cut"))


async def test_a_refused_stream_says_why() -> None:
    with pytest.raises(ApiRefusedError, match="410: too old"):
        async with api(lambda _: httpx.Response(410, json={"message": "too old"})).stream(CALL):
            pass


async def page_of(*chunks: bytes | Exception, status: int = 200) -> Page:
    return await api(lambda _: httpx.Response(status, stream=Chunks(*chunks))).page(CALL)


async def test_a_page_is_taken_apart_object_by_object() -> None:
    deep = b'{"metadata":{"name":"a"},"spec":' + DEEP_LIST + b"}"
    body = b'{"metadata":{"resourceVersion":"9","continue":"more"},"items":[%s,{"kind":"Node"}]}' % deep
    page = await page_of(body[:100], body[100:])
    assert (page.version, page.rest, page.objects) == ("9", "more", [{"kind": "Node"}])
    assert [str(each.name) for each in page.unreadable] == ["/a"]


async def test_oversized_page_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_pages, "LONGEST_PAGE", 10)
    with pytest.raises(PageTooLargeError, match="more than 10 bytes"):
        await page_of(b"123456", b"789012", AssertionError("must not be read"))


@pytest.mark.parametrize(
    ("chunks", "status", "kind", "said"),
    [
        ((b"[]",), 200, ApiUnknownError, "document: expected an object"),
        ((b"{", httpx.ReadError("cut")), 200, ApiUnknownError, "ReadError: cut"),
        ((b'{"message": "no"}',), 403, ApiRefusedError, "403: no"),
    ],
)
async def test_a_page_that_cannot_be_had_says_why(
    chunks: tuple[bytes | Exception, ...], status: int, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        await page_of(*chunks, status=status)


async def test_an_object_nested_too_deeply_is_no_answer() -> None:
    body = DEEP
    with pytest.raises(ApiUnknownError, match="fewer levels of nesting"):
        await api(lambda _: httpx.Response(200, content=body)).call(CALL)


async def test_other_paths_are_answered_with_body_and_headers() -> None:
    page = httpx.Response(200, text="ok", headers={"Date": "today"})
    body, headers = await api(lambda _: page).raw(ApiCall("GET", "/readyz?verbose", Seconds(3)))
    assert (body, headers["date"]) == (b"ok", "today")


async def test_token_that_cannot_be_read_is_unknown() -> None:
    def no_token() -> str:
        raise CredentialsError("the plug-in failed")

    client = httpx.AsyncClient(base_url="http://api", transport=httpx.MockTransport(lambda _: httpx.Response(200)))
    with pytest.raises(ApiUnknownError, match="CredentialsError: the plug-in failed"):
        await HttpApi(client, no_token).call(CALL)
