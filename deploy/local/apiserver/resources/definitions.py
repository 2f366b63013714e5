"""CustomResourceDefinitions: validation, defaults, and the resources that they define.

CEL rules (``x-kubernetes-validations``) are evaluated if ``cel`` can compile them. For each other rule, the client that
writes the CRD gets a warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from deploy.local.apiserver.apimachinery.errors import Cause, Subject, invalid
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject, field
from deploy.local.apiserver.resources.resource import ScalePaths, ServedResource, TableColumn
from deploy.local.apiserver.schema.schema_check import schema_faults
from deploy.local.apiserver.schema.structural import Schema

CRD_KEY: Final = "customresourcedefinitions.apiextensions.k8s.io"
CLEANUP_FINALIZER: Final = "customresourcecleanup.apiextensions.k8s.io"

_AGE: Final = TableColumn("Age", ".metadata.creationTimestamp", "date")
_REQUIRED: Final = (
    ("spec.group", ("group",)),
    ("spec.names.plural", ("names", "plural")),
    ("spec.names.kind", ("names", "kind")),
    ("spec.versions", ("versions",)),
    ("spec.scope", ("scope",)),
)


def established(body: JsonObject, now: str) -> JsonObject:
    """The CRD with defaults and the status of an established one. Raises a 422 with all errors."""
    spec: JsonObject = body.get("spec") or {}
    name = field(body, ("metadata", "name")) or ""
    # An invalid CRD is rejected as a whole, never partly served.
    causes = list(_causes(name, spec))
    if causes:
        raise invalid(
            Subject("customresourcedefinitions", "apiextensions.k8s.io", name, "CustomResourceDefinition"), causes
        )
    names: JsonObject = spec["names"]
    full_names = {
        **names,
        "singular": names.get("singular") or names["kind"].lower(),
        "listKind": names.get("listKind") or f"{names['kind']}List",
    }
    # Conversion between versions changes only the apiVersion.
    full_spec = {**spec, "names": full_names, "conversion": spec.get("conversion") or {"strategy": "None"}}
    previous = field(body, ("status", "storedVersions")) or []
    stored = next(version["name"] for version in spec["versions"] if version.get("storage"))
    # Established immediately: the catalog serves the resource as soon as the CRD is stored.
    status = {
        "conditions": [
            _condition("NamesAccepted", "NoConflicts", "no conflicts found", body, now),
            _condition("Established", "InitialNamesAccepted", "the initial names have been accepted", body, now),
        ],
        "acceptedNames": full_names,
        # Objects may still be stored in earlier storage versions.
        "storedVersions": previous if stored in previous else [*previous, stored],
    }
    return {**body, "spec": full_spec, "status": status}


def _condition(kind: str, reason: str, message: str, body: JsonObject, now: str) -> JsonObject:
    # A condition that is true already keeps its transition time.
    for condition in field(body, ("status", "conditions")) or ():
        if condition.get("type") == kind and condition.get("status") == "True":
            return dict(condition)
    return {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now}


def _causes(name: str, spec: JsonObject) -> Iterator[Cause]:
    missing = [path for path, steps in _REQUIRED if not field(spec, steps)]
    yield from (Cause(path, "Required value", "FieldValueRequired") for path in missing)
    # The checks below need these fields.
    if missing:
        return
    expected = f"{spec['names']['plural']}.{spec['group']}"
    if name != expected:
        yield Cause("metadata.name", f'Invalid value: "{name}": must be spec.names.plural+"."+spec.group')
    if spec["scope"] not in {"Namespaced", "Cluster"}:
        yield Cause("spec.scope", f'Unsupported value: "{spec["scope"]}": supported values: "Cluster", "Namespaced"')
    if sum(bool(version.get("storage")) for version in spec["versions"]) != 1:
        yield Cause("spec.versions", "Invalid value: must have exactly one version marked as storage version")
    for index, version in enumerate(spec["versions"]):
        yield from _version_causes(version, f"spec.versions[{index}]")
    if field(spec, ("conversion", "strategy")) == "Webhook":
        yield Cause("spec.conversion.strategy", 'Unsupported value: "Webhook": this server converts with "None" only')


def _version_causes(version: JsonObject, path: str) -> Iterator[Cause]:
    if not version.get("name"):
        yield Cause(f"{path}.name", "Required value", "FieldValueRequired")
    schema = field(version, ("schema", "openAPIV3Schema"))
    if schema is None:
        yield Cause(f"{path}.schema.openAPIV3Schema", "Required value: schemas are required", "FieldValueRequired")
    else:
        yield from schema_faults(schema, f"{path}.schema.openAPIV3Schema")
    for number, entry in enumerate(version.get("selectableFields") or ()):
        if not entry.get("jsonPath"):
            yield Cause(f"{path}.selectableFields[{number}].jsonPath", "Required value", "FieldValueRequired")
    for number, column in enumerate(version.get("additionalPrinterColumns") or ()):
        for part in ("name", "jsonPath"):
            if not column.get(part):
                where = f"{path}.additionalPrinterColumns[{number}].{part}"
                yield Cause(where, "Required value", "FieldValueRequired")


def resources_of(body: JsonObject) -> list[ServedResource]:
    """The resources of a stored CRD, one for each served version."""
    spec: JsonObject = body["spec"]
    stored = next(version["name"] for version in spec["versions"] if version.get("storage"))
    return [_resource(spec, version, stored) for version in spec["versions"] if version.get("served")]


def _resource(spec: JsonObject, version: JsonObject, stored: str) -> ServedResource:
    names: JsonObject = spec["names"]
    subresources: JsonObject = version.get("subresources") or {}
    return ServedResource(
        group=spec["group"],
        version=version["name"],
        plural=names["plural"],
        kind=names["kind"],
        namespaced=spec["scope"] == "Namespaced",
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        subresources=tuple(name for name in ("status", "scale") if name in subresources),
        columns=_columns(version.get("additionalPrinterColumns")),
        # JSONPaths begin with a dot; the paths of field selectors do not.
        selectable=tuple(entry["jsonPath"].lstrip(".") for entry in version.get("selectableFields") or ()),
        scale=_scale(subresources.get("scale")),
        generation=True,
        singular=names["singular"],
        list_kind=names["listKind"],
        schema=Schema(version["schema"]["openAPIV3Schema"]),
        custom=True,
        storage_version=stored,
    )


def _columns(declared: Any) -> tuple[TableColumn, ...]:
    if not declared:
        return (_AGE,)
    return tuple(
        TableColumn(
            column["name"],
            column["jsonPath"],
            column.get("type") or "string",
            column.get("format") or "",
            column.get("priority") or 0,
            column.get("description") or "",
        )
        for column in declared
    )


def _scale(declared: Any) -> ScalePaths | None:
    if not isinstance(declared, dict):
        return None
    return ScalePaths(
        (declared.get("specReplicasPath") or ".spec.replicas").lstrip("."),
        (declared.get("statusReplicasPath") or ".status.replicas").lstrip("."),
        (declared.get("labelSelectorPath") or "").lstrip("."),
    )
