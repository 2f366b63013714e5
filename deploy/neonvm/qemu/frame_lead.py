"""Leads the frames of a guest that moves: to the source, or from its stop on to the target (S4.12)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from deploy.neonvm.qemu.frame_handover import FrameHandover

_SETTLED_WITHIN: Final = 0.5
"""Seconds; frames are not worth a longer standstill."""


class FrameLead:
    """``to_source`` and ``to_target`` redirect the network; ``frames`` takes care of what went to the source unread."""

    def __init__(self, to_source: Callable[[], None], to_target: Callable[[], None], frames: FrameHandover) -> None:
        self._to_source = to_source
        self._to_target = to_target
        self._frames = frames
        self._is_away = False
        self._diverting: asyncio.Task[None] | None = None

    def away(self) -> None:
        """The guest has stopped: in this instant, and once."""
        if not self._is_away:
            self._is_away = True
            # Synchronously, before anything is awaited: each lost frame costs its sender a fifth of a second.
            self._to_target()
            self._diverting = asyncio.ensure_future(self._frames.divert())

    def back(self) -> None:
        """The guest goes on where it was, or will."""
        if self._is_away:
            self._is_away = False
            self._to_source()

    async def settled(self) -> None:
        """Returns once all frames that the source had are on their way."""
        if self._diverting is not None:
            # `wait` does not cancel the task: frames may still follow after the time-out.
            await asyncio.wait((self._diverting,), timeout=_SETTLED_WITHIN)
