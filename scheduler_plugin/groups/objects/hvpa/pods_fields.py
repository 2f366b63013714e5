"""The memory of pods as fields of a group's status, and back. What cannot be read counts as never remembered."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from protocol.kubernetes.objects import Json, JsonObject, child, items, text, whole
from protocol.kubernetes.timestamps import micro_timestamp, parse_timestamp
from scheduler_plugin.groups.core.running_pods import PastPods, PodsMemory, Possible
from scheduler_plugin.groups.core.workload import RESOURCES
from scheduler_plugin.groups.objects.amounts import read_container, write_container


def pods_json(memory: PodsMemory) -> Json:
    """``pods`` for a status; nothing if nothing is remembered."""
    past = [
        {
            "since": _written(past_pods.since),
            "ready": past_pods.ready,
            "sizes": [write_container(size) for size in past_pods.sizes],
        }
        for past_pods in memory.past
    ]
    possible = [
        {"container": limit.container, "resource": limit.resource, "most": limit.most, "at": _written(limit.at)}
        for limit in memory.possible
    ]
    differ = None if memory.differ_since is None else _written(memory.differ_since)
    parts = {"past": past, "differSince": differ, "possible": possible}
    body = {name: value for name, value in parts.items() if value}
    return {"pods": body} if body else {}


def pods_of(status: JsonObject) -> PodsMemory:
    """Decode the output of ``pods_json``."""
    pods = child(status, "pods")
    return PodsMemory(tuple(_past(pods)), _moment(pods.get("differSince")), tuple(_possible(pods)))


def _past(pods: JsonObject) -> Iterator[PastPods]:
    for entry in items(pods, "past"):
        since = _moment(entry.get("since"))
        try:
            sizes = tuple(read_container(size, "status.pods.past") for size in items(entry, "sizes"))
        except ValueError:
            # A bad entry is skipped; the others still count.
            continue
        if since is not None:
            yield PastPods(since, whole(entry, "ready"), sizes)


def _possible(pods: JsonObject) -> Iterator[Possible]:
    for entry in items(pods, "possible"):
        at = _moment(entry.get("at"))
        for resource in RESOURCES:
            if at is not None and text(entry, "resource") == resource:
                yield Possible(text(entry, "container"), resource, whole(entry, "most"), at)


def _written(at: datetime) -> str:
    return micro_timestamp(at.timestamp())


def _moment(found: object) -> datetime | None:
    seconds = parse_timestamp(found)
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
