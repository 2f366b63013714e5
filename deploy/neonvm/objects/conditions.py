"""Conditions in the status of NeonVM's objects (pure)."""

from __future__ import annotations

from protocol.kubernetes.objects import Json, items, text


def condition(about: Json, kind: str, value: str, reason: str, message: str) -> Json:
    """The condition ``kind`` of ``about`` with ``value`` (True, False or Unknown).

    Its time of transition is kept while its value stays, and left to ``stamped`` where it turns.
    """
    last = next((each for each in items(about, "status", "conditions") if text(each, "type") == kind), {})
    since = text(last, "lastTransitionTime")
    kept = {"lastTransitionTime": since} if since and text(last, "status") == value else {}
    return {"type": kind, "status": value, "reason": reason, "message": message, **kept}


def stamped(status: Json, now: str) -> Json:
    """The same status, where conditions that have turned are given the time ``now``."""
    if "conditions" not in status:
        return status
    return {**status, "conditions": [{"lastTransitionTime": now, **each} for each in items(status, "conditions")]}
