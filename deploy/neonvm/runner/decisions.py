"""Decides which end has the guest after a migration; once per migration, in the source pod (pure).

The first decision is final, however many controllers ask, and however stale they are.
"""

from __future__ import annotations

from typing import Final

from deploy.neonvm.qemu.machine import Decided

_MOST: Final = 256
"""Maximum number of stored decisions: far more migrations than a stale controller can have missed."""


class Decisions:
    """Decisions about all migrations of one pod's guest, by the target pod's uid. ``is_given``: the guest was handed
    over.
    """

    def __init__(self) -> None:
        self._held: dict[str, Decided] = {}
        self.is_given = False

    @property
    def open_move(self) -> str:
        """The current migration if it is undecided; otherwise empty."""
        move, decision = next(reversed(self._held.items()), ("", Decided.KEPT))
        return move if decision is Decided.OPEN else ""

    def is_present(self, move: str) -> bool:
        """Return True if ``move`` is the latest migration."""
        return move == next(reversed(self._held), None)

    def knows(self, move: str) -> bool:
        """Return True if ``move`` has started here before."""
        return move in self._held

    def decide(self, move: str, wanted: Decided) -> Decided:
        """Decide ``move`` if it is open, and return its decision; ``OPEN`` only reads."""
        if move not in self._held:
            self._follow_with(move)
        if self._held[move] is Decided.OPEN:
            # A late controller gets the earlier decision.
            self._held[move] = wanted
            self.is_given = wanted is Decided.GIVEN
        return self._held[move]

    def _follow_with(self, move: str) -> None:
        for earlier, decision in self._held.items():
            # A migration that is followed by another one has failed.
            if decision is Decided.OPEN:
                self._held[earlier] = Decided.KEPT
        # A guest that was handed over never comes back to this pod.
        self._held[move] = Decided.GIVEN if self.is_given else Decided.OPEN
        if len(self._held) > _MOST:
            # Dicts are ordered, so the first is the oldest.
            del self._held[next(iter(self._held))]
