"""Errors of HTTP calls, with the party at fault.

A message quotes at most ``SHOWN`` characters of a response, because any program may have sent it.
"""

from __future__ import annotations

from typing import Final

import httpx2 as httpx
import msgspec

from agent import texts
from agent.core.events import Fault
from agent.ports import PortError
from protocol.units import Seconds

SHOWN: Final = 200


def no_answer(what: str, error: Exception, deadline: Seconds) -> PortError:
    """The error of a call to ``what`` that got no response."""
    # The cause is unknown, so blame the network.
    if isinstance(error, (TimeoutError, httpx.TimeoutException)):
        return PortError(Fault.NETWORK, texts.NO_ANSWER.format(who=what, seconds=deadline))
    reason = texts.UNREACHABLE.format(who=what, kind=type(error).__name__, error=error)
    return PortError(Fault.NETWORK, reason[:SHOWN])


class _ErrorBody(msgspec.Struct):
    error: str = ""
    message: str = ""


_BODY: Final = msgspec.json.Decoder(_ErrorBody)


def reason_in(body: bytes) -> str:
    """The message of an error response: this project's ``error``, the API server's ``message``, or the text."""
    try:
        decoded = _BODY.decode(body)
    # A proxy may respond with HTML or plain text.
    except (ValueError, RecursionError):
        decoded = _ErrorBody()
    return (decoded.error or decoded.message or body[:SHOWN].decode(errors="replace"))[:SHOWN]
