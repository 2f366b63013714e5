"""Events on objects, which ``kubectl describe`` shows.

``record`` drops an event that cannot be written: the facts are in the object's status.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from deploy.kube.client import ApiClient
from protocol.kubernetes.api import ApiRefusedError, ApiUnknownError
from protocol.kubernetes.objects import Json, name_of, text, uid_of
from protocol.kubernetes.resources import EVENTS
from protocol.kubernetes.timestamps import timestamp
from protocol.runtime.clock import Clock

NORMAL: Final = "Normal"
WARNING: Final = "Warning"
REMEMBERED: Final = 512
"""How many objects' last events are cached; a repetition for any other object is written again instead of counted."""

_Last = tuple[tuple[str, str], str, int]
"""Reason and message of an object's last event, the event's name, and its count."""


class EventRecorder:
    """Writes events in the name of one component. An event equal to an object's last one only raises its count."""

    def __init__(self, client: ApiClient, component: str, clock: Clock) -> None:
        self._client = client
        self._component = component
        self._clock = clock
        self._last: dict[str, _Last] = {}  # least recently used first

    async def record(self, about: Json, reason: str, message: str, kind: str = NORMAL) -> None:
        """Writes that ``reason`` (one CamelCase word) happened to the object ``about``."""
        with suppress(ApiUnknownError):
            await self.record_or_raise(about, reason, message, kind)

    async def record_or_raise(self, about: Json, reason: str, message: str, kind: str = NORMAL) -> None:
        """The same. Raises ``ApiUnknownError`` if it may not have been written; what is refused is dropped."""
        uid = uid_of(about)
        # Taken out until it is written: a refused event may have expired on the server, and after an unknown outcome
        # its count is unknown. Either way, the next repetition writes a new event.
        previous, written, count = self._last.pop(uid, (("", ""), "", 0))
        with suppress(ApiRefusedError):
            # Like client-go's recorder: a repetition raises the count of the event instead of writing another one.
            if previous == (reason, message):
                count += 1
                await self._count(about, written, count)
            else:
                written, count = await self._write(about, reason, message, kind), 1
            self._last[uid] = ((reason, message), written, count)
            if len(self._last) > REMEMBERED:
                del self._last[next(iter(self._last))]

    async def _count(self, about: Json, written: str, count: int) -> None:
        name = type(name_of(about))(_namespace(about), written)
        await self._client.merge_patch(EVENTS, name, {"count": count, "lastTimestamp": timestamp(self._clock.wall())})

    async def _write(self, about: Json, reason: str, message: str, kind: str) -> str:
        now = timestamp(self._clock.wall())
        regarding = name_of(about)
        event: Json = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{regarding.name}.", "namespace": _namespace(about)},
            "involvedObject": {
                "apiVersion": text(about, "apiVersion"),
                "kind": text(about, "kind"),
                "namespace": regarding.namespace,
                "name": regarding.name,
                "uid": uid_of(about),
            },
            "reason": reason,
            "message": message,
            "type": kind,
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": self._component},
        }
        return text(await self._client.create(EVENTS, _namespace(about), event), "metadata", "name")


def _namespace(about: Json) -> str:
    # Events about cluster-wide objects, such as nodes, go to the namespace "default".
    return name_of(about).namespace or "default"
