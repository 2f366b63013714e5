"""Splits JSON text at its top level, regardless of nesting depth, for texts that a decoder rejects as a whole.

The contents of the parts are not checked. A text with an unclosed array or object raises ``UnclosedError``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

_STRING: Final = rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)'  # an unclosed one extends to the end; no backtracking
_TOKEN: Final = re.compile(_STRING + rb"|[{}\[\],]", re.DOTALL)
_KEY: Final = re.compile(rb"\s*(" + _STRING + rb")\s*:", re.DOTALL)
_OPEN: Final = frozenset(b"{[")
_CLOSE: Final = frozenset(b"}]")
_COMMA: Final = ord(",")


class UnclosedError(ValueError):
    """The text ends before its array or object is closed."""


def elements(text: bytes) -> Iterator[bytes]:
    """The texts of an array's elements, or of an object's members with their keys. Raises ``UnclosedError``.

    >>> list(elements(b'[1, {"a": [2, 3]}, "x,y"]'))
    [b'1', b'{"a": [2, 3]}', b'"x,y"']
    """
    # Count the depth instead of recursing, so that a deeply nested text cannot exhaust the stack.
    depth, start = 0, 0
    for token in _TOKEN.finditer(text):
        mark = text[token.start()]
        if mark in _OPEN:
            depth += 1
            # Only the outermost bracket starts the first part.
            start = token.end() if depth == 1 else start
        elif mark in _CLOSE:
            depth -= 1
            if depth <= 0:
                # An empty array has no last element.
                yield from filter(None, [text[start : token.start()].strip()])
                return
        elif mark == _COMMA and depth == 1:
            yield text[start : token.start()].strip()
            start = token.end()
    raise UnclosedError("expected a closed JSON object or array")


def members(text: bytes) -> dict[str, bytes]:
    """The texts of an object's values by key; of a repeated key, the last. Raises ``UnclosedError``.

    >>> members(b'{"metadata": {"name": "db"}, "items": []}')
    {'metadata': b'{"name": "db"}', 'items': b'[]'}
    """
    values = {}
    for part in elements(text):
        key = _KEY.match(part)
        # Skip array elements and malformed parts: the decoder has already rejected the text.
        if key is not None:
            values[_name(key[1])] = part[key.end() :].strip()
    return values


def _name(key: bytes) -> str:
    try:
        return msgspec.json.decode(key, type=str)
    except ValueError:
        # Not a valid JSON string, for example with a broken escape; its bytes still identify the member.
        return key.decode(errors="replace")
