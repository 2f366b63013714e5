"""Retention: when spans are made coarser or removed, and which first if the store is too large."""

from __future__ import annotations

from typing import Final

import msgspec

from scheduler_plugin.history.core.samples import DAY, HOUR, MINUTE, Millis


class Tier(msgspec.Struct, frozen=True, gc=False):
    """Spans of one width (0: as recorded), kept for ``keep``, or for ``least`` if the store is too large; in ms."""

    width: Millis
    keep: Millis
    least: Millis


TIERS: Final = (
    Tier(0, 2 * HOUR, 10 * MINUTE),
    Tier(5 * MINUTE, 2 * DAY, 2 * HOUR),
    Tier(HOUR, 35 * DAY, 12 * HOUR),
)


class RetentionBounds(msgspec.Struct, frozen=True, gc=False):
    """Limits of a store: bytes of its file, and rows of spans, decisions and migrations in total."""

    most_bytes: int = 1024**3
    most_rows: int = 5_000_000

    @classmethod
    def of_volume(cls, size: int) -> RetentionBounds:
        """Limits on a volume of ``size`` bytes, which must also hold the journal, SQLite's temporary files, and a
        damaged file.

        >>> RetentionBounds.of_volume(3 * 1024**2).most_bytes == 1024**2
        True
        >>> RetentionBounds.of_volume(10**12) == RetentionBounds()
        True
        """
        return cls(most_bytes=min(cls().most_bytes, size // _PARTS))


_PARTS: Final = 3
"""Divisor: the file may use a third of its volume."""

MAX_DECISION_BYTES: Final = 4 * 1024**2
"""Maximum size of one VM's decisions in bytes, about ten thousand decisions; the newest are kept."""


class Fold(msgspec.Struct, frozen=True, gc=False):
    """Move spans of ``tier`` that began before ``before`` to the next tier, or remove them from the last one."""

    tier: int
    before: Millis


FINE_FIRST: Final = 5
"""How often the horizons of fine spans are halved, down to their minimum, before the coarsest horizon is."""

MOST_HALVINGS: Final = FINE_FIRST + 6


def folds(now: Millis, halvings: int = 0) -> tuple[Fold, ...]:
    """The folds that are due, finest tier first. Decisions and migrations are removed with spans of the last tier.

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
        # Shorten the horizons of fine spans first, so that even a large fleet keeps weeks of coarse ones.
        halved = max(0, halvings - FINE_FIRST) if is_last else halvings
        # At least ``least``, because the last minutes are viewed most.
        horizon = now - max(tier.keep >> halved, tier.least)
        # At a multiple of the next width; otherwise a coarse span would be split.
        folds_due.append(Fold(number, horizon // width * width))
    return tuple(folds_due)


def next_halvings(halvings: int, used_bytes: int, rows: int, bounds: RetentionBounds) -> int:
    """The number of times to halve the horizons: once more if the store is too large, once less if it is half empty.

    >>> next_halvings(0, 11, 0, RetentionBounds(most_bytes=10)), next_halvings(2, 4, 0, RetentionBounds(most_bytes=10))
    (1, 1)
    >>> next_halvings(2, 8, 0, RetentionBounds(most_bytes=10)), next_halvings(0, 1, 0, RetentionBounds())
    (2, 0)
    """
    if used_bytes > bounds.most_bytes or rows > bounds.most_rows:
        return min(halvings + 1, MOST_HALVINGS)
    # Hysteresis, because otherwise the horizons would change at every maintenance.
    is_half_empty = 2 * used_bytes < bounds.most_bytes and 2 * rows < bounds.most_rows
    return max(0, halvings - 1) if is_half_empty else halvings
