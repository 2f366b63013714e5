"""A Tortoise's status: its memory, with v1beta3's names if there are any, and recommendations for users.

- ``read_memory`` restores what ``write_status`` wrote; times are rounded to seconds.
- Reading never fails: unreadable parts are skipped. The number of slots and containers limits the size of the status.
- ``conditions`` are the same for every kind of group, and not written here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Final, TypeVar
from zoneinfo import ZoneInfo

import msgspec

from protocol.kubernetes.objects import Json, JsonObject, child, items, text
from protocol.kubernetes.timestamps import parse_datetime, timestamp
from protocol.units import Bytes, MilliCpu, QuantityError
from scheduler_plugin.groups.core.tortoise.autoscaler import Autoscaler, ContainerTarget, Place, Scaling
from scheduler_plugin.groups.core.tortoise.configuration import Configuration
from scheduler_plugin.groups.core.tortoise.decide import TortoiseDecision
from scheduler_plugin.groups.core.tortoise.floor import Peaks
from scheduler_plugin.groups.core.tortoise.slots import WEEKDAYS, Slot, SlotLayout, SlotMemory, SlotValue
from scheduler_plugin.groups.core.tortoise.tortoise_memory import (
    Phase,
    ReplicaMemory,
    ResourcePhase,
    ResourceState,
    TortoiseMemory,
    TortoiseMode,
)
from scheduler_plugin.groups.core.workload import NOTHING, RESOURCES, ResourceList
from scheduler_plugin.groups.objects.targets import write_amounts

_TIMES: Final = {
    "targetUtilizationsUpdated": "targets_at",
    "tooManyReplicasSince": "too_many_since",
    "requestsLowered": "shrunk_at",
    "steppedBack": "stepped_at",
    "metricsMissingSince": "metrics_missing_since",
}
"""Fields of the memory by name in ``status.times``."""


def read_memory(status: JsonObject, configuration: Configuration) -> TortoiseMemory:
    """The memory in ``status``; a new Tortoise's if it is missing."""
    replicas, layout = child(status, "recommendations", "horizontal"), configuration.layout
    times = {field: parse_datetime(child(status, "times").get(name)) for name, field in _TIMES.items()}
    return TortoiseMemory(
        replicas=ReplicaMemory(
            read_slots(items(replicas, "minReplicas"), layout), read_slots(items(replicas, "maxReplicas"), layout)
        ),
        phase=_one_of(Phase, text(status, "tortoisePhase")),
        policies=dict(_policies(status)),
        resources=dict(_resources(status)),
        recommended=dict(_recommended(status)),
        **times,
    )


def write_status(memory: TortoiseMemory, decision: TortoiseDecision) -> Json:
    """The status with memory and recommendations."""
    horizontal: Json = {
        "minReplicas": write_slots(memory.replicas.min),
        "maxReplicas": write_slots(memory.replicas.max),
        "targetUtilizations": _targets(decision.proposed),
    }
    vertical: Json = {
        "containerResourceRecommendation": [
            {"containerName": container.name, "RecommendedResource": write_amounts(container.requests)}
            for container in decision.sizes
        ]
    }
    return {
        **({} if memory.phase is None else {"tortoisePhase": str(memory.phase)}),
        "autoscalingPolicy": _by_container("policy", {place: str(policy) for place, policy in memory.policies.items()}),
        "containerResourcePhases": _by_container(
            "resourcePhases",
            {
                place: {"phase": str(phase.state), "lastTransitionTime": _written(phase.since)}
                for place, phase in memory.resources.items()
            },
        ),
        "containerRecommendationFromVPA": [
            {"containerName": name, "maxRecommendation": {kind: {"quantity": str(amount)} for kind, amount in sizes}}
            for name, sizes in memory.recommended.items()
        ],
        "recommendations": {"horizontal": horizontal, "vertical": vertical},
        "times": {name: _written(at) for name, field in _TIMES.items() if (at := getattr(memory, field)) is not None},
    }


def read_peaks(status: JsonObject, configuration: Configuration) -> Peaks:
    """The peaks of a single VM in ``status`` (S3.7); empty if missing."""
    vertical = child(status, "recommendations", "vertical")
    cpu, memory = (read_slots(items(vertical, name), configuration.layout) for name in ("cpuPeaks", "memoryPeaks"))
    return Peaks(cpu, memory)


def write_peaks(peaks: Peaks, mode: TortoiseMode) -> Json:
    """Status of a Tortoise with a VM as target; peaks are in thousandths of a vCPU and bytes."""
    vertical = {"cpuPeaks": write_slots(peaks.cpu), "memoryPeaks": write_slots(peaks.memory)}
    phase = Phase.EMERGENCY if mode is TortoiseMode.EMERGENCY else Phase.WORKING
    return {"tortoisePhase": str(phase), "recommendations": {"vertical": vertical}}


def _written(at: datetime) -> str:
    return timestamp(at.timestamp())


def _by_container(name: str, values: Mapping[Place, object]) -> list[Json]:
    by_name: dict[str, Json] = {}
    for (container, resource), value in values.items():
        by_name.setdefault(container, {})[resource] = value
    return [{"containerName": container, name: by_resource} for container, by_resource in by_name.items()]


def _targets(proposed: Autoscaler | None) -> list[Json]:
    metrics = () if proposed is None else proposed.metrics
    targets: dict[Place, object] = {
        (metric.container, metric.resource): metric.utilisation
        for metric in metrics
        if isinstance(metric, ContainerTarget) and metric.utilisation is not None
    }
    return _by_container("targetUtilization", targets)


E = TypeVar("E", bound=StrEnum)


def _one_of(kinds: type[E], value: object) -> E | None:
    return next((kind for kind in kinds if kind == value), None)


def _entries(status: JsonObject, name: str, inner: str) -> Iterator[tuple[Place, object]]:
    for entry in items(status, name):
        values = child(entry, inner)
        for resource in RESOURCES:
            if resource in values and text(entry, "containerName"):
                yield (text(entry, "containerName"), resource), values[resource]


def _policies(status: JsonObject) -> Iterator[tuple[Place, Scaling]]:
    for place, value in _entries(status, "autoscalingPolicy", "policy"):
        if (policy := _one_of(Scaling, value)) is not None:
            yield place, policy


def _resources(status: JsonObject) -> Iterator[tuple[Place, ResourcePhase]]:
    for place, value in _entries(status, "containerResourcePhases", "resourcePhases"):
        entry = value if isinstance(value, dict) else {}
        state, since = _one_of(ResourceState, entry.get("phase")), parse_datetime(entry.get("lastTransitionTime"))
        if state is not None and since is not None:
            yield place, ResourcePhase(state, since)


def _recommended(status: JsonObject) -> Iterator[tuple[str, ResourceList]]:
    maxima: dict[str, ResourceList] = {}
    for (name, resource), value in _entries(status, "containerRecommendationFromVPA", "maxRecommendation"):
        quantity = text(value, "quantity") if isinstance(value, dict) else ""
        try:
            amount = (MilliCpu if resource == "cpu" else Bytes).parse(quantity)
        except QuantityError:
            continue
        maxima[name] = maxima.get(name, NOTHING).with_value(resource, amount.value)
    yield from maxima.items()


MOST_SLOTS: Final = 168
"""Hours of a week."""

_MOST: Final = 2**53
"""Larger integers are not exact in all JSON readers."""


class _SlotEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    from_: int = msgspec.field(name="from")
    to: int
    timezone: str
    value: Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
    updatedAt: Annotated[datetime, msgspec.Meta(tz=True)]  # noqa: N815 - the name in the API
    weekday: str | None = None

    @property
    def slot(self) -> Slot:
        return Slot(self.from_, self.to, self.weekday)

    @property
    def at(self) -> datetime:
        return self.updatedAt.astimezone(UTC)


def write_slots(memory: SlotMemory) -> list[Json]:
    """Encode the slots with data, in order."""
    zone = memory.layout.zone.key
    entries = [
        _SlotEntry(slot.start, slot.end, zone, remembered.value, remembered.at.replace(microsecond=0), slot.weekday)
        for slot, remembered in memory
    ]
    written: list[Json] = msgspec.to_builtins(entries)
    return written


def read_slots(entries: Iterable[JsonObject], otherwise: SlotLayout) -> SlotMemory:
    """Decode the result of ``write_slots``. Without readable entries it is empty, with the layout ``otherwise``."""
    # At most one week of hours, even if the status has more.
    parsed = _read(list(entries)[:MOST_SLOTS])
    # The first readable entry defines the layout, so that the memory survives a change of the configuration.
    layout = next((candidate for entry in parsed if (candidate := _layout(entry)) is not None), otherwise)
    slots = frozenset(layout.slots())
    named = [(entry.slot, entry) for entry in parsed if entry.timezone == layout.zone.key]
    return SlotMemory(layout, {slot: SlotValue(entry.value, entry.at) for slot, entry in named if slot in slots})


def _read(slots: list[JsonObject]) -> list[_SlotEntry]:
    entries = []
    for entry in slots:
        # A dropped slot is learned again when it recurs.
        with suppress(ValueError):
            entries.append(msgspec.convert(entry, _SlotEntry))
    return entries


def _layout(entry: _SlotEntry) -> SlotLayout | None:
    if entry.weekday is not None and entry.weekday not in WEEKDAYS:
        return None
    try:
        return SlotLayout(entry.to - entry.from_, "weekly" if entry.weekday else "daily", ZoneInfo(entry.timezone))
    except (ValueError, KeyError, OSError):
        return None
