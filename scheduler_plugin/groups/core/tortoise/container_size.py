"""How large a container should be, also if replicas scale horizontally (S3.4, S3.5).

Rules that hold here:

- Vertical: the recommendation and a buffer. A change may restart pods, so growth goes further than needed, and only a
  large gap is worth shrinking.
- Horizontal: sizes change if the replica count should not. Too many replicas grow, the fewest shrink, and a container
  that stays far below its target because others drive the count shrinks until it fits the target.
- A size ends within the bounds, and one step down keeps ``max_allowed_scaling_down_ratio`` of the present size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from scheduler_plugin.groups.core.tortoise.configuration import CLOSE, GROWTH, UNDER_USED
from scheduler_plugin.groups.core.tortoise.scaling_policy import Scaling


@dataclass(frozen=True, slots=True)
class Numbers:
    """The number of replicas, and the numbers that are too few and too many.

    ``least`` is the HPA's minimum (None without an HPA). ``grows``: there have been too many for long enough.
    """

    replicas: int
    least: int | None
    minimum_min: int
    preferred_max: int
    grows: bool = False

    @property
    def are_close_to_too_many(self) -> bool:
        """True if smaller containers might bring them beyond ``preferred_max``."""
        return int(self.preferred_max * CLOSE) < self.replicas


@dataclass(frozen=True, slots=True)
class SizeFacts:
    """One resource of one container; amounts in its smallest unit, all above zero but ``least``.

    ``recommended`` is the greatest recent recommendation, ``target`` the HPA's utilisation in percent (None if it
    has none), ``several`` whether more than one resource scales horizontally. ``most`` wins over ``least``.
    """

    request: int
    recommended: int
    least: int
    most: int
    target: int | None = None
    several: bool = False


@dataclass(frozen=True, slots=True)
class Sized:
    """A size, what it would be without bounds, and why."""

    size: int
    wanted: int
    because: str


@dataclass(frozen=True, slots=True)
class Ratios:
    """``buffer`` (>= 0) on vertical sizes, and the least share of a size (0..1) that one step down keeps."""

    buffer: Fraction
    down: Fraction


def container_size(policy: Scaling, facts: SizeFacts, numbers: Numbers, ratios: Ratios) -> Sized:
    """The request that the container should have."""
    if policy is Scaling.OFF:
        return Sized(facts.request, facts.request, "its policy is Off")
    if policy is Scaling.VERTICAL:
        wanted, because = _vertical(facts, ratios.buffer)
    else:
        wanted, because = next(result for rule in _HORIZONTAL if (result := rule(facts, numbers)) is not None)
    return Sized(_bounded(wanted, facts, ratios.down), wanted, because)


def _vertical(facts: SizeFacts, buffer: Fraction) -> tuple[int, str]:
    ideal = int(facts.recommended * (1 + buffer))
    if ideal > facts.request:
        # The buffer twice: one large step instead of several, because each change may restart pods.
        return int(facts.recommended * (1 + buffer) * (1 + buffer)), "the recommendation is above the request"
    # The buffer on both sides: only a large gap is worth a change that may restart pods.
    if facts.request / (1 + buffer) * (1 - buffer) > facts.recommended * (1 + buffer):
        return ideal, "the recommendation is far below the request"
    return facts.request, "the recommendation is close to the request"


Found = tuple[int, str] | None


def _too_many(facts: SizeFacts, numbers: Numbers) -> Found:
    if numbers.grows:
        return int(facts.request * GROWTH), "there are as many replicas as preferred, so containers grow instead"
    if numbers.are_close_to_too_many:
        return facts.request, "smaller containers might need more replicas than preferred"
    return None


def _fewest(facts: SizeFacts, numbers: Numbers) -> Found:
    if numbers.replicas > numbers.minimum_min:
        return None
    if facts.recommended < facts.request:
        return facts.recommended, "there are as few replicas as may be, so containers shrink instead"
    return facts.request, "there are as few replicas as may be, and they use what they request"


def _under_used(facts: SizeFacts, numbers: Numbers) -> Found:
    if numbers.least is not None and numbers.replicas <= numbers.least:
        return None  # at the HPA's minimum no container drives the number
    if not facts.several or facts.target is None:
        return None
    if facts.recommended * 100 >= UNDER_USED * facts.target * facts.request:
        return None
    return (
        facts.recommended * 100 // facts.target,
        "other containers drive the number of replicas, and this one uses little",
    )


def _right(facts: SizeFacts, numbers: Numbers) -> Found:  # noqa: ARG001 - one of a table of rules
    # The last rule always applies, so `next` finds one.
    return facts.request, "the number of replicas follows the need"


_HORIZONTAL: Final[tuple[Callable[[SizeFacts, Numbers], Found], ...]] = (_too_many, _fewest, _under_used, _right)
"""The first rule that applies decides."""


def _bounded(wanted: int, facts: SizeFacts, down: Fraction) -> int:
    # One step down keeps a share of the present size, so that a bad recommendation does little harm.
    least = max(facts.least, int(facts.request * down))
    # Applied last, so the upper bound wins.
    return min(facts.most, max(wanted, least))
