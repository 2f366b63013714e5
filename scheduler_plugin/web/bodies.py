"""Bodies of requests: read up to a limit, and decoded so that every fault of the client is one error."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from protocol.field_errors import field_message

T = TypeVar("T")


class BodyError(ValueError):
    """The body cannot be used; ``status`` is the answer's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def read_body(request: Request, longest: int) -> bytes:
    """The body. Raises ``BodyError`` if it has more than ``longest`` bytes, or breaks off."""
    declared = request.headers.get("content-length", "")
    # Length first: ``int`` takes quadratic time for many digits, and refuses thousands of them.
    if declared.isascii() and declared.isdigit() and len(declared) > len(str(longest)):
        raise too_long(longest)
    if declared.isascii() and declared.isdigit() and int(declared) > longest:
        raise too_long(longest)
    chunks, size = [], 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            # A chunked body declares no length, and a declared one may be wrong.
            if size > longest:
                raise too_long(longest)
            chunks.append(chunk)
    except ClientDisconnect:
        raise BodyError(400, "the body broke off") from None
    return b"".join(chunks)


def decoded(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw) -> T:
    """The decoded body. Raises ``BodyError`` naming the path of the bad field."""
    try:
        return decoder.decode(body)
    # Deeply nested JSON exceeds Python's stack.
    except (ValueError, RecursionError) as error:
        raise BodyError(400, field_message(error)) from None


def too_long(longest: int) -> BodyError:
    """The body has more than ``longest`` bytes."""
    return BodyError(413, f"a request has at most {longest} bytes")
