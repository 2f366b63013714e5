"""Server-side apply: a manager owns the fields that it applies until it no longer applies them. Pure.

Only an apply takes ownership. Other writes (update, patch) own nothing and conflict with nothing; kube-apiserver is
stricter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from deploy.local.apiserver.apimachinery.errors import Cause, StatusError
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject, NotJsonError, decode, encode

Path: TypeAlias = tuple[str, ...]
"""Path of a field, in the steps of ``fieldsV1``."""

ListKeys = Callable[[Path, str], "tuple[str, ...] | None"]
"""(path of the parent, name of the list) -> the keys of its items; ``()`` for a set, None for a leaf."""

ITSELF: Final = "."


def leaves(value: Any, keys: ListKeys, path: Path = ()) -> Iterator[Path]:
    """Paths of all fields that ``value`` sets."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _field_leaves(inner, keys, path, name)
    else:
        yield path


def _field_leaves(value: Any, keys: ListKeys, parent: Path, name: str) -> Iterator[Path]:
    path = (*parent, f"f:{name}")
    by = keys(parent, name) if isinstance(value, list) else None
    if by is None:
        yield from leaves(value, keys, path)
        return
    for item in value:
        step = item_step(item, by)
        if step.startswith("k:"):
            # Owned separately from its fields: the item is removed when its manager no longer applies it.
            yield (*path, step, ITSELF)
            yield from leaves(item, keys, (*path, step))
        else:
            yield (*path, step)


def item_step(item: Any, by: tuple[str, ...]) -> str:
    """The path step of one item of a list with keys ``by``."""
    # An item that is not an object has no keys; its value identifies it.
    if by and isinstance(item, dict):
        return "k:" + encode({key: item.get(key) for key in by}).decode()
    return "v:" + encode(item).decode()


def find(value: Any, path: Path) -> Any:
    """The value at ``path``; raises ``LookupError`` if there is none."""
    for step in path:
        if step == ITSELF:
            return value
        value = _descend(value, step)
    return value


def _descend(value: Any, step: str) -> Any:
    kind, text = step[:2], step[2:]
    if kind == "f:" and isinstance(value, dict):
        return value[text]
    if isinstance(value, list):
        return value[index_of(value, step)]
    raise LookupError(step)


def index_of(items: list[Any], step: str) -> int:
    """Index of the item that ``step`` identifies; raises ``LookupError`` if there is none."""
    identity = decode(step[2:].encode())
    for number, item in enumerate(items):
        if step.startswith("v:") and item == identity:
            return number
        if step.startswith("k:") and isinstance(item, dict) and all(item.get(key) == identity[key] for key in identity):
            return number
    raise LookupError(step)


def to_fields(paths: Iterable[Path]) -> JsonObject:
    """Encode a set of fields as ``fieldsV1``."""
    root: JsonObject = {}
    # Sorted, so that equal sets have equal encodings.
    for path in sorted(paths):
        level = root
        for step in path:
            level = level.setdefault(step, {})
    return root


def from_fields(fields: Any, path: Path = ()) -> Iterator[Path]:
    """Decode ``fieldsV1`` to a set of fields; invalid parts are skipped."""
    if not isinstance(fields, dict) or not fields:
        yield path
        return
    for step, inner in fields.items():
        if step == ITSELF or step[:2] == "f:" or _is_readable(step):
            yield from from_fields(inner, (*path, step))


def _is_readable(step: str) -> bool:
    try:
        value = decode(step[2:].encode())
    # UnicodeEncodeError: a lone surrogate, which JSON allows and UTF-8 does not.
    except (NotJsonError, UnicodeEncodeError):
        return False
    return step[:2] == "v:" or (step[:2] == "k:" and isinstance(value, dict))


def dotted(path: Path) -> str:
    """A field path as kubectl prints it: ``.spec.containers[name="a"].image``."""
    text = ""
    for step in path:
        if step.startswith("f:"):
            text += f".{step[2:]}"
        elif step.startswith("k:"):
            text += "[" + ",".join(f"{k}={encode(v).decode()}" for k, v in decode(step[2:].encode()).items()) + "]"
        elif step != ITSELF:
            text += f"[={step[2:]}]"
    return text


_NOT_OWNED: Final = frozenset({"apiVersion", "kind"})
_SERVER_FIELDS: Final = frozenset(
    {"name", "namespace", "uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink"}
)


@dataclass(frozen=True, slots=True)
class Application:
    """Manager and options of an apply. ``now`` is RFC 3339; ``subresource`` is empty for the object itself."""

    manager: str
    force: bool
    api_version: str
    now: str
    keys: ListKeys
    subresource: str = ""


def apply(live: JsonObject, applied: JsonObject, application: Application) -> JsonObject:
    """``live`` (``{}`` for a new object) with the fields of ``applied``. Raises a 409 that lists the conflicts."""
    wanted = _owned_part(applied)
    # The only leaf of an empty object is the object itself, which has no owner.
    now_owned = set(leaves(wanted, application.keys)) if wanted else set()
    entries = list((live.get("metadata") or {}).get("managedFields") or ())
    own_entry = next((entry for entry in entries if _is_own_entry(entry, application)), None)
    others = {
        place: _fields_of(entry) for place, entry in enumerate(entries) if entry is not own_entry and _applies(entry)
    }
    # Managers share a field with equal values. Different values conflict; if forced, the field changes owner.
    conflicts = [
        (place, path) for place, owned in others.items() for path in _conflicts(live, wanted, owned & now_owned)
    ]
    if conflicts and not application.force:
        raise _refused((entries[place]["manager"], path) for place, path in conflicts)
    meta = {key: value for key, value in (applied.get("metadata") or {}).items() if key != "managedFields"}
    body: JsonObject = _merged(live, {**applied, "metadata": meta}, application.keys, ())
    # Remove fields that this manager no longer applies, unless another manager owns them too.
    dropped = (_fields_of(own_entry) if own_entry else set()) - now_owned - set().union(*others.values())
    # Whole items before their fields: without its keys, an item could not be found.
    for path in sorted(dropped, key=lambda path: (path[-1] != ITSELF, path)):
        _remove(body, path)
    # Other managers lose forced fields.
    remaining = [
        _without(entry, {path for at, path in conflicts if at == place}) for place, entry in enumerate(entries)
    ]
    # Without entries that own nothing any more, and without this manager's, which is added below.
    remaining = [entry for place, entry in enumerate(remaining) if entries[place] is not own_entry and entry]
    body["metadata"] = {
        **body.get("metadata", {}),
        "managedFields": [*remaining, _entry(own_entry, now_owned, application)],
    }
    return body


def _owned_part(applied: JsonObject) -> JsonObject:
    part = {key: value for key, value in applied.items() if key not in _NOT_OWNED and key != "metadata"}
    meta = {key: value for key, value in (applied.get("metadata") or {}).items() if key not in _SERVER_FIELDS}
    return {**part, "metadata": meta} if meta else part


def _is_own_entry(entry: JsonObject, application: Application) -> bool:
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
            # All managers that apply an item share its existence.
            return path[-1] != ITSELF and bool(find(live, path) != find(wanted, path))
        except LookupError:
            # If it is missing on one side, there is no value to conflict with.
            return False

    return sorted(path for path in shared if differs(path))


def _refused(conflicts: Iterable[tuple[str, Path]]) -> StatusError:
    causes = tuple(
        Cause(dotted(path), f'conflict with "{manager}"', "FieldManagerConflict") for manager, path in conflicts
    )
    noun = "conflict" if len(causes) == 1 else "conflicts"
    listing = ", ".join(f"{cause.message}: {cause.field}" for cause in causes)
    return StatusError(409, "Conflict", f"Apply failed with {len(causes)} {noun}: {listing}", causes=causes)


def _merged(live: Any, applied: Any, keys: ListKeys, path: Path) -> Any:
    if not isinstance(applied, dict):
        return deepcopy(applied)
    merged: JsonObject = dict(live) if isinstance(live, dict) else {}
    for name, inner in applied.items():
        by = keys(path, name) if isinstance(inner, list) else None
        before = merged.get(name)
        if by is None:
            merged[name] = _merged(before, inner, keys, (*path, f"f:{name}"))
        else:
            merged[name] = _merged_list(
                before if isinstance(before, list) else [], inner, keys, (*path, f"f:{name}"), by
            )
    return merged


def _merged_list(live: list[Any], applied: list[Any], keys: ListKeys, path: Path, by: tuple[str, ...]) -> list[Any]:
    merged = list(live)
    for item in applied:
        step = item_step(item, by)
        try:
            index = index_of(merged, step)
        except LookupError:
            merged.append(deepcopy(item))
        else:
            merged[index] = _merged(merged[index], item, keys, (*path, step))
    return merged


def _remove(body: JsonObject, path: Path) -> None:
    """Remove the field at ``path`` from ``body``, and containers that become empty; copies what it modifies."""
    if path[-1] == ITSELF:
        path = path[:-1]
    trail: list[tuple[Any, Any]] = []
    value: Any = body
    for step in path:
        try:
            at = step[2:] if step.startswith("f:") else index_of(value, step)
            inner = value[at]
        except (LookupError, TypeError):
            return
        # Copied, because the stored object may share these parts.
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


def _entry(own_entry: JsonObject | None, owned: set[Path], application: Application) -> JsonObject:
    fields = to_fields(owned)
    # An apply without changes keeps its entry with the old time, so that nothing is written.
    if (
        own_entry is not None
        and own_entry.get("fieldsV1") == fields
        and own_entry.get("apiVersion") == application.api_version
    ):
        return own_entry
    entry: JsonObject = {
        "manager": application.manager,
        "operation": "Apply",
        "apiVersion": application.api_version,
        "time": application.now,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }
    return {**entry, "subresource": application.subresource} if application.subresource else entry
