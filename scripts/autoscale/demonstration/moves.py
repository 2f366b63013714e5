"""Observes the live migrations of a cluster: nodes, durations and outcomes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final

from deploy.kube.client import ApiClient
from deploy.kube.informer import Informer, ObjectChange
from deploy.neonvm.migration.migration_facts import WAITS
from protocol.kubernetes.objects import Json, child, integer, items, text
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
"""Final phases; ``Cancelled`` is ours, for an object that was deleted."""


@dataclass(frozen=True, slots=True)
class ObservedMove:
    """A migration. ``began`` and ``ended`` are the times of its observed start and end; figures are None until known.

    ``waits`` is the message of the condition that it waits for, empty if none; ``name`` is its object's name.
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
    def client_span(self) -> tuple[Instant, Instant] | None:
        """The span in which it may stall clients; None if it did not run or has not ended."""
        if self.began is None or self.ended is None:
            return None
        return Instant(self.began - MARGIN), Instant(self.ended + MARGIN)

    @property
    def title(self) -> str:
        """The move in one line."""
        duration = "" if self.total_ms is None else f" in {self.total_ms} ms, downtime {self.downtime_ms} ms"
        # Neither is known before the target pod has a node.
        nodes = f"{self.source or '?'} ⇢ {self.target or '?'} " if self.source or self.target else ""
        why = self.reason or self.waits
        return f"{self.vm.name}: {nodes}{self.phase}{duration}{why and ': '}{why}"


class MoveWatch:
    """Follows the migrations of a cluster. Calls ``on_phase`` when one appears or changes its phase."""

    def __init__(self, client: ApiClient, clock: Clock, on_phase: Callable[[ObservedMove], None]) -> None:
        self._clock = clock
        self._on_phase = on_phase
        self._informer = Informer(client, MIGRATIONS, clock)
        self._informer.listen(self._changed)
        self._moves: dict[str, ObservedMove] = {}

    async def run(self) -> None:
        """Watches until cancelled."""
        await self._informer.run()

    async def begin(self) -> None:
        """Lists all migrations. Raises ``ApiError``, whereas ``run`` retries."""
        await self._informer.refresh()

    @property
    def moves(self) -> list[ObservedMove]:
        """All observed migrations, oldest first."""
        return list(self._moves.values())

    def by_uid(self, uid: str) -> ObservedMove | None:
        """The migration with this UID, once observed."""
        return self._moves.get(uid)

    def _changed(self, change: ObjectChange) -> None:
        # After a deletion, use the last state.
        migration = change.after or change.before
        if migration is None:
            return
        uid = text(migration, "metadata", "uid")
        before = self._moves.get(uid)
        after = observe_move(before, migration, self._clock.now(), is_gone=change.after is None)
        self._moves[uid] = after
        # Not for progress, which changes every second.
        if before is None or before.phase != after.phase:
            self._on_phase(after)


def observe_move(before: ObservedMove | None, migration: Json, now: Instant, *, is_gone: bool) -> ObservedMove:
    """Updates a migration from its object (pure)."""
    status, info = child(migration, "status"), child(migration, "status", "info")
    vm = ObjectName(text(migration, "metadata", "namespace"), text(migration, "spec", "vmName"))
    previous = before or ObservedMove(vm)
    # Later writes of the object do not change a migration that has ended.
    if not previous.is_under_way:
        return previous
    phase = text(status, "phase") or "Pending"
    # A migration whose object is deleted before its end is cancelled.
    if is_gone and phase not in ENDED:
        phase = CANCELLED
    is_moving = phase not in {"Pending", CANCELLED}
    return replace(
        previous,
        source=text(status, "sourceNode") or previous.source,
        # Before the target's pod runs, only the annotation may name its node.
        target=text(status, "targetNode")
        or previous.target
        or text(migration, "metadata", "annotations", ANNOTATION_TARGET_NODE),
        phase=phase,
        reason=_reason(status) if phase == "Failed" else "",
        progress=_progress(info),
        # 0 means that QEMU has not reported it yet.
        total_ms=integer(info, "totalTimeMs") or None,
        downtime_ms=integer(info, "downtimeMs") if phase == SUCCEEDED else None,
        began=previous.began if previous.began is not None or not is_moving else now,
        ended=now if phase in ENDED else None,
        waits=_reason(status, WAITS) if phase == "Pending" else "",
        name=text(migration, "metadata", "name"),
    )


def _reason(status: Json, reasons: Collection[str] = ()) -> str:
    """The message of the first condition with one of ``reasons``, or with any if ``reasons`` is empty."""
    conditions = [
        condition for condition in items(status, "conditions") if not reasons or text(condition, "reason") in reasons
    ]
    messages = [text(condition, "message") or text(condition, "reason") for condition in conditions]
    return next((message for message in messages if message), "")


def _progress(info: Json) -> str:
    total, remaining = integer(info, "ram", "total"), integer(info, "ram", "remaining")
    return f"{100 - 100 * remaining // total} %" if total and integer(info, "ram", "transferred") else ""
