"""The amount that was not exceeded in a share of the time."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler_plugin.history.core.samples import Amount, Millis


def weighted_share(levels: Iterable[tuple[Amount, Millis]], share: float) -> Amount:
    """The least of the amounts that covers ``share`` (0..1) of the time; ``levels`` are amounts with how long each
    held. 0 if there is no time.

    >>> weighted_share([(1, 90), (8, 10)], 0.9), weighted_share([(1, 90), (8, 10)], 0.95)
    (1, 8)
    >>> weighted_share([], 0.9)
    0
    """
    ranked = sorted(levels)
    # Above 1 the loop would run past the greatest amount.
    remaining = min(1.0, share) * sum(lasted for _, lasted in ranked)
    for amount, lasted in ranked:
        remaining -= lasted
        if remaining <= 0:
            return amount
    return 0
