"""One look at the cluster: its observations, or the reason why there are none (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NoReturn, TypeVar

T_co = TypeVar("T_co", covariant=True)


class UnseenError(Exception):
    """A check cannot be made; the message says what it needs."""


@dataclass(frozen=True, slots=True)
class SiteObservations(Generic[T_co]):
    """Observations of a cluster.

    >>> SiteObservations(3).value
    3
    """

    value: T_co


@dataclass(frozen=True, slots=True)
class Unseen:
    """Nothing was seen; ``why`` is one line for people.

    ``has_failed``: neither because one may not look, nor because there is no such thing. Another look may succeed.
    """

    why: str
    has_failed: bool = False

    @property
    def value(self) -> NoReturn:
        """Raises ``UnseenError``."""
        # A judge need not test each look: its check is skipped with this text.
        raise UnseenError(self.why)


Look = SiteObservations[T_co] | Unseen
