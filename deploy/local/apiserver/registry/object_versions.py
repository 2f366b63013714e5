"""Objects between the version in which they are stored and the one that a client speaks. Pure."""

from __future__ import annotations

from deploy.local.apiserver.apimachinery.errors import bad_request
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject, encode
from deploy.local.apiserver.resources.resource import ServedResource
from deploy.local.apiserver.storage.store import StoredObject


def in_version(resource: ServedResource, stored: JsonObject) -> JsonObject:
    """A stored object as the client's version of the resource shows it."""
    if stored.get("apiVersion") == resource.api_version:
        return stored
    return {**stored, "apiVersion": resource.api_version}


def raw_in_version(resource: ServedResource, stored: StoredObject) -> bytes:
    """The JSON text of an object in the client's version; the stored text if that is the same."""
    body = in_version(resource, stored.body)
    return stored.raw if body is stored.body else encode(body)


def in_storage_version(resource: ServedResource, given: JsonObject) -> JsonObject:
    """A client's object as it is stored. Raises a 400 if it is of another kind or version."""
    for part, expected in (("apiVersion", resource.api_version), ("kind", resource.kind)):
        actual = given.get(part)
        # A client may leave both out: the path names the kind and version already.
        if actual not in (None, "", expected):
            raise bad_request(f"the {part} in the data ({actual}) does not match the expected {part} ({expected})")
    head: JsonObject = {"apiVersion": resource.stored_api_version, "kind": resource.kind}
    return {**head, **{key: value for key, value in given.items() if key not in head}}
