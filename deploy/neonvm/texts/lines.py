"""Words of a guest or a pod as one line for messages and statuses, and from there for terminals. Pure."""

from __future__ import annotations

from typing import Final

_LONGEST: Final = 300
"""Characters: whoever wrote the text is not trusted to be brief."""


def one_line(text: str) -> str:
    r"""``text`` without line breaks and control characters, cut.

    >>> one_line("a session\n\x1b[31mis in a transaction")
    'a session [31mis in a transaction'
    """
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text[:_LONGEST]).split())
