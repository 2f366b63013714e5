"""Replaces control characters in texts from a cluster before they are printed (pure).

Others write annotations, reasons and events, and an escape sequence in one could clear the screen, rename the window
or forge a line.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

_PICTURES: Final = 0x2400
"""First of Unicode's pictures of control characters."""
_DELETE: Final = 0x7F
_DELETE_PICTURE: Final = 0x2421
_REPLACEMENT: Final = 0xFFFD
_DIRECTIONS: Final = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that change the direction of text, and could make a name look like another one."""

_REPLACEMENTS: Final = MappingProxyType(
    # A tab is harmless and keeps columns aligned.
    {code: _PICTURES + code for code in range(0x20) if chr(code) != "\t"}
    | {_DELETE: _DELETE_PICTURE}
    # C1 controls have no pictures in Unicode.
    | dict.fromkeys((*range(0x80, 0xA0), *_DIRECTIONS), _REPLACEMENT)
)


def visible(text: str) -> str:
    r"""Replaces control characters in a line, one for one.

    >>> visible("db\x1b[2J\nforged")
    'db␛[2J␊forged'
    """
    return text.translate(_REPLACEMENTS)


def visible_lines(text: str) -> str:
    r"""Replaces control characters in several lines.

    >>> visible_lines("why\n\x9b2J")
    'why\n�2J'
    """
    # Not `splitlines`, which would also split at control characters.
    return "\n".join(map(visible, text.split("\n")))
