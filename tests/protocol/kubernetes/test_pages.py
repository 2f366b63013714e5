"""Lists and watches are decoded object by object: one that cannot be read spoils no other."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.kubernetes.pages import (
    LineSplitter,
    Page,
    Unreadable,
    UnreadableAnswerError,
    WatchEvent,
    read_encoded_page,
    read_event,
    read_object,
    read_page,
)
from protocol.kubernetes.refusals import RefusalKind
from protocol.messages import ObjectName
from tests.nesting import DEEP

NESTED = "document: expected fewer levels of nesting"


def obj(name: str) -> dict[str, object]:
    return {"metadata": {"namespace": "ns", "name": name, "uid": f"u-{name}", "resourceVersion": "7"}}


def deep(name: str) -> bytes:
    return json.dumps(obj(name)).encode()[:-1] + b',"spec":' + DEEP + b"}"


def page(*items: bytes, more: bytes = b"") -> bytes:
    return b'{"metadata":{"resourceVersion":"9"' + more + b'},"items":[' + b",".join(items) + b"]}"


def whole(name: str) -> bytes:
    return json.dumps(obj(name)).encode()


def test_a_page_without_faults() -> None:
    assert read_page(page(whole("a"), whole("b"), more=b',"continue":"c"')) == Page("9", "c", [obj("a"), obj("b")], [])
    assert read_page(b'{"items":null}') == Page("", "", [], [])


def test_undecodable_object_is_named_others_read() -> None:
    assert read_page(page(whole("a"), deep("b"), b"7", b'{"metadata":7}', whole("c"))) == Page(
        "9",
        "",
        [obj("a"), {"metadata": 7}, obj("c")],
        [
            Unreadable(ObjectName("ns", "b"), "u-b", "7", NESTED),
            Unreadable(ObjectName("", ""), "", "", "document: expected object, got int"),
        ],
    )


def test_what_is_left_of_an_identity_is_told() -> None:
    broken = b'{"metadata":{"name":"b","uid":7,"labels":' + DEEP + b"}}"
    found = read_page(page(broken, b'{"metadata":[' + DEEP + b"]}", b'{"metadata":' + DEEP + b"}"))
    assert [(each.name, each.uid) for each in found.unreadable] == [
        (ObjectName("", "b"), ""),
        (ObjectName("", ""), ""),
        (ObjectName("", ""), ""),
    ]


def test_invalid_utf8_spoils_one_object() -> None:
    found = read_page(page(whole("a"), b'{"metadata":{"name":"b","uid":"\xff"}}'))
    assert (len(found.objects), [each.name.name for each in found.unreadable]) == (1, ["b"])


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b"<html>", b'{"items":7}', b'{"items":[', b'{"items":' + DEEP + b"}", b'{"a":[}']
)
def test_what_is_no_page_is_an_error(body: bytes) -> None:
    with pytest.raises(UnreadableAnswerError):
        read_page(body)


def test_metadata_that_cannot_be_read_counts_as_empty() -> None:
    assert read_page(b'{"metadata":' + DEEP + b',"items":[{}]}') == Page("", "", [{}], [])


def test_encoded_page_is_split_like_a_decoded_one() -> None:
    found = read_encoded_page(b'{"metadata":' + DEEP + b',"items":[{"kind":"Pod"},7]}')
    assert (found.version, found.continue_token) == ("", "")
    assert [type(each).__name__ for each in found.objects()] == ["dict", "Unreadable"]
    with pytest.raises(UnreadableAnswerError):
        read_encoded_page(b"[]")


def test_an_object_is_read_or_refused() -> None:
    assert read_object(whole("a")) == obj("a")
    for body in (b"", b"[]", DEEP, b'{"a":"\xff"}'):
        with pytest.raises(UnreadableAnswerError):
            read_object(body)


def test_an_event_has_its_object_and_version() -> None:
    event = read_event(b'{"type":"MODIFIED","object":' + whole("a") + b"}")
    assert event == WatchEvent("MODIFIED", obj("a"))
    assert (event.name, event.version, event.refusal) == (ObjectName("ns", "a"), "7", None)
    assert read_event(b'{"type":"BOOKMARK","object":null}').version == ""


def test_undecodable_event_names_object() -> None:
    event = read_event(b'{"type":"ADDED","object":' + deep("a") + b"}")
    assert event == WatchEvent("ADDED", {}, Unreadable(ObjectName("ns", "a"), "u-a", "7", NESTED))
    assert (event.name, event.version) == (ObjectName("ns", "a"), "7")


def test_unreadable_neighbour_does_not_spoil_event() -> None:
    assert read_event(b'{"other":' + DEEP + b',"type":"ADDED","object":{"a":1}}') == WatchEvent("ADDED", {"a": 1})


def test_an_error_event_says_why() -> None:
    refusal = read_event(b'{"type":"ERROR","object":{"code":410,"reason":"Expired","message":"too old"}}').refusal
    assert refusal is not None
    assert (refusal.kind, refusal.message) == (RefusalKind.GONE, "too old")


@pytest.mark.parametrize("line", [b"", b"{}", b"7", b'{"type":7,"object":{}}', b'{"type":"ADDED"}', b'{"type":"ADDED"'])
def test_what_is_no_event_is_an_error(line: bytes) -> None:
    with pytest.raises(UnreadableAnswerError):
        read_event(line)


@given(st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"")), max_size=8), st.data())
def test_lines_are_whole_however_they_arrive(lines: list[bytes], data: st.DataObject) -> None:
    sent = b"".join(line + b"\n" for line in lines) + b"rest without an end"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=6)))
    splitter, found = LineSplitter(), list[bytes]()
    for begin, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        found += splitter.feed(sent[begin:end])
    assert found == [line for line in lines if line]


def test_endless_line_is_cut_off() -> None:
    splitter = LineSplitter(longest=10)
    assert splitter.feed(b"12345\n12345") == [b"12345"]
    with pytest.raises(UnreadableAnswerError, match="a line of the watch has more than 10 bytes"):
        splitter.feed(b"678901")
