"""JSON is taken apart one level deep, as a decoder would see it, however deep it is nested."""

from __future__ import annotations

import json
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.wire.json_scan import UnclosedError, elements, members

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
)


@given(st.lists(values, max_size=5))
def test_elements_are_those_of_the_array(array: list[object]) -> None:
    assert [json.loads(each) for each in elements(json.dumps(array).encode())] == array


@given(st.dictionaries(st.text(max_size=6), values, max_size=5))
def test_members_are_those_of_the_object(mapping: dict[str, object]) -> None:
    found = members(json.dumps(mapping, ensure_ascii=False).encode())
    assert {key: json.loads(value) for key, value in found.items()} == mapping


def test_what_is_inside_may_be_anything() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert members(b'{"a": ' + deep + b', "b": x}') == {"a": deep, "b": b"x"}
    assert members(b'{"\\ud800": 1, "\xff": 2, 3}') == {'"\\ud800"': b"1", '"\ufffd"': b"2"}


@pytest.mark.parametrize("text", [b"", b"7", b"{", b'{"a": 1', b'["a]', b'["a\\', b'{"a": [}'])
def test_what_is_not_closed_is_refused(text: bytes) -> None:
    with pytest.raises(UnclosedError):
        list(elements(text))


@pytest.mark.parametrize("piece", [b'"', b'\\"', b'"\\', b"{", b"[,", b'"a":', b"]"])
def test_time_is_linear_in_the_text(piece: bytes) -> None:
    def work(size: int) -> float:
        text, times = b'{"a' + piece * (size // len(piece)), []
        for _ in range(3):
            began = process_time()
            with pytest.raises(UnclosedError):
                list(elements(text))
            times.append(process_time() - began)
        return min(times)

    assert work(100_000) <= 10 * work(25_000) + 0.005  # 4 times the text; quadratic work is 16 times as much
