"""Strategic merge patch: a merge patch that merges the lists in ``listkeys`` item by item.

Directives: ``$patch: replace`` and ``$patch: delete`` in an object, ``$deleteFromPrimitiveList/FIELD``,
``$setElementOrder/FIELD`` (the order of the result) and ``$retainKeys`` (drop all other keys).
"""

from __future__ import annotations

from typing import Any, Final

from deploy.local.apiserver.apimachinery.errors import bad_request
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject
from deploy.local.apiserver.patch.listkeys import SET, merge_key

_DIRECTIVE: Final = "$patch"
_RETAIN: Final = "$retainKeys"
_DELETE_FROM: Final = "$deleteFromPrimitiveList/"
_ORDER: Final = "$setElementOrder/"


def strategic_patch(body: JsonObject, patch: JsonObject, parent: str = "") -> JsonObject:
    """``body`` with ``patch`` applied; ``parent`` is the name of their field. Raises a 400."""
    directive = patch.get(_DIRECTIVE)
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != _DIRECTIVE}
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise bad_request(f"unknown patch directive {directive!r}")
    result = dict(body)
    for key, change in patch.items():
        if not key.startswith("$"):
            _merge_field(result, key, change, parent)
    # After the fields: these directives apply to the merged lists.
    for key in patch:
        if key.startswith(_DELETE_FROM):
            field, values = key.removeprefix(_DELETE_FROM), _listed(patch, key)
            if isinstance(result.get(field), list):
                result[field] = [item for item in result[field] if item not in values]
        elif key.startswith(_ORDER):
            _reorder(result, key.removeprefix(_ORDER), _listed(patch, key), parent)
    retained = _listed(patch, _RETAIN) if patch.get(_RETAIN) is not None else None
    return {key: value for key, value in result.items() if key in retained} if retained is not None else result


def _merge_field(result: JsonObject, key: str, change: Any, parent: str) -> None:
    if change is None:
        result.pop(key, None)
        return
    before = result.get(key)
    identity = merge_key(parent, key)
    if isinstance(change, dict):
        result[key] = strategic_patch(before if isinstance(before, dict) else {}, change, key)
    elif isinstance(change, list) and identity is not None:
        result[key] = _merge_list(before if isinstance(before, list) else [], change, key, identity)
    else:
        result[key] = change


def _merge_list(before: list[Any], change: list[Any], field: str, identity: str) -> list[Any]:
    if identity == SET:
        return before + [item for item in change if item not in before]
    # The directive is an item of the new list.
    replaces = any(isinstance(item, dict) and item == {_DIRECTIVE: "replace"} for item in change)
    result = [] if replaces else list(before)
    for item in change:
        if isinstance(item, dict) and item != {_DIRECTIVE: "replace"}:
            _merge_item(result, item, field, identity)
    return result


def _merge_item(result: list[Any], item: JsonObject, field: str, identity: str) -> None:
    if identity not in item:
        raise bad_request(f"map: {item} does not contain declared merge key: {identity}")
    places = (at for at, old in enumerate(result) if isinstance(old, dict) and old.get(identity) == item[identity])
    place = next(places, None)
    if item.get(_DIRECTIVE) == "delete":
        # Deleting a missing item is not an error.
        if place is not None:
            del result[place]
    elif place is None:
        result.append(strategic_patch({}, item, field))
    else:
        result[place] = strategic_patch(result[place], item, field)


def _listed(patch: JsonObject, directive: str) -> list[Any]:
    values = patch[directive]
    if not isinstance(values, list):
        raise bad_request(f"{directive}: expected a list, got {type(values).__name__}")
    return values


def _reorder(result: JsonObject, field: str, order: list[Any], parent: str) -> None:
    """Sort the items in ``order`` first; the others follow in their old order."""
    items = result.get(field)
    # An order may name a list that the patch has removed.
    if not isinstance(items, list):
        return
    identity = merge_key(parent, field) or SET
    wanted = [_identity(item, identity) for item in order]
    named = [item for item in items if _identity(item, identity) in wanted]
    named.sort(key=lambda item: wanted.index(_identity(item, identity)))
    others = [item for item in items if _identity(item, identity) not in wanted]
    result[field] = named + others


def _identity(item: Any, identity: str) -> Any:
    return item if identity == SET or not isinstance(item, dict) else item.get(identity)
