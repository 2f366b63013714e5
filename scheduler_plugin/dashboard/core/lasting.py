"""Conditions that have lasted for so long that people should know. Pure.

It counts from when it is first seen to be so: no calendar of another machine is asked, and what stops begins again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from protocol.units import Instant, Seconds

LONG: Final = Seconds(60.0)


@dataclass(slots=True)
class Lasting:
    """The VMs of which something is so, by key, and since when that is known."""

    _since: dict[str, Instant] = field(default_factory=dict)

    @property
    def keys(self) -> set[str]:
        """The VMs of which it is so, for however long."""
        return set(self._since)

    def see(self, key: str, now: Instant, *, is_so: bool) -> None:
        """Update the VM's state now."""
        if is_so:
            # The first time counts.
            self._since.setdefault(key, now)
        else:
            self._since.pop(key, None)

    def is_long(self, key: str, now: Instant) -> bool:
        """Return True if it has been so for ``LONG``."""
        since = self._since.get(key)
        return since is not None and now - since >= LONG

    def long(self, now: Instant) -> list[str]:
        """All VMs of which that is so."""
        return [key for key in self._since if self.is_long(key, now)]
