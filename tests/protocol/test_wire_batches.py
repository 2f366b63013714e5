"""Many requests in one message: what the envelope says, and that an entry is no matter of the others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec import decode_request, decode_response, encode_request, encode_response
from protocol.messages import AgentRequest, ObjectName, PluginResponse
from protocol.units import ComputeUnit, Resources, Seconds
from protocol.versions import AGENT_SPEAKS
from protocol.wire.wire_batches import (
    MAX_REQUESTS,
    EncodedAnswer,
    MalformedBatchError,
    decode_answers,
    decode_batch,
    encode_batch,
    granted_entry,
    refused_entry,
)
from tests.nesting import LEVELS
from tests.protocol.wire_examples import SLOT

UNIT = ComputeUnit.parse("250m", "1Gi")
SIZES = st.builds(Resources.parse, st.integers(1, 64), st.integers(1, 64).map("{}Gi".format))


@given(st.lists(SIZES, min_size=1, max_size=MAX_REQUESTS))
def test_batches_keep_order_and_content(sizes: list[Resources]) -> None:
    requests = [AgentRequest(ObjectName("default", f"vm-{n}"), size) for n, size in enumerate(sizes)]
    sent = encode_batch(encode_request(AGENT_SPEAKS, each, SLOT) for each in requests)
    assert [decode_request(each).resolve(SLOT) for each in decode_batch(sent)] == requests
    permits = [encode_response(AGENT_SPEAKS, PluginResponse(each, UNIT), SLOT) for each in sizes]
    said = decode_answers(encode_batch(map(granted_entry, permits)), len(sizes))
    found = [decode_response(AGENT_SPEAKS, each.body, SLOT) for each in said if isinstance(each, EncodedAnswer)]
    assert [each.permit for each in found] == sizes


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "document: input data was truncated"),
        (b"[{]", "document: malformed: expected '\"' (byte 2)"),
        (b'{"a":1}', "document: expected array, got object"),
        (b"[" * LEVELS, "document: expected fewer levels of nesting"),
        (b"[1]x", "document: malformed: trailing characters (byte 4)"),
        (b"[]", "expected 1 to 128 entries, got 0"),
        (encode_batch([b"1"] * 129), "expected 1 to 128 entries, got 129"),
    ],
)
def test_what_is_no_batch_is_refused(body: bytes, error: str) -> None:
    with pytest.raises(MalformedBatchError) as refused:
        decode_batch(body)
    assert str(refused.value) == error


@pytest.mark.parametrize(
    "entry", [b"1", b"[]", b'{"permit":{}}', b'{"status":"200"}', b'{"status":7}', b'{"status":1e9}']
)
def test_malformed_answer_affects_one_request(entry: bytes) -> None:
    good = refused_entry(404, "no such pod")
    before, found, after = decode_answers(encode_batch([good, entry, good]), 3)
    assert before == after == EncodedAnswer(404, good)
    assert isinstance(found, MalformedBatchError)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_as_many_answers_as_requests_or_none_counts(count: int) -> None:
    with pytest.raises(MalformedBatchError, match="expected 2 entries"):
        decode_answers(encode_batch([refused_entry(404, "x")] * count), 2)


@pytest.mark.parametrize(
    ("wait", "told"), [(None, {}), (Seconds(0.0), {"retryAfter": 0.0}), (Seconds(1.5), {"retryAfter": 1.5})]
)
def test_a_refusal_says_when_to_come_again(wait: Seconds | None, told: dict[str, Any]) -> None:
    entry = refused_entry(503, "not ready", wait)
    assert json.loads(entry) == {"status": 503, "error": "not ready", **told}
    assert decode_answers(encode_batch([entry]), 1) == [EncodedAnswer(503, entry, wait)]


@given(st.binary(max_size=200))
def test_hostile_bytes_raise_declared_error(body: bytes) -> None:
    for read in (decode_batch, lambda text: decode_answers(text, 1)):
        try:
            read(body)
        except MalformedBatchError:
            continue
