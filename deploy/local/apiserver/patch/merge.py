"""JSON merge patch (RFC 7386) and JSON patch (RFC 6902)."""

from __future__ import annotations

from typing import Any, Final

import jsonpatch

from deploy.local.apiserver.apimachinery.errors import StatusError, bad_request
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
    """``body`` with a list of operations applied. Raises a 400 for malformed ones, a 422 if one does not apply."""
    if not isinstance(operations, list):
        raise bad_request(f"a JSON patch is a list of operations, got {type(operations).__name__}")
    try:
        patched: Any = deep_copy(body)
        # One at a time: whether an operation must be adapted depends on the effect of those before it.
        for step in jsonpatch.JsonPatch(operations):
            patched = _applied(patched, step)
    except jsonpatch.InvalidJsonPatch as error:
        raise bad_request(f"invalid JSON patch: {error}") from None
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, TypeError) as error:
        message = f"the server rejected our request due to an error in our request: {error}"
        raise StatusError(422, "Invalid", message) from None
    if not isinstance(patched, dict):
        raise bad_request("the JSON patch leaves no object")
    return patched


def _applied(document: Any, step: JsonObject) -> Any:
    parent, key = jsonpatch.JsonPointer(step["path"]).to_last(document)
    # Kubernetes' library departs from RFC 6902, and clients count on it: in an object, `replace` adds a missing key,
    # and `test` takes a missing key for null.
    if isinstance(parent, dict) and key is not None and key not in parent:
        if step["op"] == "replace":
            step = {**step, "op": "add"}
        elif step["op"] == "test" and step.get("value", _NOTHING) is None:
            return document
    return jsonpatch.JsonPatch([step]).apply(document, in_place=True)


_NOTHING: Final = object()  # tells a `test` without a value from one for null
