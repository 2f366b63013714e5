"""Limits follow requests, so that a container keeps the room above its request."""

from __future__ import annotations

from fractions import Fraction
from math import floor

from scheduler_plugin.groups.core.hvpa.min_change import UNSET, ChangeParams


def scaled_limit(limit: int | None, old_request: int | None, new_request: int, gap: ChangeParams = UNSET) -> int | None:
    """The limit for a new request; None (or 0) is no limit, and stays none.

    A limit that equals its request, or is set without one, becomes the new request. Otherwise it keeps its ratio, or
    with a ``gap`` stays above the request by the larger of its value and its percentage.
    """
    if not limit:
        return None
    if not old_request or old_request == limit:
        return new_request
    above = gap.parts(new_request)
    if above:
        return new_request + floor(max(above))
    # Never below the request: the API server refuses such a pod.
    return max(new_request, floor(Fraction(limit * new_request, old_request)))
