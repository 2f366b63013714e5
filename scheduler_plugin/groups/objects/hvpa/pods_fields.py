"""What is remembered of the pods as fields of a group's status, and back. What cannot be read was never remembered."""

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
        {"since": _written(each.since), "ready": each.ready, "sizes": [write_container(size) for size in each.sizes]}
        for each in memory.past
    ]
    possible = [
        {"container": each.container, "resource": each.resource, "most": each.most, "at": _written(each.at)}
        for each in memory.possible
    ]
    differ = None if memory.differ_since is None else _written(memory.differ_since)
    found = {"past": past, "differSince": differ, "possible": possible}
    said = {name: value for name, value in found.items() if value}
    return {"pods": said} if said else {}


def pods_of(status: JsonObject) -> PodsMemory:
    """What ``pods_json`` wrote."""
    pods = child(status, "pods")
    return PodsMemory(tuple(_past(pods)), _moment(pods.get("differSince")), tuple(_possible(pods)))


def _past(pods: JsonObject) -> Iterator[PastPods]:
    for each in items(pods, "past"):
        since = _moment(each.get("since"))
        try:
            sizes = tuple(read_container(size, "status.pods.past") for size in items(each, "sizes"))
        except ValueError:
            continue
        if since is not None:
            yield PastPods(since, whole(each, "ready"), sizes)


def _possible(pods: JsonObject) -> Iterator[Possible]:
    for each in items(pods, "possible"):
        at = _moment(each.get("at"))
        for resource in RESOURCES:
            if at is not None and text(each, "resource") == resource:
                yield Possible(text(each, "container"), resource, whole(each, "most"), at)


def _written(at: datetime) -> str:
    return micro_timestamp(at.timestamp())


def _moment(found: object) -> datetime | None:
    seconds = parse_timestamp(found)
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
