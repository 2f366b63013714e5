"""Watch of the Lease: a standby learns at once that it was given back, not only at its next read (B.3)."""

from __future__ import annotations

import logging
from typing import Final, Never

from protocol.kubernetes.api import ApiCall, ApiError, ApiRefusedError
from protocol.kubernetes.cursor import WatchTimes, watch_query
from protocol.kubernetes.objects import text
from protocol.kubernetes.pages import UnreadableAnswerError, WatchEvent, read_event
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.lease import Leadership
from protocol.units import Seconds
from scheduler_plugin.texts import logs

LOG: Final = logging.getLogger("autoscale.lease")

PAUSE: Final = Seconds(2.0)
"""Between a watch that has ended and the next one. A watch begins with the Lease as it is, so nothing is missed."""


class LeaseWatch:
    """Watches the Lease of ``leadership``. The right to watch that one object is enough."""

    def __init__(self, leadership: Leadership, clock: Clock) -> None:
        self._leadership = leadership
        self._clock = clock

    async def run(self) -> Never:
        """Listens for ever."""
        previous = ""
        while True:
            try:
                await self._listen()
            except (ApiError, UnreadableAnswerError) as error:
                # Without the right to watch this repeats for ever; the regular reads of the Lease are enough then.
                if str(error) != previous:
                    LOG.info(logs.LEASE_NOT_WATCHED, extra={"reason": str(error)})
                previous = str(error)
            await self._clock.sleep(PAUSE)

    async def _listen(self) -> None:
        path, _, name = self._leadership.path.rpartition("/")
        times = WatchTimes.spread(self._clock.jitter())
        # Kubernetes has no watch of a single object, only of a collection with this selector.
        query = {"fieldSelector": f"metadata.name={name}", **watch_query("", times)}
        async with self._leadership.api.stream(ApiCall("GET", path, times.silence, query=query)) as lines:
            async for line in lines:
                if _is_given_back(read_event(line)):
                    # Only a hint: the read that follows decides whether the Lease is free.
                    self._leadership.look()


def _is_given_back(event: WatchEvent) -> bool:
    if event.refusal is not None:
        raise ApiRefusedError(event.refusal)
    return event.type in ("ADDED", "MODIFIED") and not text(event.object, "spec", "holderIdentity")
