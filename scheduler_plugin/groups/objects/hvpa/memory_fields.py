"""The policy's memory as fields of an Hvpa's status, and back. What cannot be read counts as never remembered."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from protocol.kubernetes.objects import Json, JsonObject, child, items, text, whole
from protocol.kubernetes.timestamps import micro_timestamp, parse_timestamp
from scheduler_plugin.groups.core.hvpa.spec import (
    PastPods,
    PastReplicas,
    PastTarget,
    PodsMemory,
    Possible,
    ScalingTimes,
    Shrinking,
)
from scheduler_plugin.groups.core.workload import RESOURCES
from scheduler_plugin.groups.objects.targets import read_container, write_container


def memory_json(memory: ScalingTimes) -> Json:
    """The memory as JSON; missing parts are null."""
    targets = [
        {"container": past.container, "resource": past.resource, "target": past.target, "replicas": past.replicas}
        for past in memory.targets
    ]
    counts = [{"since": _written(past.since), "replicas": past.replicas} for past in memory.counts]
    waiting = [
        {"subject": wish.subject, "since": _written(wish.since), "highest": wish.highest} for wish in memory.shrinking
    ]
    return {
        "lastScaleUpTime": None if memory.last_up is None else _written(memory.last_up),
        "lastScaleDownTime": None if memory.last_down is None else _written(memory.last_down),
        "pastTargets": targets or None,
        "pastReplicas": counts or None,
        **({"shrinking": waiting} if waiting else {}),
        **pods_json(memory.pods),
    }


def memory_of(status: JsonObject) -> ScalingTimes:
    """Decode the output of ``memory_json``."""
    return ScalingTimes(
        _moment(status.get("lastScaleUpTime")),
        _moment(status.get("lastScaleDownTime")),
        tuple(_targets(status)),
        tuple(_counts(status)),
        tuple(_shrinking(status)),
        pods_of(status),
    )


def _targets(status: JsonObject) -> Iterator[PastTarget]:
    for entry in items(status, "pastTargets"):
        for resource in RESOURCES:
            # A resource that this version does not know is skipped.
            if text(entry, "resource") == resource and whole(entry, "replicas") > 0:
                yield PastTarget(text(entry, "container"), resource, whole(entry, "target"), whole(entry, "replicas"))


def _counts(status: JsonObject) -> Iterator[PastReplicas]:
    for entry in items(status, "pastReplicas"):
        since = _moment(entry.get("since"))
        if since is not None and whole(entry, "replicas") > 0:
            yield PastReplicas(since, whole(entry, "replicas"))


def _shrinking(status: JsonObject) -> Iterator[Shrinking]:
    for entry in items(status, "shrinking"):
        since = _moment(entry.get("since"))
        if since is not None and whole(entry, "highest") >= 0:
            yield Shrinking(text(entry, "subject"), since, whole(entry, "highest"))


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
