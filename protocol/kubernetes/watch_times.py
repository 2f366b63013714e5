"""Duration of a watch, and its query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.units import Seconds

WATCH_SPAN: Final = Seconds(240.0)
"""How long the server is asked to keep a watch open; jitter adds up to as much again, so that few end together."""

SILENCE_BEYOND: Final = Seconds(10.0)
"""If the server stays silent for this long after a watch should have ended, it or the connection is gone."""


@dataclass(frozen=True, slots=True)
class WatchTimes:
    """Duration of one watch, in seconds: the time asked of the server, and the silence the client tolerates."""

    asked: int
    silence: Seconds

    @classmethod
    def spread(cls, jitter: float, span: Seconds = WATCH_SPAN) -> WatchTimes:
        """``span`` and, by ``jitter`` in 0..1, up to as much again.

        >>> WatchTimes.spread(0.5)
        WatchTimes(asked=360, silence=370.0)
        """
        duration = int(span * (1.0 + jitter))
        # Longer than the watch, so that reaching this limit always means a fault.
        return cls(duration, Seconds(duration + SILENCE_BEYOND))


def watch_query(version: str, times: WatchTimes) -> dict[str, str]:
    """The query of a watch from ``version`` on; if that is empty, the current state comes first, as ADDED events.

    >>> watch_query("41", WatchTimes(240, Seconds(250.0)))["timeoutSeconds"]
    '240'
    """
    query = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(times.asked)}
    return query | {"resourceVersion": version} if version else query
