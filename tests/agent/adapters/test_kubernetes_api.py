"""The Kubernetes API as an agent sees it: every status and every broken line is an error with a fault."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial

import httpx2 as httpx
import pytest

from agent.adapters.kubernetes_api import LONGEST_PAGE, TIMES, LightKubernetesApi
from agent.adapters.token import no_token
from agent.core.events import Fault
from agent.ports import ConflictError, ExpiredError, PortError, RefusedError
from protocol.kubernetes.pages import LONGEST_LINE, Unreadable
from protocol.units import Seconds
from tests.agent.adapters.answering import Answer, Chunks, client, silent, unreachable
from tests.nesting import DEEP


def api(http: httpx.AsyncClient) -> LightKubernetesApi:
    return LightKubernetesApi(http, "https://kubernetes/", no_token, Seconds(2.0))


def line(kind: str, **found: object) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


async def watched(answer: Answer) -> list[tuple[str, dict[str, object]]]:
    return [(event.type, event.object) async for event in api(client(answer)).watch("/things", {"some": "thing"}, "5")]


@pytest.mark.parametrize(
    ("status", "kind", "fault"),
    [
        (400, RefusedError, Fault.AGENT),
        (401, PortError, Fault.AGENT),
        (403, RefusedError, Fault.AGENT),
        (404, RefusedError, Fault.VM_API),
        (409, ConflictError, Fault.VM_API),
        (422, RefusedError, Fault.VM_API),
        (429, PortError, Fault.VM_API),
        (500, PortError, Fault.VM_API),
    ],
)
async def test_status_code_names_the_fault(status: int, kind: type[PortError], fault: Fault) -> None:
    body = {"kind": "Status", "message": "spec.guest.cpus.use: too much"}
    with pytest.raises(PortError) as caught:
        await api(client(lambda _: httpx.Response(status, json=body))).patch("/thing", {})
    assert type(caught.value) is kind
    assert (caught.value.fault, caught.value.reason) == (
        fault,
        f"the API server returned {status} for PATCH /thing: spec.guest.cpus.use: too much",
    )


@pytest.mark.parametrize("body", [b"", b"[]", b"<html>", DEEP])
async def test_non_object_response_blames_api(body: bytes) -> None:
    with pytest.raises(PortError, match="is not a JSON object"):
        await api(client(lambda _: httpx.Response(200, content=body))).get("/thing")


async def test_unreachable_or_silent_api_blames_network() -> None:
    for http in (unreachable(), silent()):
        with pytest.raises(PortError, match="the API server at https://kubernetes") as caught:
            await api(http).get("/thing")
        assert caught.value.fault == Fault.NETWORK


async def test_watch_splits_lines_across_chunks() -> None:
    asked: list[httpx.URL] = []
    whole = line("ADDED", n=1) + b"\n" + line("BOOKMARK", n=2) + line("MODIFIED", n=3)

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url)
        return httpx.Response(200, stream=Chunks(whole[:10], whole[10:50], whole[50:]))

    assert await watched(answer) == [("ADDED", {"n": 1}), ("BOOKMARK", {"n": 2}), ("MODIFIED", {"n": 3})]
    assert dict(asked[0].params) == {
        "some": "thing",
        "watch": "true",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "240",
        "resourceVersion": "5",
    }
    assert TIMES.silence > 240, "the server ends a quiet watch before the client takes it for dead"


async def test_dead_watch_ends_without_error() -> None:
    silence = Chunks(line("ADDED", n=1), error=httpx.ReadTimeout("silence"))
    assert await watched(lambda _: httpx.Response(200, stream=silence)) == [("ADDED", {"n": 1})]


@pytest.mark.parametrize(
    ("stream", "kind", "what"),
    [
        (Chunks(line("ERROR", code=410, message="too old")), ExpiredError, "returned 410 for WATCH /things: too old"),
        (Chunks(line("ERROR", message="broken")), PortError, "returned 500 for WATCH /things: broken"),
        (Chunks(b"{}\n"), PortError, "the API server's watch event cannot be decoded"),
        (Chunks(b"x" * (LONGEST_LINE + 1)), PortError, "a line of the watch has more than"),
        (Chunks(line("ADDED"), error=httpx.RemoteProtocolError("cut")), PortError, "RemoteProtocolError: cut"),
    ],
    ids=["too old", "an error without a code", "no event", "no end", "cut"],
)
async def test_a_watch_that_breaks_is_an_error(stream: Chunks, kind: type[PortError], what: str) -> None:
    with pytest.raises(PortError) as caught:
        await watched(lambda _: httpx.Response(200, stream=stream))
    assert type(caught.value) is kind
    assert what in caught.value.reason


async def test_a_watch_that_is_refused_is_an_error() -> None:
    with pytest.raises(ExpiredError, match="returned 410 for GET /things: too old"):
        await watched(lambda _: httpx.Response(410, json={"message": "too old"}))


class Stalled(Chunks):
    """A body that starts and never ends."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()


async def test_refusal_that_never_ends_is_given_up() -> None:
    """An agent whose watch is refused in this way would see no change of its VM for four minutes."""
    http = client(lambda _: httpx.Response(503, stream=Stalled()))
    impatient = LightKubernetesApi(http, "https://kubernetes/", no_token, Seconds(0.1))
    async with asyncio.timeout(10):
        with pytest.raises(PortError, match=r"did not respond within 0\.1 s"):
            _ = [event async for event in impatient.watch("/things", {}, "5")]


async def test_a_list_is_read_object_by_object() -> None:
    deep = b'{"metadata":{"name":"deep"},"spec":' + DEEP + b"}"
    body = b'{"metadata":{"resourceVersion":"9"},"items":[{"metadata":{"name":"good"}},' + deep + b"]}"
    (page,) = [each async for each in api(client(lambda _: httpx.Response(200, content=body))).pages("/things", {})]
    good, bad = page.objects()
    assert (page.version, good) == ("9", {"metadata": {"name": "good"}})
    assert isinstance(bad, Unreadable)
    assert (str(bad.name), bad.reason) == ("/deep", "document: expected fewer levels of nesting")


def few_at_once(request: httpx.Request, fit: int = 2) -> httpx.Response:
    """A list of three objects so large that only ``fit`` of them are in a page that is read."""
    start, size = (int(request.url.params.get(name, "0")) for name in ("continue", "limit"))
    stop = min(start + size, 3)
    if stop - start > fit:
        return httpx.Response(200, stream=Chunks(*[b" " * 2**20] * (LONGEST_PAGE // 2**20 + 1)))
    metadata = {"resourceVersion": "9", "continue": str(stop) if stop < 3 else ""}
    return httpx.Response(200, json={"metadata": metadata, "items": [{"n": each} for each in range(start, stop)]})


async def test_large_objects_come_in_small_pages() -> None:
    """Anyone may put pods of a megabyte on an agent's node: all of them at once would exceed its memory."""
    pages = [list(page.objects()) async for page in api(client(few_at_once)).pages("/things", {})]
    assert pages == [[{"n": 0}], [{"n": 1}, {"n": 2}]]
    with pytest.raises(PortError, match=f"list cannot be decoded: an object has more than {LONGEST_PAGE} bytes"):
        _ = [page async for page in api(client(partial(few_at_once, fit=0))).pages("/things", {})]


async def test_refused_page_says_why() -> None:
    with pytest.raises(ExpiredError, match="returned 410 for GET /things: too old"):
        _ = [
            page
            async for page in api(client(lambda _: httpx.Response(410, json={"message": "too old"}))).pages(
                "/things", {}
            )
        ]
