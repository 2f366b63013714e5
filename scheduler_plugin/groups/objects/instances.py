"""Decodes pods of a postgres cluster as primary and standbys, and encodes writes to them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from protocol.floors import Floor, decode_floor, encode_floor
from protocol.kubernetes.conditions import condition_of, is_condition_true
from protocol.kubernetes.objects import Json, JsonObject, annotations_of, child, name_of, text, version_of
from protocol.kubernetes.resources import CNPG_CLUSTERS, PODS, Resource
from protocol.kubernetes.timestamps import micro_timestamp, parse_datetime
from protocol.names import ANNOTATION_FLOOR, ANNOTATION_SWITCHOVER
from protocol.pod_database import DEFERRED, PodDatabase, is_pod_database, parse_pod_database
from protocol.virtual_machine import InvalidObjectError
from scheduler_plugin.groups.core.tandem import ClusterState, Instance, Tandem
from scheduler_plugin.groups.objects.pods import primary_of
from scheduler_plugin.groups.objects.writes import Write

_HEALTHY: Final = "Cluster in healthy state"
_SWITCHING: Final = "Switchover in progress"


def tandem_of(pods: Sequence[JsonObject], kind: Resource) -> Tandem | None:
    """The instances in opted-in pods that can be resized; None if the primary is unknown or not among them."""
    in_charge = primary_of(pods, kind)
    instances = {}
    for pod in filter(is_pod_database, pods):
        # The node's agent reports invalid pods.
        with suppress(InvalidObjectError):
            instances[name_of(pod).name] = _instance(pod, parse_pod_database(pod))
    primary = None if in_charge is None else instances.pop(name_of(in_charge).name, None)
    return None if primary is None else Tandem(primary, tuple(instances.values()))


def _instance(pod: JsonObject, database: PodDatabase) -> Instance:
    is_deferred = database.objection is not None and database.objection.verdict == DEFERRED
    pending = condition_of(pod, "PodResizePending")
    return Instance(
        name_of(pod).name,
        is_ready=is_condition_true(pod, "Ready"),
        desired=database.use,
        actual=database.actual,
        maximum=database.bounds.max,
        floor=floor_in(pod),
        denied_since=parse_datetime(pending.get("lastTransitionTime")) if is_deferred else None,
    )


def floor_in(database: JsonObject) -> Floor | None:
    """The floor of a VM or pod; None if missing or unreadable."""
    try:
        return decode_floor(annotations_of(database)[ANNOTATION_FLOOR])
    except (KeyError, ValueError):
        return None


def floor_write(pod: JsonObject, floor: Floor) -> Write:
    """The write that sets the pod's floor."""
    annotations: Json = {ANNOTATION_FLOOR: encode_floor(floor)}
    return Write("floor", PODS, name_of(pod), {"metadata": {"annotations": annotations}}, version=version_of(pod))


def cluster_state(cluster: JsonObject, primary: str) -> ClusterState:
    """State of a CloudNativePG Cluster; ``primary`` is the primary according to the labels of its pods."""
    status = child(cluster, "status")
    in_charge = {primary, text(status, "currentPrimary"), text(status, "targetPrimary")}
    return ClusterState(
        allows_switchover=annotations_of(cluster).get(ANNOTATION_SWITCHOVER) == "true",
        is_healthy=text(status, "phase") == _HEALTHY and len(in_charge) == 1,
        changed_at=parse_datetime(status.get("targetPrimaryTimestamp")),
    )


def promotion(cluster: JsonObject, standby: str, now: datetime) -> Write:
    """The write that promotes ``standby``, as ``kubectl cnpg promote`` does."""
    status: Json = {
        "targetPrimary": standby,
        "targetPrimaryTimestamp": micro_timestamp(now.astimezone(UTC).timestamp()),
        "phase": _SWITCHING,
        "phaseReason": f"Switching over to {standby}",
    }
    version = version_of(cluster)
    return Write("switchover", CNPG_CLUSTERS, name_of(cluster), {"status": status}, "status", version)
