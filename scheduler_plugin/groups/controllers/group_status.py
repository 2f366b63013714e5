"""A group's status beside its policy's memory, and the events about it.

An event about something that happens once has a deterministic name, so that repeating it creates no second one.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from protocol.kubernetes.conditions import condition, condition_of, stamped
from protocol.kubernetes.objects import Json, JsonObject, child, items, name_of, text, uid_of, whole
from protocol.kubernetes.resources import VIRTUAL_MACHINES, Resource
from protocol.kubernetes.timestamps import timestamp
from scheduler_plugin.cluster.events import EventRecord, EventSubject
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.controllers.desired_state import (
    DesiredState,
    PolicyDecision,
    ScalableTarget,
    StopError,
)
from scheduler_plugin.groups.core.workload import SizedContainer, WithheldChange
from scheduler_plugin.groups.objects.group_status import ABLE
from scheduler_plugin.groups.objects.intents import Intent, write_intent
from scheduler_plugin.groups.objects.targets import read_container, selector_of, write_container

ACTIVE: Final = "ScalingActive"
LIMITED: Final = "ScalingLimited"
WRITABLE: Final = "TargetWritable"
"""False once a write was refused for good; it goes when a scaling has been carried out."""
RESIZABLE: Final = "PodsResizable"
"""False while the API refuses the resize of a running pod."""
AS_ORDERED: Final = "PodsAsOrdered"
"""False while pods differ in number, readiness or size from what the group ordered."""

CONTESTED: Final = "Contested"
"""True while another writer keeps overwriting what the group writes."""

SIZED: Final = "lastSized"
"""When sizes were last changed, in the template or of running pods."""


def mirror(found: ScalableTarget) -> Json:
    """Status of the group for ``/scale``: an HPA that recommends to it reads pods and replicas there."""
    # A VM has no selector for an HPA to read.
    if found.kind is VIRTUAL_MACHINES:
        return {"replicas": found.template.replicas}
    return {"replicas": found.template.replicas, "targetSelector": selector_of(found.target)}


def resized(
    status: JsonObject, desired: DesiredState, template: tuple[SizedContainer, ...]
) -> tuple[SizedContainer, ...]:
    """Sizes that running pods were resized to, as long as the template is as it was then."""
    if not desired.in_place:
        return ()
    try:
        sizes, before = (
            tuple(read_container(container, "status.sizes") for container in items(status, "sizes", name))
            for name in ("inPlace", "template")
        )
    except ValueError:
        return ()
    # A template changed since then makes pods of other sizes, so the old ones no longer count.
    return sizes if before == template else ()


def merged_sizes(old: tuple[SizedContainer, ...], new: tuple[SizedContainer, ...]) -> tuple[SizedContainer, ...]:
    """``old`` with what ``new`` gives, by name."""
    merged = {container.name: container for container in old}
    for container in new:
        merged[container.name] = container.over(merged.get(container.name))
    return tuple(merged[name] for name in sorted(merged))


def written_sizes(sizes: tuple[SizedContainer, ...], template: tuple[SizedContainer, ...]) -> Json:
    """Sizes that running pods were resized to, and from which template, as fields of the status."""
    if not sizes:
        return {}
    pair = (("inPlace", sizes), ("template", template))
    return {"sizes": {name: [write_container(container) for container in containers] for name, containers in pair}}


def shown(kept: WithheldChange) -> Json:
    """A wish that did not go through, for people (S1.11)."""
    return {
        "subject": kept.subject,
        "wanted": str(kept.wanted),
        "kept": None if kept.kept is None else str(kept.kept),
        "rule": kept.rule.value,
        "message": kept.message,
    }


def conditions(
    group: JsonObject, desired: DesiredState, decided: PolicyDecision, fights: Sequence[str] = ()
) -> list[Json]:
    """The conditions of a group that is scaled. ``fights`` says who keeps overwriting what the group writes."""
    withheld = decided.decision.kept
    active = ("False", "NoRecommendation", decided.waits_for) if decided.waits_for else ("True", "Recommended", "")
    limited = (
        ("True", withheld[0].rule.value, f"{withheld[0].subject}: {withheld[0].message}")
        if withheld
        else ("False", "AsWanted", "")
    )
    return [
        condition(group, ABLE, "True", "TargetFound", texts.SCALES.format(target=desired.target)),
        condition(group, ACTIVE, *active),
        condition(group, LIMITED, *limited),
        *([condition(group, AS_ORDERED, "False", "PodsDiffer", decided.pods_differ)] if decided.pods_differ else []),
        *(
            condition(group, kind, "True", reason, message)
            for kind, reason, message in (*desired.remarks, *decided.remarks)
        ),
        *([condition(group, CONTESTED, "True", "Overwritten", "; ".join(fights))] if fights else []),
        # A decision says nothing about writes, so their conditions are carried over.
        *(
            existing
            for existing in items(group, "status", "conditions")
            if text(existing, "type") in ((WRITABLE, RESIZABLE) if desired.in_place else (WRITABLE,))
        ),
    ]


def whole_status(group: JsonObject, status: Json, conditions: list[Json], now: datetime) -> Json:
    """``status`` with those conditions, for the generation of the group that was looked at."""
    generation = whole(group, "metadata", "generation")
    body: Json = {**status, "observedGeneration": generation, "conditions": conditions}
    return stamped(body, timestamp(now.timestamp()))


_LONGEST: Final = 200  # of an object's name, in the name of an event: both have at most 253 characters


def scaled(kind: Resource, group: JsonObject, intent: Intent) -> EventRecord:
    """That a scaling was carried out."""
    note = str(intent)
    name = _event_name(group, "scaled", f"{uid_of(group)}{intent.at}{note}")
    return EventRecord(_about(kind, group), "Scaled", note, is_warning=False, name=name)


def stopped(kind: Resource, group: JsonObject, problem: StopError) -> EventRecord | None:
    """Notice that scaling has stopped, and why; None if ``group`` said so already."""
    able = condition_of(group, ABLE)
    if (text(able, "reason"), text(able, "message")) == (problem.reason, problem.message):
        return None
    return EventRecord(_about(kind, group), problem.reason, problem.message)


def contested(kind: Resource, group: JsonObject, status: JsonObject) -> EventRecord | None:
    """That another writer keeps overwriting what the group writes; None unless that is new in ``status``."""
    before, after = (text(condition_of(about, CONTESTED), "message") for about in (group, {"status": status}))
    return EventRecord(_about(kind, group), CONTESTED, after) if after and not before else None


def without_intent(group: JsonObject, intent: Intent) -> Json:
    """The group's status once ``intent`` is carried out."""
    status = _replaced(group, WRITABLE, [])
    if intent.replicas is not None:
        status["replicas"] = intent.replicas[1]
    if intent.after:
        # A change of sizes answers all kills before it.
        status[SIZED] = intent.at
    return {**status, "lastScaled": write_intent(intent)}


def refused(group: JsonObject, why: str, wall: float) -> Json:
    """The group's status once a write was refused for good: the intent is given up. ``wall`` in seconds since 1970."""
    writable = condition(group, WRITABLE, "False", "Refused", why)
    return stamped(_replaced(group, WRITABLE, [writable]), timestamp(wall))


def was_refused(group: JsonObject) -> bool:
    """Return True if the last scaling of the group was refused for good."""
    return bool(condition_of(group, WRITABLE))


def pods_refused(group: JsonObject, why: str, wall: float) -> Json:
    """The group's status with what was refused of its pods' sizes; ``why`` is empty if nothing was."""
    if not why and not condition_of(group, RESIZABLE):
        return child(group, "status")
    resizable = [condition(group, RESIZABLE, "False", "Refused", why)] if why else []
    return stamped(_replaced(group, RESIZABLE, resizable), timestamp(wall))


def _replaced(group: JsonObject, kind: str, new: list[Json]) -> Json:
    """The group's status without its intent, and with ``new`` instead of its condition ``kind``."""
    status = {key: value for key, value in child(group, "status").items() if key != "intent"}
    others = [existing for existing in items(status, "conditions") if text(existing, "type") != kind]
    return {**status, "conditions": [*others, *new]}


def _about(kind: Resource, group: JsonObject) -> EventSubject:
    return EventSubject(kind, name_of(group), uid_of(group))


def _event_name(group: JsonObject, what: str, note: str) -> str:
    # Deterministic, so the API server refuses the same event a second time (409).
    return f"{name_of(group).name[:_LONGEST]}.{what}.{zlib.crc32(note.encode()):08x}"
