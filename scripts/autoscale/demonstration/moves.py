"""The live migrations of a cluster as their objects show them: from where to where, how long, with what outcome."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final

from deploy.kube.client import ApiClient
from deploy.kube.informer import Informer, ObjectChange
from deploy.neonvm.migration.migration_facts import WAITS
from protocol.kubernetes.objects import Json, child, items, text, whole
from protocol.kubernetes.resources import MIGRATIONS
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_TARGET_NODE
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds

SUCCEEDED: Final = "Succeeded"
CANCELLED: Final = "Cancelled"
MARGIN: Final = Seconds(1.0)
"""A stall within this time before or after a migration is attributed to it."""
ENDED: Final = frozenset({SUCCEEDED, "Failed", CANCELLED})
"""Phases after which nothing comes; the last is ours, for one whose object is gone."""


@dataclass(frozen=True, slots=True)
class ObservedMove:
    """One migration. ``began`` and ``ended`` are when it was seen to run and to end; figures are None until known.

    ``waits`` is what it waits for, as its condition says; empty if it waits for nothing in particular. ``name`` is that
    of its object.
    """

    vm: ObjectName
    source: str = ""
    target: str = ""
    phase: str = "Pending"
    reason: str = ""
    progress: str = ""
    total_ms: int | None = None
    downtime_ms: int | None = None
    began: Instant | None = None
    ended: Instant | None = None
    waits: str = ""
    name: str = ""

    @property
    def is_under_way(self) -> bool:
        """True if it has not ended."""
        return self.ended is None

    @property
    def felt(self) -> tuple[Instant, Instant] | None:
        """The span in which clients may notice it; None if it did not run or has not ended."""
        if self.began is None or self.ended is None:
            return None
        return Instant(self.began - MARGIN), Instant(self.ended + MARGIN)

    @property
    def title(self) -> str:
        """One line for people."""
        took = "" if self.total_ms is None else f" in {self.total_ms} ms, {self.downtime_ms} ms of them stopped"
        # Neither is known before the target pod has a node.
        way = f"{self.source or '?'} ⇢ {self.target or '?'} " if self.source or self.target else ""
        why = self.reason or self.waits
        return f"{self.vm.name}: {way}{self.phase}{took}{why and ': '}{why}"


class MoveWatch:
    """Follows the migrations of a cluster. ``on_turn`` hears of each when it appears, runs, and ends."""

    def __init__(self, client: ApiClient, clock: Clock, on_turn: Callable[[ObservedMove], None]) -> None:
        self._clock = clock
        self._on_turn = on_turn
        self._informer = Informer(client, MIGRATIONS, clock)
        self._informer.listen(self._changed)
        self._moves: dict[str, ObservedMove] = {}

    async def run(self) -> None:
        """Watches until cancelled."""
        await self._informer.run()

    async def begin(self) -> None:
        """Reads all migrations. Raises ``ApiError``; ``run`` retries instead."""
        await self._informer.refresh()

    @property
    def moves(self) -> list[ObservedMove]:
        """Every migration that was seen, the oldest first."""
        return list(self._moves.values())

    def by_uid(self, uid: str) -> ObservedMove | None:
        """The migration whose object has this UID, once it was seen."""
        return self._moves.get(uid)

    def _changed(self, change: ObjectChange) -> None:
        # A deletion has no new object; its last state is the old one.
        migration = change.after or change.before
        if migration is None:
            return
        uid = text(migration, "metadata", "uid")
        before = self._moves.get(uid)
        after = seen(before, migration, self._clock.now(), is_gone=change.after is None)
        self._moves[uid] = after
        # Progress changes every second; only phases are worth a line.
        if before is None or before.phase != after.phase:
            self._on_turn(after)


def seen(before: ObservedMove | None, found: Json, now: Instant, *, is_gone: bool) -> ObservedMove:
    """State of a migration after its object was seen as ``found`` (pure)."""
    status, info = child(found, "status"), child(found, "status", "info")
    previous = before or ObservedMove(ObjectName(text(found, "metadata", "namespace"), text(found, "spec", "vmName")))
    # What has ended stays as it was: later writes of the object change no figures.
    if not previous.is_under_way:
        return previous
    phase = text(status, "phase") or "Pending"
    # An object that is deleted before its end was cancelled.
    if is_gone and phase not in ENDED:
        phase = CANCELLED
    is_moving = phase not in {"Pending", CANCELLED}
    return replace(
        previous,
        source=text(status, "sourceNode") or previous.source,
        # Before the target's pod runs, only the annotation may name its node.
        target=text(status, "targetNode")
        or previous.target
        or text(found, "metadata", "annotations", ANNOTATION_TARGET_NODE),
        phase=phase,
        reason=_reason(status) if phase == "Failed" else "",
        progress=_progress(info),
        # 0 means that QEMU has not reported it yet.
        total_ms=whole(info, "totalTimeMs") or None,
        downtime_ms=whole(info, "downtimeMs") if phase == SUCCEEDED else None,
        began=previous.began if previous.began is not None or not is_moving else now,
        ended=now if phase in ENDED else None,
        waits=_reason(status, WAITS) if phase == "Pending" else "",
        name=text(found, "metadata", "name"),
    )


def _reason(status: Json, reasons: Collection[str] = ()) -> str:
    """Messages of the conditions; only those with one of ``reasons``, if any are given."""
    conditions = [
        condition for condition in items(status, "conditions") if not reasons or text(condition, "reason") in reasons
    ]
    messages = [text(condition, "message") or text(condition, "reason") for condition in conditions]
    return next((message for message in messages if message), "")


def _progress(info: Json) -> str:
    total, remaining = whole(info, "ram", "total"), whole(info, "ram", "remaining")
    return f"{100 - 100 * remaining // total} %" if total and whole(info, "ram", "transferred") else ""
