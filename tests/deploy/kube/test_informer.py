"""The informer: a cache that survives broken watches, expired versions and objects that cannot be read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2 as httpx
import pytest

from deploy.kube.client import ApiClient
from deploy.kube.informer import Informer, ObjectChange
from protocol.kubernetes.objects import Json, name_of
from protocol.kubernetes.resources import PODS
from protocol.runtime.kubernetes.http_api import HttpApi
from protocol.runtime.kubernetes.watches import informer as informer_module
from tests.fake_clock import FakeClock, settle
from tests.nesting import DEEP

"""JSON that no decoder of Python's follows to its end."""


def pod(name: str, version: str) -> bytes:
    return json.dumps({"metadata": {"name": name, "namespace": "d", "resourceVersion": version}}).encode()


def unreadable(name: str, version: str) -> bytes:
    return b'{"metadata":{"name":"%s","namespace":"d","resourceVersion":"%s"},"spec":%s}' % (
        name.encode(),
        version.encode(),
        DEEP,
    )


def event(kind: str, raw: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (kind.encode(), raw)


EXPIRED = event("ERROR", b'{"code":410,"reason":"Expired","message":"too old"}')


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long lines are decoded at once, so that nothing has to wait for a thread."""
    monkeypatch.setattr(informer_module, "LONG_LINE", 1 << 20)


class ScriptedApi:
    """An API with lists; each watch sends the lines of one script and stays open, or ends after ``None``."""

    def __init__(self) -> None:
        self.pods: list[bytes] = []
        self.lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.asked: list[str] = []
        self.refuse = 0
        self.reached = 99

    def __call__(self, request: httpx.Request) -> httpx.Response:
        query = request.url.params
        if query.get("limit") == "1":
            return httpx.Response(200, content=b'{"metadata":{"resourceVersion":"%d"},"items":[]}' % self.reached)
        self.asked.append(f"watch {query['resourceVersion']}" if "watch" in query else "list")
        if self.refuse:
            return httpx.Response(self.refuse, json={"message": "no"})
        if "watch" in query:
            return httpx.Response(200, content=self._stream())
        return httpx.Response(200, content=b'{"metadata":{"resourceVersion":"9"},"items":[%s]}' % b",".join(self.pods))

    async def _stream(self) -> AsyncIterator[bytes]:
        while (line := await self.lines.get()) is not None:
            yield line


class Watched:
    """An informer under test, the API that it follows, and what its listeners received."""

    def __init__(self) -> None:
        self.api, self.clock = ScriptedApi(), FakeClock(jitter=0.0)
        self.heard: list[tuple[str, str, str]] = []
        client = ApiClient(
            HttpApi(httpx.AsyncClient(transport=httpx.MockTransport(self.api), base_url="http://api"), lambda: None)
        )
        self.informer = Informer(client, PODS, self.clock)
        self.informer.listen(self._note)

    def _note(self, change: ObjectChange) -> None:
        def version(found: Json | None) -> str:
            metadata = (found or {}).get("metadata")
            return str(metadata["resourceVersion"]) if isinstance(metadata, dict) else "-"

        self.heard.append((change.name.name, version(change.before), version(change.after)))

    async def gets(self, *lines: bytes | None) -> None:
        for line in lines:
            self.api.lines.put_nowait(line)
        await settle()

    @property
    def names(self) -> list[str]:
        return sorted(name.name for name in self.informer.objects)

    @property
    def unreadable(self) -> list[str]:
        return sorted(name.name for name in self.informer.unreadable)


@asynccontextmanager
async def following(*pods: bytes) -> AsyncIterator[Watched]:
    watched = Watched()
    watched.api.pods = list(pods)
    running = asyncio.ensure_future(watched.informer.run())
    await settle()
    try:
        yield watched
        assert not running.done()
    finally:
        running.cancel()


async def test_relist_reports_exactly_the_changes() -> None:
    watched = Watched()
    watched.api.pods = [pod("stays", "1"), pod("changes", "1"), pod("goes", "1")]
    assert await watched.informer.refresh() == "9"
    watched.heard.clear()
    watched.api.pods = [pod("stays", "1"), pod("changes", "2"), pod("comes", "1")]
    await watched.informer.refresh()
    assert sorted(watched.heard) == [("changes", "1", "2"), ("comes", "-", "1"), ("goes", "1", "-")]
    assert (watched.names, watched.informer.synced.is_set()) == (["changes", "comes", "stays"], True)


async def test_only_the_wanted_part_is_kept_and_compared() -> None:
    """A change of a trimmed field counts as no change."""
    watched = Watched()
    informer = Informer(watched.informer._client, PODS, watched.clock, lambda found: {"name": name_of(found).name})
    heard: list[Json | None] = []
    informer.listen(lambda change: heard.append(change.after))
    for version in ("1", "2"):
        watched.api.pods = [pod("a", version)]
        await informer.refresh()
    assert (list(informer.objects.values()), heard) == ([{"name": "a"}], [{"name": "a"}])


async def test_ended_watch_resumes_at_last_event() -> None:
    async with following(pod("a", "1")) as watched:
        await watched.gets(event("MODIFIED", pod("a", "12")), event("BOOKMARK", pod("", "15")), None)
        await watched.clock.advance(0.2)
        assert watched.api.asked == ["list", "watch 9", "watch 15"]
        assert watched.heard == [("a", "-", "1"), ("a", "1", "12")]


async def test_writers_know_what_they_wrote_before_the_watch() -> None:
    async with following(pod("a", "1")) as watched:
        watched.informer.learn({"metadata": {"name": "a", "namespace": "d", "resourceVersion": "12"}})
        await watched.gets(event("MODIFIED", pod("a", "11")), event("MODIFIED", pod("a", "12")))
        assert watched.heard == [("a", "-", "1"), ("a", "1", "12")]


async def test_restored_store_is_listed_at_once() -> None:
    async with following(pod("a", "1"), pod("b", "1")) as watched:
        await watched.gets(event("MODIFIED", pod("a", "12")))
        watched.api.pods, watched.api.reached = [pod("a", "1")], 11
        await watched.gets(None)
        await watched.clock.advance(0.2)
        # The first of the two lists is the proof; versions are forgotten, and all is read again.
        assert watched.api.asked == ["list", "watch 9", "list", "list", "watch 9"]
        assert sorted(watched.heard[-2:]) == [("a", "12", "1"), ("b", "1", "-")]


async def test_doubted_cache_is_listed_at_once() -> None:
    """A restored store whose revision has caught up: only the Lease shows it, no watch does."""
    async with following(pod("a", "1"), pod("b", "1")) as watched:
        watched.api.pods = [pod("a", "1")]
        await watched.gets(event("MODIFIED", pod("a", "12")))
        watched.informer.relist()
        await settle()
        assert watched.api.asked == ["list", "watch 9", "list", "watch 9"]
        assert sorted(watched.heard[-2:]) == [("a", "12", "1"), ("b", "1", "-")]
        await watched.gets(None)
        await watched.clock.advance(2.0)
        assert watched.api.asked[4:] == ["watch 9"]


async def test_expired_version_lists_again() -> None:
    async with following(pod("a", "1"), pod("b", "1")) as watched:
        watched.api.pods = [pod("b", "1")]
        await watched.gets(EXPIRED)
        await watched.clock.advance(0.2)
        assert watched.api.asked == ["list", "watch 9", "list", "watch 9"]
        assert watched.heard[-1] == ("a", "1", "-")


async def test_refusing_server_backs_off() -> None:
    async with following() as watched:
        watched.api.refuse = 404
        await watched.gets(None)
        watched.api.asked.clear()
        await watched.clock.advance(60.0)
        assert 10 <= len(watched.api.asked) <= 20
        watched.api.refuse = 0
        watched.api.pods = [pod("a", "1")]
        await watched.clock.advance(5.0)
        assert watched.names == ["a"]


async def test_unreadable_list_item_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with following(pod("good", "1"), unreadable("bad", "2")) as watched:
        assert (watched.names, watched.unreadable) == (["good"], ["bad"])
        (line,) = [record for record in caplog.records if "cannot decode object" in record.getMessage()]
        assert (vars(line)["resource"], vars(line)["object"]) == ("pods", "d/bad")


async def test_unreadable_update_keeps_last_state() -> None:
    async with following(pod("a", "1")) as watched:
        await watched.gets(event("MODIFIED", unreadable("a", "11")), event("ADDED", pod("b", "12")))
        assert (watched.names, watched.unreadable) == (["a", "b"], ["a"])
        watched.api.pods = [unreadable("a", "11"), pod("b", "12")]
        await watched.gets(EXPIRED)
        await watched.clock.advance(0.2)
        assert (watched.names, watched.unreadable) == (["a", "b"], ["a"])
        assert watched.heard == [("a", "-", "1"), ("b", "-", "12")]


async def test_unreadable_object_recovers_or_goes() -> None:
    async with following(unreadable("a", "1"), unreadable("b", "1")) as watched:
        await watched.gets(event("MODIFIED", pod("a", "11")), event("DELETED", unreadable("b", "12")))
        assert (watched.names, watched.unreadable) == (["a"], [])
        assert watched.heard == [("a", "-", "11")]


async def test_malformed_event_leads_to_list() -> None:
    async with following() as watched:
        watched.api.pods = [pod("a", "1")]
        for _ in range(3):
            await watched.gets(b"[]\n")
            await watched.clock.advance(5.0)
        assert watched.api.asked == ["list", "watch 9"] * 4
        assert watched.names == ["a"]
