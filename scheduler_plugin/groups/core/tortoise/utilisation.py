"""Towards which utilisation an HPA scales a container's resource (S3.3).

The headroom that is left is what the same resource needed at its peaks beyond the present target: the HPA sees the mean
of all replicas and needs time to start another one.
"""

from __future__ import annotations

from typing import TypeVar

from protocol.units import Amount
from scheduler_plugin.groups.core.tortoise.configuration import Configuration

A = TypeVar("A", bound=Amount)


def target_utilisation(recommended: A, request: A, current: int, configuration: Configuration) -> int:
    """The target in percent: 100 - (``recommended`` / ``request`` in percent - ``current``), within the range.

    ``request`` is above zero. A result outside 1..100 leaves ``current``. A part of a percent counts as a whole one.
    """
    # Negated floor division rounds up.
    used = -(-recommended.value * 100 // request.value)
    target = 100 - (used - current)
    valid = target if 0 < target <= 100 else current
    least, most = configuration.minimum_target_resource_utilization, configuration.maximum_target_resource_utilization
    return max(least, min(most, valid))


def towards(current: int, recommended: int, most_increase: int) -> int:
    """The next target on the way to ``recommended``: down in one step, up by at most ``most_increase``.

    >>> towards(50, 80, 5), towards(78, 80, 5), towards(80, 70, 5)
    (55, 80, 70)
    """
    # A lower target adds replicas, which is safe at once; a higher one takes them away, so it goes in steps.
    return min(recommended, current + most_increase)
