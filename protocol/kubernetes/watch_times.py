"""The duration of a watch, and its query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.units import Seconds

WATCH_SPAN: Final = Seconds(240.0)
"""Requested duration of a watch; jitter up to doubles it, so that watches do not all end together."""

SILENCE_BEYOND: Final = Seconds(10.0)
"""If the server is silent for this long after a watch should have ended, it or the connection is dead."""


@dataclass(frozen=True, slots=True)
class WatchTimes:
    """Durations of one watch in seconds: requested from the server, and the maximum silence for the client."""

    requested: int
    silence: Seconds

    @classmethod
    def spread(cls, jitter: float, span: Seconds = WATCH_SPAN) -> WatchTimes:
        """``span``, up to doubled by ``jitter`` in 0..1.

        >>> WatchTimes.spread(0.5)
        WatchTimes(requested=360, silence=370.0)
        """
        duration = int(span * (1.0 + jitter))
        # Longer than the watch, so that reaching this limit always indicates a fault.
        return cls(duration, Seconds(duration + SILENCE_BEYOND))


def watch_query(version: str, times: WatchTimes) -> dict[str, str]:
    """The query of a watch from ``version``; if that is empty, the watch starts with the current state as ADDED events.

    >>> watch_query("41", WatchTimes(240, Seconds(250.0)))["timeoutSeconds"]
    '240'
    """
    query = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(times.requested)}
    return query | {"resourceVersion": version} if version else query
