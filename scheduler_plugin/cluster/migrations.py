"""VirtualMachineMigrations: decoding into facts, and creation (S4.9, S4.12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from protocol import names
from protocol.field_errors import field_message, shown
from protocol.kubernetes import resources
from protocol.kubernetes.objects import JsonObject, number
from protocol.kubernetes.timestamps import parse_timestamp
from protocol.messages import ObjectName
from protocol.runtime.kubernetes.watches.kinds import Kind
from protocol.units import Bytes, Seconds
from scheduler_plugin.ledger.facts import MigrationFacts, MigrationPhase
from scheduler_plugin.ledger.outcomes import CreateMigration


class _MigrationMetadata(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815 - the name in the API
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    creationTimestamp: str | None = None  # noqa: N815 - the name in the API
    deletionTimestamp: str | None = None  # noqa: N815 - the name in the API
    finalizers: tuple[str, ...] | None = None


class _MigrationSpec(msgspec.Struct, frozen=True):
    # A name with a slash is a database in a pod, which never moves.
    vmName: Annotated[str, msgspec.Meta(pattern="^[^/]*$")]  # noqa: N815 - the name in the API


class _Ram(msgspec.Struct, frozen=True, rename="camel"):
    dirty_pages_rate: int | None = None
    page_size: int = 4096


class _Info(msgspec.Struct, frozen=True, rename="camel"):
    total_time_ms: int | None = None
    downtime_ms: int | None = None
    ram: _Ram | None = None


class _Condition(msgspec.Struct, frozen=True, rename="camel"):
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class _MigrationStatus(msgspec.Struct, frozen=True, rename="camel"):
    phase: str | None = None
    source_pod_name: str | None = None
    target_pod_name: str | None = None
    source_node: str | None = None
    target_node: str | None = None
    info: _Info | None = None
    conditions: list[_Condition] | None = None


class _Migration(msgspec.Struct, frozen=True):
    metadata: _MigrationMetadata
    spec: _MigrationSpec
    status: _MigrationStatus | None = None


@dataclass(frozen=True, slots=True)
class ClusterMigration:
    """A VirtualMachineMigration: facts for the ledger, and details for explanations."""

    facts: MigrationFacts
    source_node: str | None = None
    target_node: str | None = None
    total: Seconds | None = None
    downtime: Seconds | None = None
    reason: str = ""  # why a scheduler ordered it
    why: str = ""  # message of its latest condition
    is_cancelled: bool = False  # by its controller
    finalizers: tuple[str, ...] = ()


def read_migration(obj: JsonObject) -> ClusterMigration:
    """Decode a VirtualMachineMigration. Raises ``ValueError``."""
    try:
        migration = msgspec.convert(obj, _Migration)
    except msgspec.ValidationError as error:
        raise ValueError(field_message(error)) from None
    status = migration.status or _MigrationStatus()
    info = status.info or _Info()
    changes = [(_time(_CHANGED, condition.last_transition_time), condition) for condition in status.conditions or ()]
    # Conditions are unordered; the latest one explains a failure.
    last = max(changes, key=lambda change: change[0], default=None)
    return ClusterMigration(
        facts=_facts(migration, status, None if last is None else last[0]),
        source_node=status.source_node or None,
        target_node=status.target_node or None,
        total=_seconds(info.total_time_ms),
        downtime=_seconds(info.downtime_ms),
        reason=(migration.metadata.annotations or {}).get(names.ANNOTATION_REASON, ""),
        why="" if last is None else last[1].message or last[1].reason,
        is_cancelled=last is not None and last[1].reason == _CANCELLED,
        finalizers=migration.metadata.finalizers or (),
    )


def _facts(migration: _Migration, status: _MigrationStatus, changed_at: float | None) -> MigrationFacts:
    meta, phase = migration.metadata, _phase(status.phase)
    created = _time("metadata.creationTimestamp", meta.creationTimestamp)
    return MigrationFacts(
        name=ObjectName(meta.namespace, meta.name),
        uid=meta.uid,
        version=number(meta.resourceVersion),
        vm=ObjectName(meta.namespace, migration.spec.vmName),
        phase=phase,
        # The target is in an annotation, so that a restarted scheduler knows it.
        target=(meta.annotations or {}).get(names.ANNOTATION_TARGET_NODE) or None,
        source_pod=_pod(meta.namespace, status.source_pod_name),
        target_pod=_pod(meta.namespace, status.target_pod_name),
        is_terminating=meta.deletionTimestamp is not None,
        # No finalizer can be added to a deleted object, so its controller never takes it up again.
        is_released=meta.deletionTimestamp is not None and names.FINALIZER not in (meta.finalizers or ()),
        # Only migrations with our label are ours to cancel.
        is_ours=(meta.labels or {}).get(names.LABEL_CREATED_BY) == names.SCHEDULER_NAME,
        # The API has no end time: use the latest condition, or else the creation.
        ended_at=max(created, changed_at or 0.0) if phase.is_over else None,
        created_at=created,
        dirty_rate=_dirty_rate(status.info),
    )


def _phase(text: str | None) -> MigrationPhase:
    try:
        # No phase: the controller has not processed it yet.
        return MigrationPhase(text or "Pending")
    except ValueError:
        expected = ", ".join(phase.value for phase in MigrationPhase)
        raise ValueError(f"status.phase: expected one of {expected}, got {shown(text)}") from None


def _pod(namespace: str, name: str | None) -> ObjectName | None:
    return ObjectName(namespace, name) if name else None


def _dirty_rate(info: _Info | None) -> Bytes | None:
    ram = None if info is None else info.ram
    if ram is None or ram.dirty_pages_rate is None:
        return None
    # QEMU reports pages per second.
    rate = ram.dirty_pages_rate * ram.page_size
    # The field is signed; a negative rate is no measurement.
    return Bytes(rate) if rate >= 0 else None


def _seconds(milliseconds: int | None) -> Seconds | None:
    return None if milliseconds is None or not 0 <= milliseconds <= _LONGEST else Seconds(milliseconds / 1000)


def _time(path: str, text: str | None) -> float:
    if text is None:
        return 0.0
    at = parse_timestamp(text)
    if at is None:
        raise ValueError(f"{path}: expected a time such as 2026-01-31T12:00:00Z, got {shown(text)}")
    return at


_LONGEST: Final = 2**53  # milliseconds that a float tells apart

_CHANGED: Final = "status.conditions.lastTransitionTime"

_CANCELLED: Final = "Cancelled"
"""Reason of a migration that its controller cancelled, such as one of a sleeping VM that was needed."""

# Without this CRD VMs are autoscaled but do not move.
MIGRATIONS: Final = Kind(resources.MIGRATIONS, read_migration, is_optional=True)


def migration_body(order: CreateMigration, timeout: Seconds, bandwidth: Bytes) -> JsonObject:
    """The object to create: it is cancelled after ``timeout``, and limited to ``bandwidth`` per second."""
    name, move = order.migration, order.move
    return {
        "apiVersion": resources.MIGRATIONS.api_version,
        "kind": resources.MIGRATIONS.kind,
        "metadata": {
            "name": name.name,
            "namespace": name.namespace,
            "labels": {names.LABEL_CREATED_BY: names.SCHEDULER_NAME},
            "annotations": {names.ANNOTATION_TARGET_NODE: move.target, names.ANNOTATION_REASON: move.reason},
        },
        "spec": {
            "vmName": move.vm.name,
            # The API takes whole seconds.
            "completionTimeout": max(1, round(timeout)),
            "maxBandwidth": bandwidth.quantity(),
        },
    }
