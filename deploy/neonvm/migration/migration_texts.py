"""Texts about a migration that people read in its condition and in events (pure)."""

from __future__ import annotations

from deploy.neonvm.migration.migration_facts import TransferState
from protocol.kubernetes.objects import Json, items, name_of, node_of, text, whole


def pod_on(pod: Json) -> str:
    """A pod and its node."""
    return f"pod {name_of(pod).name} on {node_of(pod) or 'no node'}"


def time_of(migration: Json) -> str:
    """Duration limit of the migration."""
    return f"{whole(migration, 'spec', 'completionTimeout')} s"


def why_unplaced(target: Json | None) -> str:
    """The scheduler's reason for a target without a node; empty before it has one."""
    conditions = (
        condition
        for condition in items(target or {}, "status", "conditions")
        if text(condition, "type") == "PodScheduled"
    )
    why = next((text(condition, "message") for condition in conditions if text(condition, "status") == "False"), "")
    return f"no node takes the target pod: {why}" if why else ""


def figures(transfer: TransferState) -> str:
    """The numbers that people ask for, as far as they are known."""
    info = dict(transfer.info)
    ram = info.get("ram")
    if not info or not isinstance(ram, dict):
        return ""
    mebibytes = int(ram.get("transferred", 0)) >> 20  # bytes to MiB
    return f" in {info['totalTimeMs']} ms, standing still for {info['downtimeMs']} ms, {mebibytes} MiB sent"
