"""For any bytes, the codec returns a request or raises ``MalformedMessageError``, and nothing else."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec import MalformedMessageError, decode_request, decode_response
from protocol.versions import ProtocolVersion
from tests.nesting import LEVELS
from tests.protocol.wire_examples import SLOT, body, request

HEAD = b'{"protoVersion":4,"pod":{"namespace":"default","name":"pg-1"},'


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"", "document: input data was truncated"),
        (b"\xff", "document: malformed: invalid character (byte 0)"),
        (b"null", "document: expected object, got null"),
        (b"[]", "document: expected object, got array"),
        (b"{}", "pod: expected a value, the field is missing"),
        (b'{"protoVersion":"4"}', "protoVersion: expected int, got str"),
        (b'{"protoVersion":true}', "protoVersion: expected int, got bool"),
        (b'{"protoVersion":null}', "protoVersion: expected int, got null"),
        (b'{"protoVersion":4.5}', "protoVersion: expected int, got float"),
        (b'{"protoVersion":99999999999999999999}', "protoVersion: expected 0 to 7, got 99999999999999999999"),
        (body(4, pod=[]), "pod: expected object, got array"),
        (body(4, pod={"name": "x"}), "pod.namespace: expected a value, the field is missing"),
        (body(4, pod={"namespace": "x", "name": 7}), "pod.name: expected str, got int"),
        (
            body(4, pod={"namespace": "x", "name": "../../secret"}),
            "pod.name: expected a name of lower-case letters, digits, '-' and '.', got '../../secret'",
        ),
        (
            body(4, pod={"namespace": "a\nb", "name": "x"}),
            "pod.namespace: expected a name of lower-case letters, digits, '-' and '.', got 'a\\nb'",
        ),
        (body(4, resources={"vCPUs": 1}), "resources.mem: expected a value, the field is missing"),
        (
            body(4, resources={"vCPUs": True, "mem": 1}),
            'resources.vCPUs: expected a quantity such as 2, "250m" or "1Gi", got bool',
        ),
        (
            body(4, resources={"vCPUs": None, "mem": 1}),
            'resources.vCPUs: expected a quantity such as 2, "250m" or "1Gi", got null',
        ),
        (
            body(4, resources={"vCPUs": "many", "mem": 1}),
            'resources.vCPUs: expected a quantity such as 2, "250m" or "1Gi", got \'many\'',
        ),
        (
            body(4, resources={"vCPUs": -1, "mem": 1}),
            "resources.vCPUs: expected a quantity of zero or more, got -1",
        ),
        (
            body(4, resources={"vCPUs": "1e500", "mem": 1}),
            "resources.vCPUs: expected a quantity of reasonable size, got '1e500'",
        ),
        (
            body(4, resources={"vCPUs": "16P", "mem": 1}),
            "resources.vCPUs: expected an amount below 2**63 of its smallest unit, got '16P'",
        ),
        (body(4, metrics={}), "metrics.loadAvg1M: expected a value, the field is missing"),
        (body(4, metrics={"loadAvg1M": "1"}), "metrics.loadAvg1M: expected float, got str"),
        (body(4, metrics={"loadAvg1M": -1}), "metrics.loadAvg1M: expected float >= 0.0"),
        (
            body(4, metrics={"loadAvg1M": float("nan")}),
            "document: malformed: invalid character (byte 131)",
        ),
        (HEAD + b'"resources":{"vCPUs":1e400,"mem":1}}', "resources.vCPUs: number out of range"),
        (HEAD + b'"resources":{"vCPUs":' + b"9" * 5000 + b',"mem":1}}', "resources.vCPUs: integer value out of range"),
        (HEAD + b'"resources":{"vCPUs":1,"mem":1},"x":' + b"[" * LEVELS, "document: expected fewer levels of nesting"),
        (HEAD + b'"resources":{"vCPUs":"\xff","mem":1}}', "document: expected UTF-8, got byte 0xff"),
        (
            HEAD + b'"resources":{"vCPUs":1,"mem":1,"mem":2}}',
            "'mem': expected once, but the key is repeated in one object",
        ),
        (
            HEAD + b'"resources":{"vCPUs":1,"mem":1},"protoVersion":7}',
            "'protoVersion': expected once, but the key is repeated in one object",
        ),
    ],
)
def test_a_bad_request_names_its_field(sent: bytes, message: str) -> None:
    with pytest.raises(MalformedMessageError) as refused:
        decode_request(sent).resolve(SLOT)
    assert str(refused.value) == message


def test_a_long_value_is_not_repeated_in_full() -> None:
    with pytest.raises(MalformedMessageError) as refused:
        decode_request(body(4, pod={"namespace": "x" * 10_000, "name": "y"}))
    assert len(str(refused.value)) < 200


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["250m", "1Gi", "1e3", "1e999", "-1", "NaN", 2**64, 10**40, -0.0, 1e308, "9" * 40])
)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner)
)
paths = st.sampled_from(
    [
        ("protoVersion",),
        ("pod",),
        ("pod", "name"),
        ("pod", "namespace"),
        ("resources",),
        ("resources", "vCPUs"),
        ("resources", "mem"),
        ("lastPermit",),
        ("lastPermit", "mem"),
        ("computeUnit",),
        ("computeUnit", "vCPUs"),
        ("metrics",),
        ("metrics", "loadAvg1M"),
        ("metrics", "memoryUsageBytes"),
    ]
)


def survives(sent: bytes) -> None:
    """Both decoders give a value or the one error; every other error fails the test."""
    with suppress(MalformedMessageError):
        decode_request(sent).resolve(SLOT)
    for version in ProtocolVersion:
        with suppress(MalformedMessageError):
            decode_response(version, sent, SLOT)


@given(st.integers(-1, 9), st.lists(st.tuples(paths, anything), min_size=1, max_size=3))
def test_a_request_with_any_fields_replaced_by_anything(
    version: int, changes: list[tuple[tuple[str, ...], object]]
) -> None:
    whole = request(version)
    for path, value in changes:
        inner = whole.get(path[0])
        if len(path) == 1 or not isinstance(inner, dict):
            whole[path[0]] = value
        else:
            whole[path[0]] = {**inner, path[1]: value}
    survives(json.dumps(whole).encode("utf-8", "surrogatepass"))


@given(st.integers(0, 7), st.data())
def test_a_request_with_any_bytes_cut_or_replaced(version: int, data: st.DataObject) -> None:
    whole = body(version, lastPermit={"vCPUs": "1500m", "mem": 3})
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    survives(whole[:start] + data.draw(st.binary(max_size=8)) + whole[stop:])


@given(anything)
def test_any_document(document: object) -> None:
    survives(json.dumps(document).encode("utf-8", "surrogatepass"))


@given(st.binary(max_size=64))
def test_any_bytes(sent: bytes) -> None:
    survives(sent)


@pytest.mark.parametrize("begin", [b"", b'{"permit":{"vCPUs":1,"mem":1},"migrate":{"a":'], ids=["all", "a field"])
@pytest.mark.parametrize("deep", [b"[", b'{"a":'], ids=["lists", "objects"])
def test_endless_nesting(begin: bytes, deep: bytes) -> None:
    survives(begin + deep * 50_000)


KEYS = [
    b'"vCPUs":1',
    b'"mem":1',
    b'"namespace":"a"',
    b'"protoVersion":4',
    b'"sequence":7',
    b'"loadAvg5M":0.1',
    b'"lastPermit":null',
]


@given(st.integers(1, 7), st.sampled_from(KEYS), st.data())
def test_duplicate_keys_are_refused(version: int, key: bytes, data: st.DataObject) -> None:
    whole = body(version, sequence=3)
    places = [at for at in range(len(whole)) if whole[at : at + 1] == b"{"]
    at = data.draw(st.sampled_from(places)) + 1
    sent = whole[:at] + key + b"," + whole[at:]
    found: list[bool] = []

    def look(pairs: list[tuple[str, object]]) -> None:
        found.append(len({name for name, _ in pairs}) == len(pairs))

    json.loads(sent, object_pairs_hook=look)
    if all(found):
        decode_request(sent)
    else:
        with pytest.raises(MalformedMessageError):
            decode_request(sent)
