"""Whose the guest is after a move: decided once for each move, in the pod that it leaves (pure).

However many controllers ask, and whatever they last knew, the first decision about a move holds. A guest that was given
away is gone for good: no later move of this pod is decided otherwise.
"""

from __future__ import annotations

from deploy.neonvm.qemu.wire import Decided


class Decisions:
    """The decision about the present move, which its target pod's uid names."""

    def __init__(self) -> None:
        self._move = ""
        self._held = Decided.OPEN

    @property
    def is_given(self) -> bool:
        """Whether the guest was given away."""
        return self._held is Decided.GIVEN

    def decide(self, move: str, wanted: Decided) -> Decided:
        """What holds for ``move`` from now on; ``OPEN`` only asks."""
        if move != self._move and not self.is_given:
            self._move, self._held = move, Decided.OPEN
        if self._held is Decided.OPEN:
            self._held = wanted
        return self._held
