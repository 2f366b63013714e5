"""Batches: many requests of one agent in one message, an envelope around the messages of ``protocol.codec`` (S4.4,
B.1).

Rules that hold here:

- A batch is a JSON array of requests. Its answer is an array of the same length and order.
- Batches are our own extension: a peer that does not support ``OFFER`` never gets one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from protocol.field_errors import field_message
from protocol.units import Seconds
from protocol.wire.wire_messages import Wait

PATH: Final = "/permits"
"""Path for batches, below the scheduler's URL."""

OFFER: Final = "autoscale-batch"
"""The header, in lower case. Its value is 1 in a request, and the maximum batch size in an answer."""

MAX_REQUESTS: Final = 128
"""Maximum requests in one batch: a node runs at most 110 pods by default."""

LONGEST_BATCH: Final = 128 * 1024
"""Maximum bytes of a batch, and of its answer; a request has 300 to 500."""

# ``is_granted`` recognizes an entry by this prefix, without parsing it.
_GRANTED: Final = b'{"status":200,'


class MalformedBatchError(ValueError):
    """The message is not an array, or has the wrong number of entries."""


class _Entry(msgspec.Struct, frozen=True):
    status: Annotated[int, msgspec.Meta(ge=100, le=599)]
    retryAfter: Wait | None = None  # noqa: N815 - the name on the wire


@dataclass(frozen=True, slots=True)
class EncodedAnswer:
    """The answer to one request, sent alone or in a batch. ``body`` is still encoded: the permit, or the error."""

    status: int
    body: bytes
    retry_after: Seconds | None = None


def encode_batch(requests: Iterable[bytes]) -> bytes:
    """Combine encoded requests, or encoded answers, into one message.

    >>> encode_batch([b'{"a":1}', b'{"b":2}'])
    b'[{"a":1},{"b":2}]'
    """
    return b"[" + b",".join(requests) + b"]"


def decode_batch(body: bytes) -> list[bytes]:
    """The entries of a batch, still encoded, 1 to ``MAX_REQUESTS``. Raises ``MalformedBatchError``.

    >>> decode_batch(b'[{"a": 1}, 7]')
    [b'{"a": 1}', b'7']
    """
    return [bytes(entry) for entry in _entries(body, range(1, MAX_REQUESTS + 1), f"1 to {MAX_REQUESTS}")]


def granted_entry(answer: bytes) -> bytes:
    """The entry for a granted request; ``answer`` is its encoded answer, a JSON object.

    >>> granted_entry(b'{"permit":{"vCPUs":1,"mem":"2Gi"}}')
    b'{"status":200,"permit":{"vCPUs":1,"mem":"2Gi"}}'
    """
    return _GRANTED + answer[1:]


def is_granted(entry: bytes) -> bool:
    """Return True if ``entry`` was made by ``granted_entry``.

    >>> is_granted(granted_entry(b"{}")), is_granted(refused_entry(404, "no such pod"))
    (True, False)
    """
    return entry.startswith(_GRANTED)


def refused_entry(status: int, error: str, retry_after: Seconds | None = None) -> bytes:
    """The entry for a refused request.

    >>> refused_entry(404, "no such pod")
    b'{"status":404,"error":"no such pod"}'
    """
    entry: dict[str, object] = {"status": status, "error": error}
    return _ENCODER.encode(entry if retry_after is None else {**entry, "retryAfter": retry_after})


def decode_answers(body: bytes, count: int) -> list[EncodedAnswer | MalformedBatchError]:
    """Decode the answers to a batch of ``count`` requests, in order. A malformed entry yields an error in its place.

    Raises ``MalformedBatchError`` if the number of answers differs.

    >>> [answer.status for answer in decode_answers(b'[{"status":200,"permit":{}},{"status":404}]', 2)]
    [200, 404]
    """
    return [_answer(bytes(entry)) for entry in _entries(body, range(count, count + 1), str(count))]


def _answer(entry: bytes) -> EncodedAnswer | MalformedBatchError:
    try:
        answer = _ENTRY.decode(entry)
    except (ValueError, RecursionError) as error:
        return MalformedBatchError(field_message(error))
    return EncodedAnswer(answer.status, entry, None if answer.retryAfter is None else Seconds(answer.retryAfter))


def _entries(body: bytes, counts: range, expected: str) -> Sequence[msgspec.Raw]:
    try:
        # Entries stay raw, so that a malformed one fails only its own request.
        entries = _BATCH.decode(body)
    except (ValueError, RecursionError) as error:
        raise MalformedBatchError(field_message(error)) from None
    # Entries are matched by position, so an answer must be as long as its batch.
    if len(entries) not in counts:
        raise MalformedBatchError(f"expected {expected} entries, got {len(entries)}")
    return entries


_BATCH: Final = msgspec.json.Decoder(list[msgspec.Raw])
_ENTRY: Final = msgspec.json.Decoder(_Entry)
_ENCODER: Final = msgspec.json.Encoder()
