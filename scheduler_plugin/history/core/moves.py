"""Migrations as a history keeps them, from their objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from protocol.kubernetes.objects import JsonObject, annotations_of, child, items, name_of, shortened, text, whole
from protocol.kubernetes.timestamps import parse_timestamp
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_REASON, ANNOTATION_TARGET_NODE
from scheduler_plugin.history.core.samples import SECOND, Millis, MoveRecord

ENDED: Final = frozenset({"Succeeded", "Failed"})


def read_move(at: Millis, migration: JsonObject, before: MoveRecord | None) -> MoveRecord:
    """A migration as it was seen at ``at``, after it was seen as ``before``; one that has ended keeps its end.

    >>> seen = {"metadata": {"namespace": "d", "name": "m"}, "spec": {"vmName": "db"}, "status": {"phase": "Running"}}
    >>> move = read_move(5, seen, None)
    >>> str(move.vm), move.phase, move.since, read_move(9, seen, move).until
    ('d/db', 'Running', 5, 9)
    """
    name, phase = name_of(migration), _said(migration, "status", "phase") or "Pending"
    # The end does not change any more, and by the same object the caller knows that nothing is new.
    if before is not None and before.phase in ENDED and before.phase == phase:
        return before
    # The creation is the best start, unless the API server's clock is ahead of ours.
    began = min([at, *_times([text(migration, "metadata", "creationTimestamp")])])
    annotations, downtime = annotations_of(migration), whole(migration, "status", "info", "downtimeMs")
    since = began if before is None else before.since
    return MoveRecord(
        name=name,
        vm=ObjectName(name.namespace, _said(migration, "spec", "vmName")),
        source=_said(migration, "status", "sourceNode"),
        # The status names the target only once the target pod exists; the order has it from the start.
        target=_said(migration, "status", "targetNode") or shortened(annotations.get(ANNOTATION_TARGET_NODE, "")),
        phase=phase,
        since=since,
        until=_ended(migration, since, at) if phase in ENDED else at,
        reason=shortened(annotations.get(ANNOTATION_REASON, "")),
        # Zero is a valid downtime, and differs from a missing one.
        downtime=downtime if "downtimeMs" in child(migration, "status", "info") else None,
    )


def _said(migration: JsonObject, *path: str) -> str:
    return shortened(text(migration, *path))


def _ended(migration: JsonObject, since: Millis, seen: Millis) -> Millis:
    """The time when its conditions last changed, if they have one: a recorder may see the end much later."""
    changed = _times(text(condition, "lastTransitionTime") for condition in items(migration, "status", "conditions"))
    # Clocks differ: an end must not come before the start, nor after the moment at which it was seen.
    return min(seen, max([since, *changed])) if changed else seen


def _times(texts: Iterable[str]) -> list[Millis]:
    return [int(moment * SECOND) for moment in map(parse_timestamp, texts) if moment is not None]
