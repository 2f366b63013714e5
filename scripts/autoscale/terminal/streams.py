"""Prepares stdout, stderr and the terminal's environment variables before a command prints."""

from __future__ import annotations

import codecs
import io
from collections.abc import MutableMapping
from typing import Final, TextIO

_HANDLER: Final = "autoscale-signs"
_REFUSING: Final = ("strict", "surrogateescape")
"""Error handlers that fail if the encoding lacks a character; the second is stdout's in the locales C and POSIX."""
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
"""ASCII replacements of our symbols, for encodings that lack them."""


def prepare_streams(environment: MutableMapping[str, str], *streams: TextIO) -> None:
    """Makes all text printable in the encoding of ``streams``, and drops an invalid width or height."""
    # With `PYTHONIOENCODING=latin-1` and on old terminals, a command would fail at its first ✓.
    codecs.register_error(_HANDLER, _replaced)
    for stream in streams:
        # Only streams that do not replace or ignore such characters; tests pass streams of other types.
        if isinstance(stream, io.TextIOWrapper) and stream.errors in _REFUSING:
            stream.reconfigure(errors=_HANDLER)
    # Rich reads these: `COLUMNS=0` would hide everything.
    for name in ("COLUMNS", "LINES"):
        size = environment.get(name, "")
        if size and not (size.isdecimal() and int(size) > 0):
            del environment[name]


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error  # the handler is also registered for decoding
    wrong = error.object[error.start : error.end]
    return "".join(_PLAIN.get(sign, "?") for sign in wrong), error.end
