"""Position of a list-and-watch: the resourceVersion to resume from, and the need to list again.

Every event moves the cursor. Bookmarks do too, so that the version of a kind that rarely changes does not expire.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.kubernetes.pages import WatchEvent
from protocol.kubernetes.refusals import Refusal, RefusalKind
from protocol.units import Seconds

WATCH_SPAN: Final = Seconds(240.0)
"""How long the server is asked to keep a watch open; jitter adds up to as much again, so that few end together."""

SILENCE_BEYOND: Final = Seconds(10.0)
"""If the server stays silent for this long after a watch should have ended, it or the connection is gone."""


@dataclass(slots=True)
class Cursor:
    """``version`` is None until the first list.

    >>> cursor = Cursor()
    >>> cursor.must_list
    True
    >>> cursor.listed("41")
    >>> cursor.take(WatchEvent("BOOKMARK", {"metadata": {"resourceVersion": "77"}}))
    >>> cursor.version
    '77'
    """

    version: str | None = None

    @property
    def must_list(self) -> bool:
        """True if there is no version to watch from."""
        return self.version is None

    def listed(self, version: str) -> None:
        """A whole list has been applied; it was the state at ``version``."""
        self.version = version

    def take(self, event: WatchEvent) -> None:
        """An event has been applied; one without a version, or an error, leaves the cursor where it is."""
        if event.type != "ERROR":
            self.reach(event.version)

    def reach(self, version: str) -> None:
        """Everything up to this version has been applied; an empty one leaves the cursor where it is.

        >>> cursor = Cursor("41")
        >>> cursor.reach("43")
        >>> cursor.reach("")
        >>> cursor.version
        '43'
        """
        self.version = version or self.version

    def refused(self, refusal: Refusal) -> None:
        """The server refused to list or watch.

        >>> from protocol.kubernetes.refusals import classify
        >>> cursor = Cursor("41")
        >>> cursor.refused(classify(503)), cursor.must_list
        (None, False)
        >>> cursor.refused(classify(410)), cursor.must_list
        (None, True)
        """
        # The version is too old, or the kind was removed: no later watch from it can succeed. After any other refusal
        # it can.
        if refusal.kind in (RefusalKind.GONE, RefusalKind.NOT_FOUND):
            self.version = None


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
