"""Which VMs have been pending for so long that people should know. Pure.

A VM counts from when it is first seen pending: no calendar of another machine is asked, and a VM that starts again
begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from protocol.units import Instant, Seconds
from scheduler_plugin.dashboard.core.rows import VmRow

LONG: Final = Seconds(60.0)
_PENDING: Final = "Pending"


@dataclass(slots=True)
class Waiting:
    """Pending VMs by key, and since when each is known to be pending."""

    _since: dict[str, Instant] = field(default_factory=dict)

    def see(self, row: VmRow, now: Instant) -> None:
        """A VM as it is now."""
        if row.phase == _PENDING:
            self._since.setdefault(row.key, now)
        else:
            self.forget(row.key)

    def forget(self, key: str) -> None:
        """That VM is gone."""
        self._since.pop(key, None)

    def is_long(self, key: str, now: Instant) -> bool:
        """Whether that VM has been pending for ``LONG``."""
        since = self._since.get(key)
        return since is not None and now - since >= LONG

    def long(self, now: Instant) -> list[str]:
        """All VMs of which that is so."""
        return [key for key in self._since if self.is_long(key, now)]
