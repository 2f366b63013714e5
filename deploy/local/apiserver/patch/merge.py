"""JSON merge patch (RFC 7386) and JSON patch (RFC 6902)."""

from __future__ import annotations

from typing import Any

import jsonpatch

from deploy.local.apiserver.apimachinery.errors import ApiError, bad_request
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject, deep_copy


def merge_patch(body: Any, patch: Any) -> Any:
    """``body`` with a merge patch applied: objects merge, null removes, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result: JsonObject = dict(body) if isinstance(body, dict) else {}
    for key, change in patch.items():
        if change is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), change)
    return result


def json_patch(body: JsonObject, operations: Any) -> JsonObject:
    """``body`` with a list of operations applied. Raises a 400 for malformed ones, a 422 where one does not apply."""
    if not isinstance(operations, list):
        raise bad_request(f"a JSON patch is a list of operations, got {type(operations).__name__}")
    try:
        patched = jsonpatch.JsonPatch(operations).apply(deep_copy(body))
    except jsonpatch.InvalidJsonPatch as error:
        raise bad_request(f"invalid JSON patch: {error}") from None
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, TypeError) as error:
        message = f"the server rejected our request due to an error in our request: {error}"
        raise ApiError(422, "Invalid", message) from None
    if not isinstance(patched, dict):
        raise bad_request("the JSON patch leaves no object")
    return patched
