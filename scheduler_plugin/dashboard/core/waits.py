"""Reasons why a migration waits: the same on the page and in the terminal."""

from __future__ import annotations

from protocol.kubernetes.objects import JsonObject, child, items, text

_PENDING = "Pending"


def wait_of(migration: JsonObject) -> str:
    """The reason why a VirtualMachineMigration has not begun; empty if it has.

    Its controller puts the reason into a condition. Without one, the controller or a node is missing.

    >>> wait_of({"status": {"phase": "Pending", "conditions": [{"message": "no node has room for 3 vCPU"}]}})
    'no node has room for 3 vCPU'
    """
    status = child(migration, "status")
    phase = text(status, "phase")
    if phase not in {"", _PENDING}:
        return ""
    if reason := next(
        (message for condition in items(status, "conditions") if (message := text(condition, "message"))), ""
    ):
        return reason
    if not phase:
        return "waiting for neonvm-controller to take the migration up"
    # With a target node nothing is missing any more.
    return "" if text(status, "targetNode") else "waiting for a node that takes the target pod"
