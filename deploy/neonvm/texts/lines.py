"""Turns messages of guests and pods into one line, for statuses and terminals. Pure."""

from __future__ import annotations

from typing import Final

_LONGEST: Final = 300
"""Characters; guests and pods are not trusted."""


def one_line(text: str) -> str:
    r"""``text`` without line breaks and control characters, truncated.

    >>> one_line("a session\n\x1b[31mis in a transaction")
    'a session [31mis in a transaction'
    """
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text[:_LONGEST]).split())
