"""Patches of every kind, as functions from an object to its next state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from deploy.local.apiserver.api import Target
from deploy.local.apiserver.errors import bad_request, unsupported_media_type
from deploy.local.apiserver.jsonvalue import JsonObject
from deploy.local.apiserver.patch.merge import json_patch, merge_patch
from deploy.local.apiserver.patch.strategic import strategic_patch
from deploy.local.apiserver.requests import JSON_PATCH, MERGE_PATCH, PATCHES, STRATEGIC_PATCH, Body

Change = Callable[[JsonObject], JsonObject]
"""From what an object is to what it shall be."""

_CUSTOM_PATCHES: Final = tuple(kind for kind in PATCHES if kind != STRATEGIC_PATCH)


def _object(patch: Any) -> JsonObject:
    if not isinstance(patch, dict):
        raise bad_request(f"a patch of this kind is an object, got {type(patch).__name__}")
    return patch


_MAKERS: Final[dict[str, Callable[[Any], Change]]] = {
    JSON_PATCH: lambda patch: lambda body: json_patch(body, patch),
    MERGE_PATCH: lambda patch: lambda body: _object(merge_patch(body, _object(patch))),
    STRATEGIC_PATCH: lambda patch: lambda body: strategic_patch(body, _object(patch)),
}


def change_of(target: Target, body: Body) -> Change:
    """The change that a patch body describes. Raises a 400, or a 415 for a kind that the resource does not know."""
    accepted = _CUSTOM_PATCHES if target.resource.custom else PATCHES
    if body.media_type not in accepted:
        raise unsupported_media_type(body.media_type, accepted)
    return _MAKERS[body.media_type](body.value(accepted))
