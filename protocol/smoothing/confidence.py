"""Distance of a bound from its percentile while there is little history, as VPA's recommender widens it."""

from __future__ import annotations

from typing import Final

SHORTEST: Final = 60 / 86_400
"""Days: the first sample counts as a minute."""


def confidence_factor(days: float, multiplier: float, exponent: float) -> float:
    """Factor on an estimate after ``days`` of history: (1 + ``multiplier`` / ``days``)^``exponent``.

    An exponent above zero widens upwards, one below zero downwards; both fade as days pass.

    >>> confidence_factor(1, 1, 1), round(confidence_factor(1 / 24, 0.001, -2), 3)
    (2.0, 0.954)
    """
    # Without this bound, the first sample would divide by zero.
    return float((1 + multiplier / max(days, SHORTEST)) ** exponent)
