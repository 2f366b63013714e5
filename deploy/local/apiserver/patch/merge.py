"""JSON merge patch (RFC 7386) and JSON patch (RFC 6902)."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Final

import jsonpatch

from deploy.local.apiserver.apimachinery.errors import StatusError, bad_request
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject


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
    """``body`` with a JSON patch applied. Raises a 400 if it is malformed, a 422 if an operation fails."""
    if not isinstance(operations, list):
        raise bad_request(f"a JSON patch is a list of operations, got {type(operations).__name__}")
    try:
        patched: Any = deepcopy(body)
        # One by one: the adaptations below depend on the effect of earlier operations.
        for step in jsonpatch.JsonPatch(operations):
            patched = _applied(patched, step)
    except jsonpatch.InvalidJsonPatch as error:
        raise bad_request(f"invalid JSON patch: {error}") from None
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, TypeError) as error:
        message = f"the server rejected our request due to an error in our request: {error}"
        raise StatusError(422, "Invalid", message) from None
    if not isinstance(patched, dict):
        raise bad_request("the result of the JSON patch is not an object")
    return patched


def _applied(document: Any, step: JsonObject) -> Any:
    parent, key = jsonpatch.JsonPointer(step["path"]).to_last(document)
    # Kubernetes' library deviates from RFC 6902, and clients rely on it: in an object, `replace` adds a missing key,
    # and `test` treats a missing key as null.
    if isinstance(parent, dict) and key is not None and key not in parent:
        if step["op"] == "replace":
            step = {**step, "op": "add"}
        elif step["op"] == "test" and step.get("value", _NOTHING) is None:
            return document
    return jsonpatch.JsonPatch([step]).apply(document, in_place=True)


_NOTHING: Final = object()  # distinguishes a `test` without a value from one for null
