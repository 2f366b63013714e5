"""Lists are read page by page, and what a watch may not say is reported and tried again."""

from __future__ import annotations

import json

import pytest

from protocol.kubernetes.api import LONGEST_PAGE, ApiCall, PageTooLargeError
from protocol.kubernetes.pages import Page
from protocol.runtime.kubernetes.watches.informer import LARGE_PAGE, PAGE
from tests.fake_clock import FakeClock
from tests.protocol.runtime.kubernetes.informer.informed import Pages, story_of
from tests.scheduler_plugin.fake_cluster import Obj
from tests.scheduler_plugin.objects import node


async def test_lists_are_read_page_by_page() -> None:
    api = Pages()
    told = await story_of(api, FakeClock(), 0)
    assert told[:3] == [("a", None, "1"), ("b", None, "2"), "listed 2"]
    assert api.queries[:2] == [{"limit": str(PAGE)}, {"limit": str(PAGE), "continue": "more"}]


async def test_lists_and_watches_select_by_labels() -> None:
    api = Pages()
    await story_of(api, FakeClock(), 0.5, "team=a,!old")
    assert {("watch" in query, query.get("labelSelector")) for query in api.queries} == {
        (False, "team=a,!old"),
        (True, "team=a,!old"),
    }


class Relabelled(Pages):
    """The only object loses its label at version 10 and gets it back at 11; the watch may end in between."""

    def __init__(self, told: int) -> None:
        events = (("DELETED", "10"), ("ADDED", "11"))[:told]
        super().__init__(*(_event(kind, version) for kind, version in events))

    async def page(self, call: ApiCall) -> Page:
        self.queries.append(dict(call.query))
        is_first = len(self.queries) == 1
        return Page("9", "", [_labelled("9")], []) if is_first else Page("12", "", [_labelled("11")], [])


def _labelled(version: str) -> Obj:
    obj = node("a", "1")
    obj["metadata"] |= {"uid": "u-a", "resourceVersion": version}
    return obj


def _event(kind: str, version: str) -> bytes:
    return json.dumps({"type": kind, "object": _labelled(version)}).encode()


@pytest.mark.parametrize("told", [1, 2])
async def test_regained_label_proves_no_restore(told: int) -> None:
    story = await story_of(Relabelled(told), FakeClock(), 5, "team=a")
    assert "restored" not in story


async def test_bookmark_moves_version_and_reconnects_back_off() -> None:
    api = Pages(b'{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "12"}}}')
    told = await story_of(api, FakeClock(), 0.5)
    assert [query["resourceVersion"] for query in api.queries[2:]] == ["9", "12", "12", "12"]
    assert told[3:] == ["the server ended the watch of nodes immediately"] * 4


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "watch of nodes: document: expected a closed JSON object or array"),
        (b"[]", "watch of nodes: document: expected an object"),
        (b'{"type": "ERROR", "object": {"code": 500, "message": "broken"}}', "500: broken"),
        (b'{"type": "ERROR", "object": {}}', "500: unavailable"),
    ],
)
async def test_invalid_watch_event_is_retried(line: bytes, said: str) -> None:
    told = await story_of(Pages(line), FakeClock(), 0)
    assert told[3:] == [said]


@pytest.mark.parametrize("code", [403, 429, 500])
async def test_refused_watch_resumes_without_list(code: int) -> None:
    """A server that is overloaded must not have to list everything again."""
    api = Pages(b'{"type": "ERROR", "object": {"code": %d}}' % code)
    await story_of(api, FakeClock(), 0.3)
    watches = [query["resourceVersion"] for query in api.queries[2:]]
    assert (set(watches), len(watches) > 1) == ({"9"}, True)


async def test_malformed_event_forces_relist() -> None:
    api = Pages(b"no event")
    await story_of(api, FakeClock(), 0.3)
    assert [query for query in api.queries if "watch" not in query][2:4] == [
        {"limit": str(PAGE)},
        {"limit": str(PAGE), "continue": "more"},
    ]


class LargeObjects(Pages):
    """An API whose pages are read only where they hold few objects."""

    def __init__(self) -> None:
        super().__init__()
        self.longest: list[int] = []

    async def page(self, call: ApiCall) -> Page:
        self.queries.append(dict(call.query))
        self.longest.append(call.longest)
        if int(call.query["limit"]) > self.most:
            raise PageTooLargeError("too large")
        return Page("9", "", [node("a", "1")], [])

    most = 10


async def test_large_objects_shrink_pages() -> None:
    api = LargeObjects()
    told = await story_of(api, FakeClock(), 0)
    assert [query["limit"] for query in api.queries if "watch" not in query] == ["250", "62", "15", "3"]
    assert told[:2] == [("a", None, "1"), "listed 1"]


class FewLargeObjects(Pages):
    """A thousand objects, of which the first ten are so large that only two fit into a page."""

    async def page(self, call: ApiCall) -> Page:
        self.queries.append(dict(call.query))
        start, size = int(call.query.get("continue", "0")), int(call.query["limit"])
        if min(start + size, 10) - start > 2:
            raise PageTooLargeError("too large")
        listed = range(start, min(start + size, 1000))
        return Page("1000", str(listed.stop) if listed.stop < 1000 else "", [node(f"n{i}", "1") for i in listed], [])


async def test_large_objects_are_decoded_few_at_a_time() -> None:
    """A page is decoded as a whole, which may take 20 times its length in memory."""
    api = LargeObjects()
    api.most = 1
    await story_of(api, FakeClock(), 0)
    assert api.longest == [LARGE_PAGE] * 4 + [LONGEST_PAGE]


async def test_few_large_objects_do_not_slow_list() -> None:
    """A tenant's pods may be large. A scheduler that lists 100,000 others one by one is away for minutes."""
    api = FewLargeObjects()
    told = await story_of(api, FakeClock(), 0)
    assert told[-2:] == ["listed 1000", "the server ended the watch of nodes immediately"]
    assert len(api.queries) < 40


async def test_oversized_object_is_reported() -> None:
    api = LargeObjects()
    api.most = 0
    assert (await story_of(api, FakeClock(), 0))[0] == "too large"
