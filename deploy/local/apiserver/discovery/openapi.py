"""OpenAPI documents, as far as kubectl needs them: server-side validation, ``explain``, and supported patch types."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

from deploy.local.apiserver.apimachinery.errors import no_such_path
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject, encode
from deploy.local.apiserver.apimachinery.media_types import APPLY_PATCH, JSON_PATCH, MERGE_PATCH
from deploy.local.apiserver.resources.catalog import Catalog
from deploy.local.apiserver.resources.resource import ServedResource

V2_PROTOBUF: Final = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
V2_PROTOBUF_ANSWER: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
V2_PROTOBUF_BODY: Final = b"\x0a\x032.0\x12\x13\x0a\x0aKubernetes\x12\x05local\x42\x00"
"""An empty document as protobuf: swagger "2.0", a title, a version, no paths."""

_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_META_SCHEMA: Final[JsonObject] = {
    "type": "object",
    "description": "Standard object's metadata.",
    "properties": {
        "name": {"type": "string", "description": "Name, unique within a namespace."},
        "generateName": {"type": "string", "description": "Prefix of a name that the server generates."},
        **{key: {"type": "string"} for key in ("namespace", "uid", "resourceVersion")},
        "generation": {"type": "integer", "format": "int64"},
        **{key: {"type": "string", "format": "date-time"} for key in ("creationTimestamp", "deletionTimestamp")},
        "deletionGracePeriodSeconds": {"type": "integer", "format": "int64"},
        **{key: {"type": "object", "additionalProperties": {"type": "string"}} for key in ("labels", "annotations")},
        "finalizers": {"type": "array", "items": {"type": "string"}},
        **{key: {"type": "array", "items": {"type": "object"}} for key in ("ownerReferences", "managedFields")},
    },
}
# kubectl detects supported features, such as dry runs, by these parameters.
_WRITE_PARAMETERS: Final = ("dryRun", "fieldManager", "fieldValidation")
_METHODS: Final = {
    "get": ("get", True),
    "list": ("get", False),
    "create": ("post", False),
    "update": ("put", True),
    "patch": ("patch", True),
    "delete": ("delete", True),
    "deletecollection": ("delete", False),
}
_ACTIONS: Final = {"create": "post", "update": "put", "patch": "patch"}


def _place(resource: ServedResource) -> str:
    return f"apis/{resource.group}/{resource.version}" if resource.group else f"api/{resource.version}"


def index(catalog: Catalog) -> JsonObject:
    """``/openapi/v3``: the paths of the documents of all groups and versions."""
    paths: JsonObject = {}
    for versions in catalog.groups().values():
        for resources in versions.values():
            place = _place(resources[0])
            # Clients cache a document by its hash, so it must change with the document.
            digest = hashlib.sha256(encode(_document(resources))).hexdigest()
            paths[place] = {"serverRelativeURL": f"/openapi/v3/{place}?hash={digest}"}
    return {"paths": paths}


def document(catalog: Catalog, place: str) -> JsonObject:
    """The document of ``api/v1`` or ``apis/GROUP/VERSION``. Raises a 404."""
    parts = place.split("/")
    group = parts[1] if len(parts) == 3 else ""
    resources = catalog.groups().get(group, {}).get(parts[-1])
    if not resources or _place(resources[0]) != place:
        raise no_such_path()
    return _document(resources)


def _document(resources: Iterable[ServedResource]) -> JsonObject:
    schemas: JsonObject = {_META: _META_SCHEMA}
    paths: JsonObject = {}
    for resource in resources:
        schemas[_schema_name(resource)] = _schema(resource)
        for path, method, operation in _operations(resource):
            paths.setdefault(path, {})[method] = operation
    info = {"title": "Kubernetes", "version": "local"}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


def _schema_name(resource: ServedResource) -> str:
    reversed_group = ".".join(reversed(resource.group.split("."))) if resource.custom else "io.k8s.api"
    middle = "" if resource.custom else f"{resource.group.partition('.')[0] or 'core'}."
    return f"{reversed_group}.{middle}{resource.version}.{resource.kind}"


def _kind_of(resource: ServedResource) -> JsonObject:
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


def _schema(resource: ServedResource) -> JsonObject:
    declared: JsonObject = resource.schema.document if resource.schema else {"type": "object"}
    head: dict[str, Any] = {
        "apiVersion": {"type": "string", "description": "Version of the object's schema."},
        "kind": {"type": "string", "description": "Kind of the object."},
        "metadata": {"allOf": [{"$ref": f"#/components/schemas/{_META}"}], "description": "Metadata of the object."},
    }
    schema: JsonObject = {
        **declared,
        "properties": {**declared.get("properties", {}), **head},
        "x-kubernetes-group-version-kind": [_kind_of(resource)],
    }
    # Built-in kinds have no schemas here, so they are described as open objects.
    if not resource.custom:
        schema["description"] = f"{resource.kind}: stored as submitted; this server has no schema for it."
        schema["x-kubernetes-preserve-unknown-fields"] = True
    return schema


def _operations(resource: ServedResource) -> Iterator[tuple[str, str, JsonObject]]:
    scope = "/namespaces/{namespace}" if resource.namespaced else ""
    collection = f"/{_place(resource)}{scope}/{resource.plural}"
    for verb in resource.verbs:
        if verb in _METHODS:
            method, single = _METHODS[verb]
            yield (f"{collection}/{{name}}" if single else collection), method, _operation(resource, verb)


def _operation(resource: ServedResource, verb: str) -> JsonObject:
    reference = {"$ref": f"#/components/schemas/{_schema_name(resource)}"}
    operation: JsonObject = {
        "operationId": f"{verb}{resource.kind}",
        "x-kubernetes-action": _ACTIONS.get(verb, verb),
        "x-kubernetes-group-version-kind": _kind_of(resource),
        "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": reference}}}},
    }
    if verb in _ACTIONS:
        operation["parameters"] = [
            {"name": name, "in": "query", "schema": {"type": "string"}} for name in _WRITE_PARAMETERS
        ]
        # Without strategic merge patch, kubectl uses its compiled-in merge keys, which are right for built-in kinds.
        kinds = (JSON_PATCH, MERGE_PATCH, APPLY_PATCH) if verb == "patch" else ("application/json",)
        operation["requestBody"] = {"content": {kind: {"schema": reference} for kind in kinds}}
    return operation


def swagger() -> JsonObject:
    """``/openapi/v2``: an empty document; clients that use it try v3 first."""
    return {"swagger": "2.0", "info": {"title": "Kubernetes", "version": "local"}, "paths": {}, "definitions": {}}
