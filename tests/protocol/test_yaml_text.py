"""YAML from people is read in bounded time, or refused in one line."""

from __future__ import annotations

from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.field_errors import shown
from protocol.yaml_text import DEEPEST, YamlError, read_documents, read_yaml

LAUGHS = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
TOWER = f"a: &a {'[' * 30}{']' * 30}\nb: &b {'[' * 20}*a{']' * 20}\nc: {'[' * 20}*b{']' * 20}"


def test_anchors_and_merge_keys_expand() -> None:
    text = "base: &base {cpu: 1, mem: 2}\nbig: {<<: *base, mem: 4}\nlist: [*base, &n 7, *n, &l [1], *l]"
    base = {"cpu": 1, "mem": 2}
    assert read_yaml(text) == {"base": base, "big": {"cpu": 1, "mem": 4}, "list": [base, 7, 7, [1], [1]]}


def test_merged_keys_may_be_set_again() -> None:
    text = "a: &a {x: 1}\nb: &b {<<: *a, x: 2}\nc: {<<: [*b, *a], x: 3}\n---\na: {=: 1, '=': {x: 4}, 1: 5, '1': 6}"
    documents = [{"a": {"x": 1}, "b": {"x": 2}, "c": {"x": 3}}, {"a": {"=": {"x": 4}, 1: 5, "1": 6}}]
    with pytest.raises(YamlError, match="line 5: repeats the key '=' of line 5"):
        read_documents(text)
    assert read_documents(text.replace("=: 1, ", "")) == documents


def test_documents_are_read() -> None:
    assert read_yaml("a: {b: [1, 2.5, x]}") == {"a": {"b": [1, 2.5, "x"]}}
    assert read_yaml("") is None
    assert read_documents("a: 1\n---\n- 2\n") == [{"a": 1}, [2]]
    assert read_yaml("n: [7, -3, 0x1f, 1_000]") == {"n": [7, -3, 31, 1000]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\n---\nb: 2", "expected one document, got 2"),
        ("a: [", "invalid YAML: line 2, column 1: did not find expected node content"),
        ("{[1]: 2}", "invalid YAML: line 1, column 2: found unhashable key"),
        (
            "a: !!python/object:os.system {}",
            "invalid YAML: line 1, column 4: could not determine a constructor for the tag",
        ),
        ("a: 2020-99-99", "invalid YAML: month must be in 1..12"),
        ("\x00", "invalid YAML: "),
        ("a: &x [1, *x]", "line 1: expected an alias of an earlier anchor, got *x"),
        ("a: *x", "line 1: expected an alias of an earlier anchor, got *x"),
        ("a: &x 1\n---\nb: *x", "line 3: expected an alias of an earlier anchor, got *x"),
        (LAUGHS, "line 4: expected at most 10000 values with all aliases expanded"),
        (TOWER, "line 3: expected at most 64 levels of nesting"),
        ("[" * 500, f"line 1: expected at most {DEEPEST} levels of nesting"),
        (
            "\n".join(" " * level + "a:" for level in range(99)),
            f"line {DEEPEST + 1}: expected at most {DEEPEST} levels",
        ),
        ("a: " + "9" * 5000, "line 1: expected a number of at most 64 digits"),
        ("a: " + ":".join("1" * 4000), "line 1: expected a number of at most 64 digits"),
        ("x" * 1001, "expected at most 1000 characters, got 1001"),
        ("cpu: 1\nmem: 2\ncpu: 3", "line 3: repeats the key 'cpu' of line 1"),
        ("a: {b: 1,\n b: 1}", "line 2: repeats the key 'b' of line 1"),
        ("on: 1\ntrue: 2", "line 2: repeats the key 'true' of line 1"),
        ("a: &a {}\nb: {<<: *a,\n <<: *a}", "line 3: repeats the key '<<' of line 2"),
        ("a: &a {b: 1,\n b: 2}\nc: {<<: *a}", "line 2: repeats the key 'b' of line 1"),
        ("!!set {a, a}", "line 1: repeats the key 'a' of line 1"),
        ('{"a": 1, "a": 1}', "line 1: repeats the key 'a' of line 1"),
        (f"{'k' * 99}: 1\n{'k' * 99}: 2", f"line 2: repeats the key {shown('k' * 99)} of line 1"),
        ("!!seq x: 1", "invalid YAML: line 1, column 1: found unhashable key"),
        ("? [1]\n: 1\n? [1]\n: 2", "invalid YAML: line 1, column 3: found unhashable key"),
    ],
)
def test_refusals_are_one_line(text: str, message: str) -> None:
    with pytest.raises(YamlError) as refused:
        read_yaml(text, longest=1000 if text.startswith("xx") else 10_000)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


@given(st.text("[]{}:,-?!&*|>%@`'\"#\n ab0.9", max_size=200))
def test_any_text_is_document_or_error(text: str) -> None:
    try:
        read_documents(text)
    except YamlError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either outcome is right


def test_yaml_time_is_near_linear() -> None:
    def took(items: int) -> float:
        times = []
        for _ in range(5):
            began = process_time()
            read_yaml("a: [" + "1," * items + "]")
            times.append(process_time() - began)
        return min(times)

    assert took(4000) < 10 * took(1000), "about 30 ms and 8 ms: a policy is read between two requests"
