"""Preparation of stdout, stderr and a terminal's variables, before a command prints."""

from __future__ import annotations

import codecs
import io
from collections.abc import MutableMapping
from typing import Final, TextIO

_HANDLER: Final = "autoscale-signs"
_REFUSING: Final = ("strict", "surrogateescape")
"""Error handlers that refuse a sign which the encoding lacks; the second is stdout's in the locales C and POSIX."""
_PLAIN: Final = {
    "✓": "+",
    "✗": "x",
    "×": "x",
    "→": "->",
    "⇢": "->",
    "…": "...",
    "·": "-",
    "≤": "<=",
    "≥": ">=",
    "≈": "~",
    "█": "#",
    "▲": "^",
    "▼": "v",
}
"""Our signs in ASCII, for encodings that lack them."""


def prepare_streams(environment: MutableMapping[str, str], *streams: TextIO) -> None:
    """Makes any text printable in the encoding of ``streams``, and drops an impossible width and height."""
    # `PYTHONIOENCODING=latin-1` and old terminals would end a command at its first ✓.
    codecs.register_error(_HANDLER, _spelt)
    for stream in streams:
        # Streams that already replace or ignore such characters stay as they are; tests pass streams of other types.
        if isinstance(stream, io.TextIOWrapper) and stream.errors in _REFUSING:
            stream.reconfigure(errors=_HANDLER)
    # Rich obeys these: `COLUMNS=0` would hide everything.
    for name in ("COLUMNS", "LINES"):
        size = environment.get(name, "")
        if size and not (size.isdecimal() and int(size) > 0):
            del environment[name]


def _spelt(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        # The handler is registered for decoding as well, where it has no answer.
        raise error
    wrong = error.object[error.start : error.end]
    return "".join(_PLAIN.get(sign, "?") for sign in wrong), error.end
