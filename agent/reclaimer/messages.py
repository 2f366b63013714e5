"""Messages between an agent and its node's reclaimer: one JSON object per line. Pure.

The agent repeats ``HoldRequest`` to keep a hold, and each gets a ``HoldReply``. A connection holds one pod; closing it
ends the hold.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

import msgspec

from protocol.field_errors import field_message

T = TypeVar("T")

LONGEST_LINE: Final = 512
"""Bytes of one message, newline included."""

ByteCount = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class HoldRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hold the pod with the UID ``pod`` at ``size`` bytes: reclaim down to it and keep it there."""

    pod: Annotated[str, msgspec.Meta(max_length=64)]
    size: ByteCount


class HoldReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The pod's usage in bytes. If ``refusal`` is set, it says why the hold was refused and has ended."""

    used: ByteCount = 0
    refusal: str = ""


_HOLD: Final = msgspec.json.Decoder(HoldRequest)
_HELD: Final = msgspec.json.Decoder(HoldReply)


def read_hold(line: bytes) -> HoldRequest:
    """Parse an agent's message. Raises ``ValueError``.

    >>> read_hold(b'{"pod":"0f7ab1c2-8d4e-4b7a-9c1d-2e3f4a5b6c7d","size":1048576}').size
    1048576
    """
    return _read(_HOLD, line)


def read_held(line: bytes) -> HoldReply:
    """Parse the reclaimer's reply. Raises ``ValueError``.

    >>> read_held(b'{"used":4096}')
    HoldReply(used=4096, refusal='')
    """
    return _read(_HELD, line)


def write_line(message: HoldRequest | HoldReply) -> bytes:
    """Encode a message.

    >>> write_line(HoldReply(refusal="no such pod"))
    b'{"refusal":"no such pod"}\\n'
    """
    return msgspec.json.encode(message) + b"\n"


def _read(decoder: msgspec.json.Decoder[T], line: bytes) -> T:
    try:
        return decoder.decode(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(field_message(error)) from None
