"""Decides which end has the guest after a move: once for each move, in the pod that it leaves (pure).

However many controllers ask, and whatever they last knew, the first decision about a move holds.
"""

from __future__ import annotations

from typing import Final

from deploy.neonvm.qemu.machine import Decided

_MOST: Final = 256
"""This many moves are remembered: far more than a controller that is late may have missed."""


class Decisions:
    """The decisions about all moves of one pod's guest. Uids of target pods name the moves. ``is_given``: the guest was
    given away.
    """

    def __init__(self) -> None:
        self._held: dict[str, Decided] = {}
        self.is_given = False

    @property
    def open_move(self) -> str:
        """The present move, if nothing was decided about it; empty if there is none."""
        move, decision = next(reversed(self._held.items()), ("", Decided.KEPT))
        return move if decision is Decided.OPEN else ""

    def is_present(self, move: str) -> bool:
        """Return True if no other move has followed that one."""
        return move == next(reversed(self._held), None)

    def decide(self, move: str, wanted: Decided) -> Decided:
        """Decides ``move`` if it is open; ``OPEN`` only asks. The decision that holds from now on."""
        if move not in self._held:
            self._follow_with(move)
        if self._held[move] is Decided.OPEN:
            # Only an open move can be decided: a late controller gets the decision that was made.
            self._held[move] = wanted
            self.is_given = wanted is Decided.GIVEN
        return self._held[move]

    def _follow_with(self, move: str) -> None:
        for earlier, decision in self._held.items():
            # A move that another one follows has ended without the guest; a late order about it gets this answer.
            if decision is Decided.OPEN:
                self._held[earlier] = Decided.KEPT
        # A guest that was given away is gone for good: no later move of this pod is decided otherwise.
        self._held[move] = Decided.GIVEN if self.is_given else Decided.OPEN
        if len(self._held) > _MOST:
            # Dicts keep their order, so the first is the oldest.
            del self._held[next(iter(self._held))]
