"""Messages between an agent and the reclaimer of its node: JSON objects, one a line. Pure.

The agent repeats ``HoldRequest`` while it holds, and gets a ``HoldReply`` each time. A connection holds one pod, and
the hold ends with it.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

import msgspec

from protocol.field_errors import field_message

T = TypeVar("T")

LONGEST_LINE: Final = 512
"""Bytes of one message with its end."""

ByteCount = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class HoldRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keep the pod with the UID ``pod`` at ``size`` bytes, and reclaim what it has more."""

    pod: Annotated[str, msgspec.Meta(max_length=64)]
    size: ByteCount


class HoldReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The pod uses ``used`` bytes now; or the hold is refused and has ended, and ``refusal`` says why."""

    used: ByteCount = 0
    refusal: str = ""


_HOLD: Final = msgspec.json.Decoder(HoldRequest)
_HELD: Final = msgspec.json.Decoder(HoldReply)


def read_hold(line: bytes) -> HoldRequest:
    """An agent's message. Raises ``ValueError``.

    >>> read_hold(b'{"pod":"0f7ab1c2-8d4e-4b7a-9c1d-2e3f4a5b6c7d","size":1048576}').size
    1048576
    """
    return _read(_HOLD, line)


def read_held(line: bytes) -> HoldReply:
    """The reclaimer's answer. Raises ``ValueError``.

    >>> read_held(b'{"used":4096}')
    HoldReply(used=4096, refusal='')
    """
    return _read(_HELD, line)


def write_line(message: HoldRequest | HoldReply) -> bytes:
    """A message as it is sent.

    >>> write_line(HoldReply(refusal="no such pod"))
    b'{"refusal":"no such pod"}\\n'
    """
    return msgspec.json.encode(message) + b"\n"


def _read(decoder: msgspec.json.Decoder[T], line: bytes) -> T:
    try:
        return decoder.decode(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(field_message(error)) from None
