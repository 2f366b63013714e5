"""Cases that are described by a text: the first matching phrase determines the check."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

Phrases = Sequence[tuple[re.Pattern[str], T]]


def told(pattern: str) -> re.Pattern[str]:
    """A phrase, in letters of any case."""
    return re.compile(pattern, re.IGNORECASE)


def understood(phrases: Phrases[T], text: str, what: str) -> tuple[re.Match[str], T]:
    """The first phrase that is in ``text``. Raises ``ValueError`` if there is none: ``what`` is not known for it."""
    for phrase, meaning in phrases:
        if found := phrase.search(text):
            return found, meaning
    raise ValueError(f"no {what} for the text: {text}")
