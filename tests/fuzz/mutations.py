"""Damage for valid examples: values replaced, lost, doubled and nested in documents; pieces moved about in texts.

Rules that hold here:

- Everything is drawn from the given ``Random``: the same seed gives the same inputs.
- A document is plain JSON with ``msgspec.Raw`` where its text is to be something that no encoder would write.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Final

import msgspec

DEEP: Final = b'{"a":' * 2000 + b"1" + b"}" * 2000
DEEP_LIST: Final = b"[" * 2000 + b"]" * 2000

QUANTITIES: Final[Sequence[object]] = (
    "1e1000000000000000000",
    "-1e1000000000000000000",
    "1e-1000000000000000000",
    "9" * 5000,
    "0." + "0" * 5000 + "1",
    "1" + "0" * 200 + "e-200",
    "NaN",
    "-1",
    "+1",
    "-0",
    "1Ei",
    "99999999999Ei",
    "1n",
    "1e3",
    "1E",
    "٣",
    "1 Gi",
    ".",
    "0x10",
    "1_000",
)

VALUES: Final[Sequence[object]] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2**31,
    2**63,
    2**64 - 1,
    -(2**63),
    0.5,
    -0.5,
    1e300,
    "",
    "x",
    "a" * 300,
    "\u0000",
    "\u202e",
    [],
    {},
    [[]],
    [None],
    [{}],
    {"": None},
    {"name": {}},
    msgspec.Raw(b"1e999"),
    msgspec.Raw(b"-1e999"),
    msgspec.Raw(b"1e-999"),
    msgspec.Raw(b"9" * 400),
    msgspec.Raw(b"9" * 5000),
    msgspec.Raw(b'"\\ud800"'),
    msgspec.Raw(b'"\xff"'),
    msgspec.Raw(DEEP),
    msgspec.Raw(DEEP_LIST),
)

TEXTS: Final[Sequence[bytes]] = (
    b"",
    b" " * 300,
    b"\t" * 300,
    b"\x00",
    b"\xff\xfe",
    b"\n",
    b"\r\n",
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[" * 300,
    b"{" * 300,
    b",",
    b":",
    b"#",
    b"&a [*a]",
    b"<<: ",
    b"!!python/object:os.system",
    b"9" * 400,
    b"1e999",
    b"NaN",
    b"null",
    b"\xd9\xa3",
)


def damaged(document: object, random: Random, times: int = 1) -> object:
    """A copy of ``document`` with ``times`` places damaged."""
    for _ in range(times):
        document = _damaged(document, random, 0)
    return document


def encoded(document: object) -> bytes:
    """The document as JSON text."""
    try:
        return msgspec.json.encode(document)
    except OverflowError:  # whole numbers beyond 64 bits
        return json.dumps(document, default=str).encode()


def damaged_text(text: bytes, random: Random, times: int = 1) -> bytes:
    """``text`` with ``times`` pieces replaced, doubled, moved or lost."""
    for _ in range(times):
        begin = random.randrange(len(text) + 1)
        end = min(len(text), begin + random.choice((0, 1, 2, 8, 64)))
        piece = text[begin:end]
        match random.randrange(5):
            case 0:
                piece = random.choice(TEXTS)
            case 1:
                piece *= random.choice((2, 3, 100))
            case 2:
                piece = b""
            case 3:
                piece = bytes(random.randrange(256) for _ in range(random.choice((1, 4))))
            case _:
                piece = piece[::-1]
        text = text[:begin] + piece + text[end:]
    return text


def _damaged(value: object, random: Random, depth: int) -> object:
    if isinstance(value, dict) and value and random.random() < 0.9:
        return _damaged_mapping(value, random, depth)
    if isinstance(value, list) and value and random.random() < 0.9:
        index = random.randrange(len(value))
        return [*value[:index], _damaged(value[index], random, depth + 1), *value[index + random.choice((0, 1)) :]]
    if isinstance(value, str) and value.startswith("{") and random.random() < 0.8:
        return _inside_text(value, random)
    return random.choice(QUANTITIES) if random.random() < 0.4 else random.choice(VALUES)


def _damaged_mapping(value: dict[str, object], random: Random, depth: int) -> dict[str, object]:
    key = random.choice(list(value))
    match random.randrange(10):
        case 0:
            return {other: each for other, each in value.items() if other != key}
        case 1:
            return {**value, random.choice(("", "x", key.upper(), "a" * 300)): value[key]}
        case 2 if depth:
            return {key: value}
        case _:
            return {**value, key: _damaged(value[key], random, depth + 1)}


def _inside_text(text: str, random: Random) -> str:
    """An annotation that holds JSON: damaged inside; behind, where it is unreadable or too deep by now."""
    try:
        return encoded(_damaged(json.loads(text), random, 0)).decode(errors="replace")
    except (ValueError, RecursionError):
        return text + random.choice(("}", "{" * 3000, "\u0000"))
