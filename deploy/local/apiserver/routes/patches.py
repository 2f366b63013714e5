"""Patches of every kind, as functions from an object to its next state."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from deploy.local.apiserver.apimachinery.errors import Cause, Subject, bad_request, invalid, unsupported_media_type
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject
from deploy.local.apiserver.apimachinery.media_types import (
    APPLY_PATCH,
    JSON_PATCH,
    MERGE_PATCH,
    PATCHES,
    STRATEGIC_PATCH,
)
from deploy.local.apiserver.patch.apply import Application, apply
from deploy.local.apiserver.patch.listkeys import builtin_list_keys, schema_list_keys
from deploy.local.apiserver.patch.merge import json_patch, merge_patch
from deploy.local.apiserver.patch.strategic import strategic_patch
from deploy.local.apiserver.registry.api import RequestTarget, WriteOptions
from deploy.local.apiserver.routes.requests import Body
from deploy.local.apiserver.schema.shapes import check_metadata

Change = Callable[[JsonObject], JsonObject]
"""Turns the current state of an object into the desired one."""

# Merge keys are known only for built-in kinds.
_CUSTOM_PATCHES: Final = tuple(kind for kind in PATCHES if kind != STRATEGIC_PATCH)


def _object(patch: Any) -> JsonObject:
    if not isinstance(patch, dict):
        raise bad_request(f"a patch of this kind is an object, got {type(patch).__name__}")
    return patch


def applied(target: RequestTarget, body: Body, options: WriteOptions, now: str) -> Change:
    """The change of a server-side apply; from ``{}`` if there is no object yet. Raises 400 or 422."""
    if not options.field_manager:
        cause = Cause("fieldManager", "Required value: is required for apply patch", "FieldValueRequired")
        raise invalid(Subject("patchoptions", "meta.k8s.io", "", "PatchOptions"), [cause])
    resource = target.resource
    stated = _object(body.value(PATCHES))
    check_metadata(stated.get("metadata"))
    if not stated.get("apiVersion") or not stated.get("kind"):
        raise bad_request(f"invalid object type: {stated.get('apiVersion', '')}, Kind={stated.get('kind', '')}")
    # Only the server decides who owns which field.
    if (stated.get("metadata") or {}).get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    keys = partial(schema_list_keys, resource.schema.document) if resource.schema else builtin_list_keys
    application = Application(options.field_manager, options.force, resource.api_version, now, keys, target.subresource)
    return lambda live: apply(live, stated, application)


# A server-side apply is not among these: it may create its object, and needs the options of the request.
_MAKERS: Final[dict[str, Callable[[Any], Change]]] = {
    JSON_PATCH: lambda patch: lambda body: json_patch(body, patch),
    MERGE_PATCH: lambda patch: lambda body: _object(merge_patch(body, _object(patch))),
    STRATEGIC_PATCH: lambda patch: lambda body: strategic_patch(body, _object(patch)),
}


def change_of(target: RequestTarget, body: Body) -> Change:
    """The change that a patch body describes. Raises a 400, or a 415 for an unsupported media type."""
    accepted = _CUSTOM_PATCHES if target.resource.custom else PATCHES
    if body.media_type not in accepted or body.media_type == APPLY_PATCH:
        raise unsupported_media_type(body.media_type, accepted)
    return _MAKERS[body.media_type](body.value(accepted))
