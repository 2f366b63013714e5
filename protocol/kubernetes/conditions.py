"""Conditions in the status of objects, and since when each holds."""

from __future__ import annotations

from protocol.kubernetes.objects import Json, JsonObject, items, text


def condition_of(about: JsonObject, kind: str) -> Json:
    """The first condition ``kind`` of ``about``; empty if it has none.

    >>> condition_of({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, "Ready")
    {'type': 'Ready', 'status': 'True'}
    """
    return next((current for current in items(about, "status", "conditions") if text(current, "type") == kind), {})


def holds(about: JsonObject, kind: str) -> bool:
    """Return True if the condition ``kind`` of ``about`` is true.

    >>> holds({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, "Ready")
    True
    """
    return text(condition_of(about, kind), "status") == "True"


def condition(about: JsonObject, kind: str, value: str, reason: str, message: str) -> Json:
    """The condition ``kind`` of ``about`` with ``value`` (True, False or Unknown).

    It keeps its time of transition while its value stays; if that changes, ``stamped`` sets a new one.

    >>> condition({}, "Ready", "True", "Running", "it runs")
    {'type': 'Ready', 'status': 'True', 'reason': 'Running', 'message': 'it runs'}
    """
    last = condition_of(about, kind)
    since = text(last, "lastTransitionTime")
    # By the API's convention, the time is that of the last change of status, not of the reason or message.
    transition = {"lastTransitionTime": since} if since and text(last, "status") == value else {}
    return {"type": kind, "status": value, "reason": reason, "message": message, **transition}


def stamped(status: Json, now: str) -> Json:
    """The same status, with the time ``now`` in the conditions that have changed.

    >>> stamped({"conditions": [{"type": "Ready"}]}, "2026-01-01T00:00:00Z")
    {'conditions': [{'lastTransitionTime': '2026-01-01T00:00:00Z', 'type': 'Ready'}]}
    """
    if "conditions" not in status:
        return status
    # A condition that has a time already keeps it, since later keys win.
    return {**status, "conditions": [{"lastTransitionTime": now, **current} for current in items(status, "conditions")]}
