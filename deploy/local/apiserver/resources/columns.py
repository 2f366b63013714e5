"""Tables of objects for ``kubectl get``.

A column's path is a JSONPath, or ``computed:NAME`` for a function in ``_COMPUTED``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from deploy.local.apiserver.apimachinery.jsonpath import find
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject, field
from deploy.local.apiserver.resources.resource import ServedResource, TableColumn

_NAME: Final = TableColumn(
    "Name", ".metadata.name", format="name", description="Name must be unique within a namespace."
)
_NONE: Final = "<none>"
_UNKNOWN: Final = "<unknown>"
_SPANS: Final = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def age(timestamp: str, now: datetime) -> str:
    """Age of an RFC 3339 time, almost as kubectl prints it: ``5s``, ``2m30s``, ``3h``, ``12d``."""
    try:
        elapsed = now - datetime.fromisoformat(timestamp)
    # TypeError: a time without an offset cannot be subtracted from one with an offset.
    except (ValueError, TypeError):
        return _UNKNOWN
    seconds = max(0, int(elapsed / timedelta(seconds=1)))
    # kubectl uses seconds up to two minutes.
    if seconds < 120:
        return f"{seconds}s"
    for size, suffix in _SPANS:
        count, rest = divmod(seconds, size)
        if count:
            smaller = rest // 60 if suffix == "h" else rest
            finer = {"m": f"{smaller}s", "h": f"{smaller}m"}.get(suffix, "")
            return f"{count}{suffix}" + (finer if count < 10 and smaller else "")
    return "0s"


def _containers(body: JsonObject) -> list[Any]:
    return field(body, ("status", "containerStatuses")) or []


def _ready(body: JsonObject) -> Any:
    wanted = field(body, ("spec", "containers")) or []
    return f"{sum(bool(status.get('ready')) for status in _containers(body))}/{len(wanted)}"


def _pod_status(body: JsonObject) -> Any:
    if field(body, ("metadata", "deletionTimestamp")):
        return "Terminating"
    # The reason of a waiting container, such as ImagePullBackOff, is more specific than the phase.
    for status in _containers(body):
        reason = field(status, ("state", "waiting", "reason"))
        if reason:
            return reason
    return field(body, ("status", "reason")) or field(body, ("status", "phase")) or "Unknown"


def _node_status(body: JsonObject) -> Any:
    ready = find(".status.conditions[?(@.type=='Ready')].status", body)
    words = ["Ready" if "True" in ready else "NotReady" if ready else "Unknown"]
    if field(body, ("spec", "unschedulable")):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _involved_object(body: JsonObject) -> Any:
    involved = body.get("involvedObject") or {}
    return f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}"


def _ports(body: JsonObject) -> Any:
    ports = field(body, ("spec", "ports")) or []
    return ",".join(f"{port.get('port')}/{port.get('protocol', 'TCP')}" for port in ports) or _NONE


_COMPUTED: Final[dict[str, Callable[[JsonObject], Any]]] = {
    "computed:ready": _ready,
    "computed:restarts": lambda body: sum(status.get("restartCount", 0) for status in _containers(body)),
    "computed:pod-status": _pod_status,
    "computed:node-status": _node_status,
    "computed:involved-object": _involved_object,
    "computed:ports": _ports,
    "computed:data-count": lambda body: len(body.get("data") or {}) + len(body.get("binaryData") or {}),
}


def _cell(column: TableColumn, body: JsonObject, now: datetime, placeholder: str | None) -> Any:
    if column.path in _COMPUTED:
        return _COMPUTED[column.path](body)
    values = find(column.path, body)
    if not values or values[0] is None:
        return _UNKNOWN if column.type == "date" and placeholder else placeholder
    value = values[0] if len(values) == 1 else ",".join(str(element) for element in values)
    if column.type == "date":
        return age(str(value), now)
    if column.type == "string" and not isinstance(value, str):
        return str(value)
    return value


def _definition(column: TableColumn) -> JsonObject:
    return {
        "name": column.name,
        "type": "string" if column.type == "date" else column.type,
        "format": column.format,
        "description": column.description or f"{column.name} of the object",
        "priority": column.priority,
    }


def columns_of(resource: ServedResource) -> tuple[TableColumn, ...]:
    """Columns of a resource, beginning with the name; name and age if it declares none."""
    declared = resource.columns or (TableColumn("Age", ".metadata.creationTimestamp", "date"),)
    return (_NAME, *declared)


def partial_metadata(body: JsonObject, api_version: str = "meta.k8s.io/v1") -> JsonObject:
    """The object's metadata only."""
    return {"kind": "PartialObjectMetadata", "apiVersion": api_version, "metadata": body["metadata"]}


_INCLUDED: Final[dict[str, Callable[[JsonObject], JsonObject | None]]] = {
    "None": lambda _: None,
    "Metadata": partial_metadata,
    "Object": lambda body: body,
}


@dataclass(frozen=True, slots=True)
class Tables:
    """Builds Tables of one resource's objects, with ages at ``now``.

    ``include`` is None, Metadata or Object: the form of the object in each row.
    """

    resource: ServedResource
    now: datetime
    include: str

    def table(self, bodies: Iterable[JsonObject], meta: JsonObject, *, headers: bool) -> JsonObject:
        """A Table of ``bodies``, with column definitions if ``headers`` is true."""
        columns: Sequence[TableColumn] = columns_of(self.resource)
        carried = _INCLUDED.get(self.include, partial_metadata)
        # In kube-apiserver, missing cells of custom resources are null.
        placeholder = None if self.resource.custom else _NONE
        rows = []
        for body in bodies:
            row: JsonObject = {"cells": [_cell(column, body, self.now, placeholder) for column in columns]}
            companion = carried(body)
            rows.append(row if companion is None else {**row, "object": companion})
        return {
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": meta,
            "columnDefinitions": [_definition(column) for column in columns] if headers else [],
            "rows": rows,
        }
