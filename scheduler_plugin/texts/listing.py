"""Lists of names in sentences, bounded. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_MOST_NAMED: Final = 3


def named(names: Sequence[str]) -> str:
    """The first names, and how many more there are.

    >>> named(["a", "b"]), named(["a", "b", "c", "d"])
    ('a, b', 'a, b, c and 1 more')
    """
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}"
