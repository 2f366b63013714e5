"""The policy's memory as fields of an Hvpa's status, and back. What cannot be read counts as never remembered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from datetime import datetime

from protocol.kubernetes.objects import Json, JsonObject, child, items, text, whole
from protocol.kubernetes.timestamps import micro_timestamp, parse_moment
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
    pods = {
        "past": _entries(memory.pods.past),
        "differSince": _plain(memory.pods.differ_since),
        "possible": _entries(memory.pods.possible),
    }
    optional = {
        "shrinking": _entries(memory.shrinking),
        "pods": {name: value for name, value in pods.items() if value},
    }
    return {
        "lastScaleUpTime": _plain(memory.last_up),
        "lastScaleDownTime": _plain(memory.last_down),
        "pastTargets": _entries(memory.targets) or None,
        "pastReplicas": _entries(memory.counts) or None,
        **{name: value for name, value in optional.items() if value},
    }


def _entries(values: Iterable[PastTarget | PastReplicas | Shrinking | PastPods | Possible]) -> list[Json]:
    return [{field.name: _plain(getattr(value, field.name)) for field in fields(value)} for value in values]


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [write_container(container) for container in value]
    return micro_timestamp(value.timestamp()) if isinstance(value, datetime) else value


def memory_of(status: JsonObject) -> ScalingTimes:
    """Decode the output of ``memory_json``."""
    pods = child(status, "pods")
    return ScalingTimes(
        parse_moment(status.get("lastScaleUpTime")),
        parse_moment(status.get("lastScaleDownTime")),
        tuple(_targets(status)),
        tuple(_counts(status)),
        tuple(_shrinking(status)),
        PodsMemory(tuple(_past(pods)), parse_moment(pods.get("differSince")), tuple(_possible(pods))),
    )


def _targets(status: JsonObject) -> Iterator[PastTarget]:
    for entry in items(status, "pastTargets"):
        for resource in RESOURCES:
            # A resource that this version does not know is skipped.
            if text(entry, "resource") == resource and whole(entry, "replicas") > 0:
                yield PastTarget(text(entry, "container"), resource, whole(entry, "target"), whole(entry, "replicas"))


def _counts(status: JsonObject) -> Iterator[PastReplicas]:
    for entry in items(status, "pastReplicas"):
        since = parse_moment(entry.get("since"))
        if since is not None and whole(entry, "replicas") > 0:
            yield PastReplicas(since, whole(entry, "replicas"))


def _shrinking(status: JsonObject) -> Iterator[Shrinking]:
    for entry in items(status, "shrinking"):
        since = parse_moment(entry.get("since"))
        if since is not None and whole(entry, "highest") >= 0:
            yield Shrinking(text(entry, "subject"), since, whole(entry, "highest"))


def _past(pods: JsonObject) -> Iterator[PastPods]:
    for entry in items(pods, "past"):
        since = parse_moment(entry.get("since"))
        try:
            sizes = tuple(read_container(size, "status.pods.past") for size in items(entry, "sizes"))
        except ValueError:
            # A bad entry is skipped; the others still count.
            continue
        if since is not None:
            yield PastPods(since, whole(entry, "ready"), sizes)


def _possible(pods: JsonObject) -> Iterator[Possible]:
    for entry in items(pods, "possible"):
        at = parse_moment(entry.get("at"))
        for resource in RESOURCES:
            if at is not None and text(entry, "resource") == resource:
                yield Possible(text(entry, "container"), resource, whole(entry, "most"), at)
