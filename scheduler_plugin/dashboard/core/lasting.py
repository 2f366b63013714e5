"""Conditions that have lasted for so long that people should know. Pure.

Times are by our own clock, from when we first see the condition; one that stops and returns counts from zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from protocol.units import Instant, Seconds

LONG: Final = Seconds(60.0)


@dataclass(slots=True)
class Lasting:
    """The VMs for which a condition holds, by key, and since when we know it."""

    _since: dict[str, Instant] = field(default_factory=dict)

    @property
    def keys(self) -> set[str]:
        """The VMs for which it holds, however long it has."""
        return set(self._since)

    def see(self, key: str, now: Instant, *, is_so: bool) -> None:
        """Records whether it holds for the VM now."""
        if is_so:
            # Keeps the time at which it began.
            self._since.setdefault(key, now)
        else:
            self._since.pop(key, None)

    def is_long(self, key: str, now: Instant) -> bool:
        """Return True if it has held for ``LONG``."""
        since = self._since.get(key)
        return since is not None and now - since >= LONG

    def long(self, now: Instant) -> list[str]:
        """All VMs for which it has held for ``LONG``."""
        return [key for key in self._since if self.is_long(key, now)]
