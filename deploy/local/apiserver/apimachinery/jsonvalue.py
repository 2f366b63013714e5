"""JSON values as the API server handles them.

- ``JsonObject`` is ``dict[str, Any]``, because the shape of an object is known only from its schema, at run time.
- Stored objects are never modified in place: a change copies what it modifies (``with_field``) or the whole object
  (``deepcopy``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgspec

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object of any shape."""

encode = msgspec.json.Encoder().encode
"""JSON text of a value, in the order of its keys."""

MAX_DEPTH: Final = 128
"""Maximum nesting. No Kubernetes object comes near it, and recursion this deep is safe everywhere here."""

TOO_DEEP: Final = f"nested more than {MAX_DEPTH} levels deep"

_decoder = msgspec.json.Decoder()


class NotJsonError(ValueError):
    """The text is not valid JSON, or not of the expected type; the message says why."""


def decode(raw: bytes) -> Any:
    """Decode a JSON text. Raises ``NotJsonError``."""
    try:
        value = _decoder.decode(raw)
    # RecursionError: the decoder recurses too, before the depth can be checked.
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotJsonError(str(error)) from None
    # Counting brackets is cheap; only a text with many of them needs the exact check.
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and is_too_deep(value):
        raise NotJsonError(TOO_DEEP)
    return value


def is_too_deep(value: Any) -> bool:
    """Return True if ``value`` is nested more than ``MAX_DEPTH`` levels deep."""
    level = [value]
    # Level by level: recursion would fail on exactly the values that are too deep.
    for _ in range(MAX_DEPTH + 1):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner += item.values()
            elif isinstance(item, list):
                inner += item
        if not inner:
            return False
        level = inner
    return True


def decode_object(raw: bytes) -> JsonObject:
    """Decode a JSON object. Raises ``NotJsonError`` if the text is malformed or not an object."""
    value = decode(raw)
    if not isinstance(value, dict):
        raise NotJsonError(f"expected a JSON object, got {type(value).__name__}")
    return value


def field(value: Any, path: Sequence[str]) -> Any:
    """The value at ``path``, or None if any part of the path is missing."""
    for step in path:
        if not isinstance(value, dict):
            return None
        value = value.get(step)
    return value


def text_at(value: Any, dotted: str) -> str:
    """The text at a dotted path such as ``spec.nodeName``; booleans and numbers as JSON, a missing value as ``""``."""
    result = field(value, dotted.split("."))
    if result is None:
        return ""
    return result if isinstance(result, str) else encode(result).decode()


def with_field(value: JsonObject, path: Sequence[str], new: Any) -> JsonObject:
    """A copy of ``value`` with ``new`` at ``path``; all other parts are shared."""
    head, rest = path[0], path[1:]
    if not rest:
        return {**value, head: new}
    inner = value.get(head)
    # A value that is not an object cannot have the rest of the path, so an object replaces it.
    return {**value, head: with_field(inner if isinstance(inner, dict) else {}, rest, new)}
