"""Conversion of objects between the storage version and a client's version. Pure."""

from __future__ import annotations

from deploy.local.apiserver.apimachinery.errors import bad_request
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject, encode
from deploy.local.apiserver.resources.resource import ServedResource
from deploy.local.apiserver.storage.store import StoredObject


def in_version(resource: ServedResource, stored: JsonObject) -> JsonObject:
    """A stored object in the client's version."""
    if stored.get("apiVersion") == resource.api_version:
        return stored
    return {**stored, "apiVersion": resource.api_version}


def raw_in_version(resource: ServedResource, stored: StoredObject) -> bytes:
    """The JSON text of an object in the client's version; the stored text if it is equal."""
    body = in_version(resource, stored.body)
    return stored.raw if body is stored.body else encode(body)


def in_storage_version(resource: ServedResource, submitted: JsonObject) -> JsonObject:
    """A client's object in the storage version. Raises a 400 if its kind or version is not the resource's."""
    for part, expected in (("apiVersion", resource.api_version), ("kind", resource.kind)):
        actual = submitted.get(part)
        # Both are optional: the path determines kind and version.
        if actual not in (None, "", expected):
            raise bad_request(f"the {part} in the data ({actual}) does not match the expected {part} ({expected})")
    head: JsonObject = {"apiVersion": resource.stored_api_version, "kind": resource.kind}
    return {**head, **{key: value for key, value in submitted.items() if key not in head}}
