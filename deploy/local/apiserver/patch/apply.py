"""Server-side apply: a manager states the fields that it wants, and keeps them until it no longer states them. Pure.

Only managers that apply own fields. Other writes (update, patch) take no ownership and cause no conflict; Kubernetes'
own server is stricter here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from deploy.local.apiserver.apimachinery.errors import Cause, StatusError
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject, deep_copy
from deploy.local.apiserver.patch.fieldsets import (
    ITSELF,
    ListKeys,
    Path,
    dotted,
    find,
    from_fields,
    item_step,
    leaves,
    place_of,
    to_fields,
)

_NOT_OWNED: Final = frozenset({"apiVersion", "kind"})
_SERVERS_METADATA: Final = frozenset(
    {"name", "namespace", "uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink"}
)


@dataclass(frozen=True, slots=True)
class Application:
    """The author of an apply, and its options. ``now`` is RFC 3339; ``subresource`` is ``""`` for the object itself."""

    manager: str
    force: bool
    api_version: str
    now: str
    keys: ListKeys
    subresource: str = ""


def apply(live: JsonObject, stated: JsonObject, application: Application) -> JsonObject:
    """``live`` (``{}`` if there is none yet) with what a manager states. Raises a 409 that names each conflict."""
    wanted = _owned_part(stated)
    # The only leaf of an empty object is the object itself, which nobody owns.
    now_owned = set(leaves(wanted, application.keys)) if wanted else set()
    entries = list((live.get("metadata") or {}).get("managedFields") or ())
    mine = next((entry for entry in entries if _is_mine(entry, application)), None)
    others = {place: _fields_of(entry) for place, entry in enumerate(entries) if entry is not mine and _applies(entry)}
    # The same value is shared. A different one is a conflict (409), unless it is forced: then the field changes hands.
    conflicts = [
        (place, path) for place, owned in others.items() for path in _conflicts(live, wanted, owned & now_owned)
    ]
    if conflicts and not application.force:
        raise _refused((entries[place]["manager"], path) for place, path in conflicts)
    body: JsonObject = _merged(live, _without_entries(stated), application.keys, ())
    # A field that this manager no longer states is removed, unless another manager states it too.
    dropped = (_fields_of(mine) if mine else set()) - now_owned - set().union(*others.values())
    # Whole items go before their fields: without its keys an item could no longer be found.
    for path in sorted(dropped, key=lambda path: (path[-1] != ITSELF, path)):
        _remove(body, path)
    # Other managers lose the fields that were forced.
    remaining = [
        _without(entry, {path for at, path in conflicts if at == place}) for place, entry in enumerate(entries)
    ]
    # Entries that own nothing any more are dropped; this manager's own is written below.
    remaining = [entry for place, entry in enumerate(remaining) if entries[place] is not mine and entry]
    body["metadata"] = {**body.get("metadata", {}), "managedFields": [*remaining, _entry(mine, now_owned, application)]}
    return body


def _owned_part(stated: JsonObject) -> JsonObject:
    part = {key: value for key, value in stated.items() if key not in _NOT_OWNED and key != "metadata"}
    meta = {key: value for key, value in (stated.get("metadata") or {}).items() if key not in _SERVERS_METADATA}
    return {**part, "metadata": meta} if meta else part


def _without_entries(stated: JsonObject) -> JsonObject:
    meta = {key: value for key, value in (stated.get("metadata") or {}).items() if key != "managedFields"}
    return {**stated, "metadata": meta}


def _is_mine(entry: JsonObject, application: Application) -> bool:
    return (
        _applies(entry)
        and entry.get("manager") == application.manager
        and entry.get("subresource", "") == application.subresource
    )


def _applies(entry: JsonObject) -> bool:
    return entry.get("operation") == "Apply"


def _fields_of(entry: JsonObject) -> set[Path]:
    return set(from_fields(entry.get("fieldsV1"))) - {()}


def _conflicts(live: JsonObject, wanted: JsonObject, shared: Iterable[Path]) -> list[Path]:
    def differs(path: Path) -> bool:
        try:
            # The existence of an item is shared by all managers that state it.
            return path[-1] != ITSELF and bool(find(live, path) != find(wanted, path))
        except LookupError:
            # A field that is missing on one side has no value to disagree about.
            return False

    return sorted(path for path in shared if differs(path))


def _refused(conflicts: Iterable[tuple[str, Path]]) -> StatusError:
    causes = tuple(
        Cause(dotted(path), f'conflict with "{manager}"', "FieldManagerConflict") for manager, path in conflicts
    )
    noun = "conflict" if len(causes) == 1 else "conflicts"
    listing = ", ".join(f"{cause.message}: {cause.field}" for cause in causes)
    return StatusError(409, "Conflict", f"Apply failed with {len(causes)} {noun}: {listing}", causes=causes)


def _merged(live: Any, stated: Any, keys: ListKeys, path: Path) -> Any:
    """A copy of ``live`` with all values of ``stated``."""
    if not isinstance(stated, dict):
        return deep_copy(stated)
    merged: JsonObject = dict(live) if isinstance(live, dict) else {}
    for name, inner in stated.items():
        by = keys(path, name) if isinstance(inner, list) else None
        before = merged.get(name)
        if by is None:
            merged[name] = _merged(before, inner, keys, (*path, f"f:{name}"))
        else:
            merged[name] = _merged_list(
                before if isinstance(before, list) else [], inner, keys, (*path, f"f:{name}"), by
            )
    return merged


def _merged_list(live: list[Any], stated: list[Any], keys: ListKeys, path: Path, by: tuple[str, ...]) -> list[Any]:
    merged = list(live)
    for item in stated:
        step = item_step(item, by)
        try:
            place = place_of(merged, step)
        except LookupError:
            merged.append(deep_copy(item))
        else:
            merged[place] = _merged(merged[place], item, keys, (*path, step))
    return merged


def _remove(body: JsonObject, path: Path) -> None:
    """Removes the field at ``path`` from ``body`` (copying what it changes), and containers that this leaves empty."""
    if path[-1] == ITSELF:
        path = path[:-1]
    trail: list[tuple[Any, Any]] = []
    value: Any = body
    for step in path:
        try:
            at = step[2:] if step.startswith("f:") else place_of(value, step)
            inner = value[at]
        except (LookupError, TypeError):
            return
        # Copied on the way down: the stored object may share these parts.
        inner = dict(inner) if isinstance(inner, dict) else list(inner) if isinstance(inner, list) else inner
        value[at] = inner
        trail.append((value, at))
        value = inner
    for depth, (container, at) in enumerate(reversed(trail)):
        if depth == 0 or container[at] in ({}, []):
            del container[at]
        else:
            return


def _without(entry: JsonObject, lost: set[Path]) -> JsonObject:
    if not lost:
        return entry
    rest = _fields_of(entry) - lost
    return {**entry, "fieldsV1": to_fields(rest)} if rest else {}


def _entry(mine: JsonObject | None, owned: set[Path], application: Application) -> JsonObject:
    fields = to_fields(owned)
    # An apply that changes nothing keeps its entry, and the time in it, so that nothing is written.
    if mine is not None and mine.get("fieldsV1") == fields and mine.get("apiVersion") == application.api_version:
        return mine
    entry: JsonObject = {
        "manager": application.manager,
        "operation": "Apply",
        "apiVersion": application.api_version,
        "time": application.now,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }
    return {**entry, "subresource": application.subresource} if application.subresource else entry
