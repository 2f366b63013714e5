"""Decides in the source pod which end has the guest after a migration, once per migration (pure).

The first decision is final, no matter how many controllers request one, and how stale they are.
"""

from __future__ import annotations

from typing import Final

from deploy.neonvm.qemu.machine import Decided

_MAX_DECISIONS: Final = 256
"""Maximum number of stored decisions: far more migrations than a stale controller can have missed."""


class Decisions:
    """Decisions about the migrations of one pod's guest, keyed by the target pod's uid. ``is_given``: the guest was
    handed over.
    """

    def __init__(self) -> None:
        self._decisions: dict[str, Decided] = {}
        self.is_given = False

    @property
    def undecided(self) -> str:
        """The current migration if it is undecided; otherwise empty."""
        migration, decision = next(reversed(self._decisions.items()), ("", Decided.KEPT))
        return migration if decision is Decided.OPEN else ""

    def is_latest(self, migration: str) -> bool:
        """Return True if ``migration`` is the latest migration."""
        return migration == next(reversed(self._decisions), None)

    def has_started(self, migration: str) -> bool:
        """Return True if ``migration`` has started here before."""
        return migration in self._decisions

    def decide(self, migration: str, requested: Decided) -> Decided:
        """Decide ``migration`` if it is open, and return its decision; ``OPEN`` only reads."""
        if migration not in self._decisions:
            self._start(migration)
        if self._decisions[migration] is Decided.OPEN:
            # A late controller gets the earlier decision.
            self._decisions[migration] = requested
            self.is_given = requested is Decided.GIVEN
        return self._decisions[migration]

    def _start(self, migration: str) -> None:
        for earlier, decision in self._decisions.items():
            # A migration that is followed by another one has failed.
            if decision is Decided.OPEN:
                self._decisions[earlier] = Decided.KEPT
        # A guest that was handed over never comes back to this pod.
        self._decisions[migration] = Decided.GIVEN if self.is_given else Decided.OPEN
        if len(self._decisions) > _MAX_DECISIONS:
            # Dicts are ordered, so the first is the oldest.
            del self._decisions[next(iter(self._decisions))]
