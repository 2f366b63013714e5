"""Records Events on objects, as shown by ``kubectl describe``.

``record`` drops an Event that cannot be written; the object's status has the same information.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from deploy.kube.client import ApiClient
from protocol.kubernetes.api import ApiRefusedError, ApiUnknownError
from protocol.kubernetes.objects import Json, name_of, text, uid_of
from protocol.kubernetes.resources import EVENTS, Resource
from protocol.kubernetes.timestamps import timestamp
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.events import CLUSTER_WIDE, LONGEST_NOTE, EventRecord, EventSubject, event_body
from protocol.units import Instant, Seconds

NORMAL: Final = "Normal"
WARNING: Final = "Warning"
CACHED_OBJECTS: Final = 4096
"""Number of objects whose last Event is cached. On all others, a repetition is a new Event instead of a count."""

COUNT_INTERVAL: Final = Seconds(60.0)
"""Minimum time between two writes of an Event's count: a controller may retry a failure every few seconds."""


@dataclass(frozen=True, slots=True)
class _Last:
    """An object's last Event: reason and message, its name, its count, and the time of the last write."""

    note: tuple[str, str]
    written: str
    count: int
    at: Instant


class EventRecorder:
    """Records Events of one component. An Event equal to the object's last one only increments its count, which is
    written at most once a minute.
    """

    def __init__(self, client: ApiClient, component: str, clock: Clock) -> None:
        self._client = client
        self._component = component
        self._clock = clock
        self._last: dict[str, _Last] = {}  # least recently used first

    async def record(self, about: Json, reason: str, message: str, kind: str = NORMAL) -> None:
        """Record an Event on the object ``about``; ``reason`` is one CamelCase word."""
        with suppress(ApiUnknownError):
            await self.record_or_raise(about, reason, message, kind)

    async def record_or_raise(self, about: Json, reason: str, message: str, kind: str = NORMAL) -> None:
        """Like ``record``, but raises ``ApiUnknownError`` if the Event may not have been written. A refused one is
        dropped.
        """
        uid, now = uid_of(about), self._clock.now()
        # Truncated like the Event itself: an error message may be long.
        note = (reason, message[:LONGEST_NOTE])
        # Cached again only after the write: a refused Event may have expired, and after an unknown outcome its count is
        # unknown. In both cases the next repetition writes a new Event.
        last = self._last.pop(uid, None)
        with suppress(ApiRefusedError):
            # Like client-go's recorder: a repetition increments the count.
            if last is None or last.note != note:
                last = _Last(note, await self._write(about, reason, message, kind), 1, now)
            else:
                last = replace(last, count=last.count + 1)
                if now - last.at >= COUNT_INTERVAL:
                    await self._count(about, last.written, last.count)
                    last = replace(last, at=now)
            self._last[uid] = last
            if len(self._last) > CACHED_OBJECTS:
                del self._last[next(iter(self._last))]

    async def _count(self, about: Json, written: str, count: int) -> None:
        name = ObjectName(name_of(about).namespace or CLUSTER_WIDE, written)
        await self._client.merge_patch(EVENTS, name, {"count": count, "lastTimestamp": timestamp(self._clock.wall())})

    async def _write(self, about: Json, reason: str, message: str, kind: str) -> str:
        event = EventRecord(_subject(about), reason, message, is_warning=kind == WARNING)
        body = event_body(event, timestamp(self._clock.wall()), self._component)
        return text(await self._client.create(EVENTS, event.namespace, body), "metadata", "name")


def _subject(about: Json) -> EventSubject:
    group, _, version = text(about, "apiVersion").rpartition("/")
    # An Event has the kind of its object, but not the plural.
    return EventSubject(Resource(group, version, "", text(about, "kind")), name_of(about), uid_of(about))
