"""What stdout, stderr and the variables of a terminal can do, set right before a command prints."""

from __future__ import annotations

import codecs
import io
from collections.abc import MutableMapping
from typing import Final, TextIO

_HANDLER: Final = "autoscale-signs"
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
    """Makes any text printable in the encoding of ``streams``, and forgets a width and height that cannot be.

    ``PYTHONIOENCODING=latin-1`` and terminals of old would end a command at its first ✓; ``COLUMNS=0`` hides all.
    """
    codecs.register_error(_HANDLER, _spelt)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors=_HANDLER)
    for name in ("COLUMNS", "LINES"):
        given = environment.get(name, "")
        if given and not (given.isdecimal() and int(given) > 0):
            del environment[name]


def _spelt(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    wrong = error.object[error.start : error.end]
    return "".join(_PLAIN.get(sign, "?") for sign in wrong), error.end
