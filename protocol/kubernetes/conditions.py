"""Conditions in the status of objects, and their transition times."""

from __future__ import annotations

from protocol.kubernetes.objects import Json, JsonObject, items, text


def condition_of(about: JsonObject, kind: str) -> Json:
    """The first condition of type ``kind`` of ``about``; empty if there is none.

    >>> condition_of({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, "Ready")
    {'type': 'Ready', 'status': 'True'}
    """
    return next((current for current in items(about, "status", "conditions") if text(current, "type") == kind), {})


def is_condition_true(about: JsonObject, kind: str) -> bool:
    """Return True if the condition ``kind`` of ``about`` is true.

    >>> is_condition_true({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, "Ready")
    True
    """
    return text(condition_of(about, kind), "status") == "True"


def condition(about: JsonObject, kind: str, value: str, reason: str, message: str) -> Json:
    """The condition ``kind`` of ``about`` with ``value`` (True, False or Unknown).

    It keeps its transition time while the value is unchanged; after a change, ``stamped`` sets a new one.

    >>> condition({}, "Ready", "True", "Running", "it runs")
    {'type': 'Ready', 'status': 'True', 'reason': 'Running', 'message': 'it runs'}
    """
    last = condition_of(about, kind)
    since = text(last, "lastTransitionTime")
    # By convention of the API, this is the time of the last change of ``status``, not of reason or message.
    transition = {"lastTransitionTime": since} if since and text(last, "status") == value else {}
    return {"type": kind, "status": value, "reason": reason, "message": message, **transition}


def stamped(status: Json, now: str) -> Json:
    """``status`` with the transition time ``now`` in all conditions that have changed.

    >>> stamped({"conditions": [{"type": "Ready"}]}, "2026-01-01T00:00:00Z")
    {'conditions': [{'lastTransitionTime': '2026-01-01T00:00:00Z', 'type': 'Ready'}]}
    """
    if "conditions" not in status:
        return status
    # Later keys win, so a condition that already has a time keeps it.
    return {**status, "conditions": [{"lastTransitionTime": now, **current} for current in items(status, "conditions")]}
