"""Events about a group, and its status once a scaling is done or refused.

An event about something that happens once has a deterministic name, so that repeating it creates no second one.
"""

from __future__ import annotations

import zlib
from typing import Final

from protocol.kubernetes.conditions import condition, stamped
from protocol.kubernetes.objects import Json, JsonObject, child, items, name_of, text, uid_of
from protocol.kubernetes.resources import Resource
from protocol.kubernetes.timestamps import timestamp
from scheduler_plugin.cluster.events import EventRecord, EventSubject
from scheduler_plugin.groups.objects.group_status import ABLE
from scheduler_plugin.groups.objects.intents import Intent, write_intent
from scheduler_plugin.groups.policies.group_status import CONTESTED, RESIZABLE, SIZED, WRITABLE
from scheduler_plugin.groups.policies.judgement import ReconcileResult

_LONGEST: Final = 200  # of an object's name, in the name of an event: both have at most 253 characters


def scaled(kind: Resource, group: JsonObject, intent: Intent) -> EventRecord:
    """That a scaling was carried out."""
    note = str(intent)
    name = _event_name(group, "scaled", f"{uid_of(group)}{intent.at}{note}")
    return EventRecord(_about(kind, group), "Scaled", note, is_warning=False, name=name)


def stopped(kind: Resource, group: JsonObject, found: ReconcileResult) -> EventRecord | None:
    """Notice that scaling has stopped, and why; None if ``group`` said so already."""
    problem = found.problem
    if problem is None or any(
        (text(existing, "type"), text(existing, "reason"), text(existing, "message"))
        == (ABLE, problem.reason, problem.message)
        for existing in items(group, "status", "conditions")
    ):
        return None
    return EventRecord(_about(kind, group), problem.reason, problem.message)


def contested(kind: Resource, group: JsonObject, status: JsonObject) -> EventRecord | None:
    """That another writer keeps overwriting what the group writes; None unless that is new in ``status``."""
    before, after = (
        next(
            (
                text(existing, "message")
                for existing in items(about, "conditions")
                if text(existing, "type") == CONTESTED
            ),
            "",
        )
        for about in (child(group, "status"), status)
    )
    return EventRecord(_about(kind, group), CONTESTED, after) if after and not before else None


def stopped_because(group: JsonObject) -> str:
    """The reason for which the group scales nothing, in one word; empty if it scales."""
    for existing in items(group, "status", "conditions"):
        if text(existing, "type") == ABLE and text(existing, "status") == "False":
            return text(existing, "reason")
    return ""


def without_intent(group: JsonObject, intent: Intent) -> Json:
    """The group's status once ``intent`` is carried out."""
    status = {key: value for key, value in child(group, "status").items() if key != "intent"}
    conditions = [existing for existing in items(status, "conditions") if text(existing, "type") != WRITABLE]
    if intent.replicas is not None:
        status["replicas"] = intent.replicas[1]
    if intent.after:
        # A change of sizes answers all kills before it.
        status[SIZED] = intent.at
    return {**status, "conditions": conditions, "lastScaled": write_intent(intent)}


def refused(group: JsonObject, why: str, wall: float) -> Json:
    """The group's status once a write was refused for good: the intent is given up. ``wall`` in seconds since 1970."""
    status = {key: value for key, value in child(group, "status").items() if key != "intent"}
    others = [existing for existing in items(status, "conditions") if text(existing, "type") != WRITABLE]
    writable = condition(group, WRITABLE, "False", "Refused", why)
    return stamped({**status, "conditions": [*others, writable]}, timestamp(wall))


def was_refused(group: JsonObject) -> bool:
    """Return True if the last scaling of the group was refused for good."""
    return any(text(existing, "type") == WRITABLE for existing in items(group, "status", "conditions"))


def pods_refused(group: JsonObject, why: str, wall: float) -> Json:
    """The group's status with what was refused of its pods' sizes; ``why`` is empty if nothing was."""
    status = child(group, "status")
    others = [existing for existing in items(status, "conditions") if text(existing, "type") != RESIZABLE]
    if len(others) == len(items(status, "conditions")) and not why:
        return status
    resizable = [condition(group, RESIZABLE, "False", "Refused", why)] if why else []
    return stamped({**status, "conditions": [*others, *resizable]}, timestamp(wall))


def _about(kind: Resource, group: JsonObject) -> EventSubject:
    return EventSubject(kind, name_of(group), uid_of(group))


def _event_name(group: JsonObject, what: str, note: str) -> str:
    # Deterministic, so the API server refuses the same event a second time (409).
    return f"{name_of(group).name[:_LONGEST]}.{what}.{zlib.crc32(note.encode()):08x}"
