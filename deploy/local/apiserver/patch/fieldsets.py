"""Sets of fields, as server-side apply keeps them: which leaves a manager has applied. Pure.

A field is a path of steps in the notation of ``fieldsV1``: ``f:NAME`` for a key of an object, ``k:{...}`` for the item
of a list that has these keys, ``v:VALUE`` for a value of a set, and a last ``.`` for "the item itself". Lists that
have no keys are leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject, NotJsonError, decode, encode

Path: TypeAlias = tuple[str, ...]
"""The steps that lead to a field."""

ListKeys = Callable[[Path, str], "tuple[str, ...] | None"]
"""(path of the parent, name of the list) -> the keys of its items; ``()`` for a set, None for a leaf."""

ITSELF: Final = "."


def leaves(value: Any, keys: ListKeys, path: Path = ()) -> Iterator[Path]:
    """Every field that ``value`` sets."""
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
            # Owned apart from its fields, so that the item goes when its manager no longer states it.
            yield (*path, step, ITSELF)
            yield from leaves(item, keys, (*path, step))
        else:
            yield (*path, step)


def item_step(item: Any, by: tuple[str, ...]) -> str:
    """The step to one item of a list with keys ``by``."""
    # An item that is no object has no keys: its value identifies it.
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
        return value[place_of(value, step)]
    raise LookupError(step)


def place_of(items: list[Any], step: str) -> int:
    """The place of the item to which ``step`` leads; raises ``LookupError`` if there is none."""
    wanted = decode(step[2:].encode())
    for place, item in enumerate(items):
        if step.startswith("v:") and item == wanted:
            return place
        if step.startswith("k:") and isinstance(item, dict) and all(item.get(key) == wanted[key] for key in wanted):
            return place
    raise LookupError(step)


def to_fields(paths: Iterable[Path]) -> JsonObject:
    """The ``fieldsV1`` of a set of fields."""
    root: JsonObject = {}
    # Sorted, so that equal sets give equal texts.
    for path in sorted(paths):
        level = root
        for step in path:
            level = level.setdefault(step, {})
    return root


def from_fields(fields: Any, path: Path = ()) -> Iterator[Path]:
    """The set of fields of a ``fieldsV1``; whatever cannot be read is left out."""
    if not isinstance(fields, dict) or not fields:
        yield path
        return
    for step, inner in fields.items():
        if step == ITSELF or step[:2] == "f:" or _is_readable(step):
            yield from from_fields(inner, (*path, step))


def _is_readable(step: str) -> bool:
    try:
        value = decode(step[2:].encode())
    # UnicodeEncodeError: a lone surrogate, which JSON can write and UTF-8 cannot.
    except (NotJsonError, UnicodeEncodeError):
        return False
    return step[:2] == "v:" or (step[:2] == "k:" and isinstance(value, dict))


def dotted(path: Path) -> str:
    """A readable form of a field: ``.spec.containers[name="a"].image``."""
    text = ""
    for step in path:
        if step.startswith("f:"):
            text += f".{step[2:]}"
        elif step.startswith("k:"):
            text += "[" + ",".join(f"{k}={encode(v).decode()}" for k, v in decode(step[2:].encode()).items()) + "]"
        elif step != ITSELF:
            text += f"[={step[2:]}]"
    return text
