"""Conditions in the status of objects, and since when each holds."""

from __future__ import annotations

from protocol.kubernetes.objects import Json, JsonObject, items, text


def condition(about: JsonObject, kind: str, value: str, reason: str, message: str) -> Json:
    """The condition ``kind`` of ``about`` with ``value`` (True, False or Unknown).

    Its time of transition is kept while its value stays, and left to ``stamped`` where it turns.

    >>> condition({}, "Ready", "True", "Running", "it runs")
    {'type': 'Ready', 'status': 'True', 'reason': 'Running', 'message': 'it runs'}
    """
    last = next((each for each in items(about, "status", "conditions") if text(each, "type") == kind), {})
    since = text(last, "lastTransitionTime")
    kept = {"lastTransitionTime": since} if since and text(last, "status") == value else {}
    return {"type": kind, "status": value, "reason": reason, "message": message, **kept}


def stamped(status: Json, now: str) -> Json:
    """The same status, where conditions that have turned are given the time ``now``.

    >>> stamped({"conditions": [{"type": "Ready"}]}, "2026-01-01T00:00:00Z")
    {'conditions': [{'lastTransitionTime': '2026-01-01T00:00:00Z', 'type': 'Ready'}]}
    """
    if "conditions" not in status:
        return status
    return {**status, "conditions": [{"lastTransitionTime": now, **each} for each in items(status, "conditions")]}
