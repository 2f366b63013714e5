"""Retention: when spans become coarser, and which are removed first if the store is too large."""

from __future__ import annotations

from typing import Final

import msgspec

from scheduler_plugin.history.core.samples import DAY, HOUR, MINUTE, Millis


class Tier(msgspec.Struct, frozen=True, gc=False):
    """Spans of one width (0: as recorded), kept for ``keep``, at least ``least``; all in ms."""

    width: Millis
    keep: Millis
    least: Millis


TIERS: Final = (
    Tier(0, 2 * HOUR, 10 * MINUTE),
    Tier(5 * MINUTE, 2 * DAY, 2 * HOUR),
    Tier(HOUR, 35 * DAY, 12 * HOUR),
)


class RetentionBounds(msgspec.Struct, frozen=True, gc=False):
    """Limits of a store: bytes of its file, and rows of spans, decisions and migrations together."""

    most_bytes: int = 1024**3
    most_rows: int = 5_000_000

    @classmethod
    def of_volume(cls, size: int) -> RetentionBounds:
        """Limits on a volume of this many bytes, which must also hold the journal, SQLite's temporary files, and a
        damaged file.

        >>> RetentionBounds.of_volume(3 * 1024**2).most_bytes == 1024**2
        True
        >>> RetentionBounds.of_volume(10**12) == RetentionBounds()
        True
        """
        return cls(most_bytes=min(cls().most_bytes, size // _PARTS))


_PARTS: Final = 3
"""The file may take one of this many parts of its volume."""

MOST_SAID: Final = 4 * 1024**2
"""Maximum bytes of one VM's decisions, about ten thousand; the newest are kept."""


class Fold(msgspec.Struct, frozen=True, gc=False):
    """Spans of ``tier`` that began before ``before`` go to the next tier; those of the last are removed."""

    tier: int
    before: Millis


FINE_FIRST: Final = 5
"""Halvings of the horizons of fine spans, down to their minimum, before the coarsest is halved."""

MOST_HALVINGS: Final = FINE_FIRST + 6


def folds(now: Millis, halvings: int = 0) -> tuple[Fold, ...]:
    """Due folds, finest tier first; boundaries are multiples of the next tier's width. Decisions and migrations go with
    the last tier.

    >>> [fold.before // HOUR for fold in folds(100 * DAY)]
    [2398, 2352, 1560]
    >>> [fold.before // HOUR for fold in folds(100 * DAY, halvings=5)]
    [2399, 2398, 1560]
    >>> folds(100 * DAY, halvings=6)[2].before == 100 * DAY - 35 * DAY // 2
    True
    """
    folds_due = []
    for number, tier in enumerate(TIERS):
        is_last = number + 1 == len(TIERS)
        width = TIERS[number if is_last else number + 1].width
        # Fine spans first, so that even a large fleet keeps weeks of coarse ones.
        halved = max(0, halvings - FINE_FIRST) if is_last else halvings
        # At least ``least``: the last minutes are viewed most.
        horizon = now - max(tier.keep >> halved, tier.least)
        # At a multiple of the next width, or a coarse span would be made in two parts.
        folds_due.append(Fold(number, horizon // width * width))
    return tuple(folds_due)


def next_halvings(halvings: int, used_bytes: int, rows: int, bounds: RetentionBounds) -> int:
    """Number of halvings of horizons after a check of the store: more if it is too large, fewer if half empty.

    >>> next_halvings(0, 11, 0, RetentionBounds(most_bytes=10)), next_halvings(2, 4, 0, RetentionBounds(most_bytes=10))
    (1, 1)
    >>> next_halvings(2, 8, 0, RetentionBounds(most_bytes=10)), next_halvings(0, 1, 0, RetentionBounds())
    (2, 0)
    """
    if used_bytes > bounds.most_bytes or rows > bounds.most_rows:
        return min(halvings + 1, MOST_HALVINGS)
    # Hysteresis: otherwise the horizons would change with every upkeep.
    is_half_empty = 2 * used_bytes < bounds.most_bytes and 2 * rows < bounds.most_rows
    return max(0, halvings - 1) if is_half_empty else halvings
