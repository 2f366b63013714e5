"""Validation of a value against a schema, with tables of one check per keyword.

Messages are worded as by Kubernetes. As in Kubernetes since 1.30, unchanged parts are not validated again, so that
unrelated updates do not fail after the CRD became stricter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from fractions import Fraction
from typing import Any, Final

from deploy.local.apiserver.apimachinery.errors import Cause
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject, encode
from deploy.local.apiserver.schema.cel import EvaluationError, is_quantity, matches

_TYPES: Final[dict[type, str]] = {
    dict: "object",
    list: "array",
    str: "string",
    int: "integer",
    bool: "boolean",
    type(None): "null",
}
_INTEGERS: Final = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}


def type_name(value: Any) -> str:
    """The JSON schema name of the type of ``value``."""
    # JSON has only one number type: 1.0 is an integer.
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    return _TYPES[type(value)]


def _is_time(text: str) -> bool:
    try:
        # RFC 3339 requires an offset; `fromisoformat` does not.
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _minimum(limit: Any, value: Any, schema: JsonObject) -> str | None:
    if schema.get("exclusiveMinimum") and value <= limit:
        return f"should be greater than {limit}"
    return f"should be greater than or equal to {limit}" if value < limit else None


def _maximum(limit: Any, value: Any, schema: JsonObject) -> str | None:
    if schema.get("exclusiveMaximum") and value >= limit:
        return f"should be less than {limit}"
    return f"should be less than or equal to {limit}" if value > limit else None


def _format(name: Any, value: Any, _: JsonObject) -> str | None:
    if name in _INTEGERS and isinstance(value, int):
        low, high = _INTEGERS[name]
        return None if low <= value <= high else f"must be of type {name}"
    if name == "quantity":
        return None if is_quantity(value) else "must be a quantity such as 2, 250m or 1Gi"
    if name == "date-time" and isinstance(value, str) and not _is_time(value):
        return "must be of type date-time"
    return None


def _multiple(unit: Any, value: Any, _: JsonObject) -> str | None:
    return None if Fraction(value) % Fraction(unit) == 0 else f"should be a multiple of {unit}"


def _pattern(pattern: Any, value: Any, _: JsonObject) -> str | None:
    try:
        return None if matches(pattern, value) else f"should match '{pattern}'"
    except EvaluationError:
        # An invalid pattern matches no value.
        return f"cannot match '{pattern}'"


_Check = Callable[[Any, Any, JsonObject], str | None]


def _at_least(words: str) -> _Check:
    return lambda limit, value, _: words.format(limit) if len(value) < limit else None


_BODY_CHECKS: Final[tuple[tuple[str, tuple[type, ...], _Check], ...]] = (
    ("minimum", (int, float), _minimum),
    ("maximum", (int, float), _maximum),
    ("multipleOf", (int, float), _multiple),
    ("pattern", (str,), _pattern),
    ("minLength", (str,), _at_least("should be at least {} chars long")),
    ("minItems", (list,), _at_least("should have at least {} items")),
    ("minProperties", (dict,), _at_least("should have at least {} properties")),
    ("format", (str, int, float), _format),
)
"""Keyword, the types of values that it applies to, and the check. Messages are "<path> in body <message>"."""

_LIMITS: Final = (
    ("maxLength", str, "FieldValueTooLong", "Too long: may not be more than {} bytes"),
    ("maxItems", list, "FieldValueTooMany", "Too many: must have at most {} items"),
    ("maxProperties", dict, "FieldValueTooMany", "Too many: must have at most {} items"),
)

_OWN: Final = frozenset(("enum", *(check[0] for check in (*_BODY_CHECKS, *_LIMITS))))
_COMBINATIONS: Final = frozenset(("allOf", "anyOf", "oneOf", "not"))


def literal(value: Any) -> str:
    """A value for a message: scalars as JSON, lists and objects by type."""
    return f'"{type_name(value)}"' if isinstance(value, (dict, list)) else encode(value).decode()


def _invalid(path: str, value: Any, why: str) -> Cause:
    where = path or "<nil>"
    return Cause(where, f"Invalid value: {literal(value)}: {where} in body {why}")


def is_unchanged(value: Any, before: Any) -> bool:
    """Return True if ``value`` equals ``before``, types included; ``before`` is None for a new value."""
    # In Python, 1 == 1.0 == True, so compare encodings too. Encoding is slow, so it comes last.
    return before is not None and bool(value == before) and encode(value) == encode(before)


def counterpart(item: Any, before: Any, schema: JsonObject) -> Any:
    """The earlier state of a list item; None if the list is not of type map, or the item is new."""
    keys = schema.get("x-kubernetes-list-map-keys")
    if not keys or not isinstance(before, list) or not isinstance(item, dict):
        return None
    matches = (old for old in before if isinstance(old, dict) and all(old.get(key) == item.get(key) for key in keys))
    return next(matches, None)


def violations(value: Any, schema: JsonObject, path: str, before: Any = None) -> Iterator[Cause]:
    """Violations of ``schema`` by the parts of ``value`` that differ from ``before``.

    ``path`` is the value's path, for messages; ``before`` is None for a new value.
    """
    if (value is None and schema.get("nullable")) or is_unchanged(value, before):
        return
    wrong_type = _wrong_type(value, schema)
    if wrong_type:
        yield Cause(
            path or "<nil>",
            f"Invalid value: {literal(value)}: {path or '<nil>'} in body must be of type {wrong_type}: "
            f'"{type_name(value)}"',
            "FieldValueTypeInvalid",
        )
        # Other checks need the right type.
        return
    # A fast path: most parts of a schema have none of these keywords.
    if not _OWN.isdisjoint(schema):
        yield from _own_violations(value, schema, path)
    if not _COMBINATIONS.isdisjoint(schema):
        yield from _combined_violations(value, schema, path)
    if isinstance(value, dict):
        yield from _object_violations(value, schema, path, before)
    elif isinstance(value, list):
        yield from _list_violations(value, schema, path, before)


def _wrong_type(value: Any, schema: JsonObject) -> str | None:
    if schema.get("x-kubernetes-int-or-string"):
        return None if type_name(value) in {"integer", "string"} else "integer,string"
    wanted = schema.get("type")
    # Integers are numbers too.
    fits = {type_name(value), "number"} if type_name(value) == "integer" else {type_name(value)}
    return wanted if wanted and wanted not in fits else None


def _own_violations(value: Any, schema: JsonObject, path: str) -> Iterator[Cause]:
    for keyword, types, check in _BODY_CHECKS:
        # In Python, bool is a subtype of int.
        if keyword in schema and isinstance(value, types) and not isinstance(value, bool):
            why = check(schema[keyword], value, schema)
            if why:
                yield _invalid(path, value, why)
    for keyword, kind, reason, message in _LIMITS:
        if keyword in schema and isinstance(value, kind) and len(value) > schema[keyword]:
            yield Cause(path, message.format(schema[keyword]), reason)
    if "enum" in schema and value not in schema["enum"]:
        supported = ", ".join(encode(choice).decode() for choice in schema["enum"])
        yield Cause(
            path, f"Unsupported value: {literal(value)}: supported values: {supported}", "FieldValueNotSupported"
        )


def _combined_violations(value: Any, schema: JsonObject, path: str) -> Iterator[Cause]:
    for part in schema.get("allOf", ()):
        yield from violations(value, part, path)
    if "anyOf" in schema and not any(_fits(value, part) for part in schema["anyOf"]):
        yield _invalid(path, value, "must validate at least one schema (anyOf)")
    if "oneOf" in schema and sum(_fits(value, part) for part in schema["oneOf"]) != 1:
        yield _invalid(path, value, "must validate one and only one schema (oneOf)")
    if "not" in schema and _fits(value, schema["not"]):
        yield _invalid(path, value, "must not validate the schema (not)")


def _fits(value: Any, schema: JsonObject) -> bool:
    return next(violations(value, schema, ""), None) is None


def _object_violations(value: JsonObject, schema: JsonObject, path: str, before: Any) -> Iterator[Cause]:
    old = before if isinstance(before, dict) else {}
    properties = schema.get("properties") or {}
    additional = schema.get("additionalProperties")
    for name in schema.get("required", ()):
        if name not in value:
            yield Cause(f"{path}.{name}" if path else name, "Required value", "FieldValueRequired")
    for name, inner in value.items():
        rule = properties.get(name, additional)
        if isinstance(rule, dict):
            yield from violations(inner, rule, f"{path}.{name}" if path else name, old.get(name))


def _list_violations(value: list[Any], schema: JsonObject, path: str, before: Any) -> Iterator[Cause]:
    items = schema.get("items")
    if isinstance(items, dict):
        for index, inner in enumerate(value):
            yield from violations(inner, items, f"{path}[{index}]", counterpart(inner, before, schema))
    identities: set[bytes] = set()
    for index, inner in enumerate(value):
        identity = _identity(inner, schema)
        if identity is not None and identity in identities:
            yield Cause(f"{path}[{index}]", f"Duplicate value: {identity.decode()}", "FieldValueDuplicate")
        elif identity is not None:
            identities.add(identity)


def _identity(item: Any, schema: JsonObject) -> bytes | None:
    """The encoded part of a list item that must be unique in the list; None if there is none."""
    kind = schema.get("x-kubernetes-list-type")
    # Encoded, because lists and dicts are not hashable.
    if kind == "set" or schema.get("uniqueItems"):
        return encode(item)
    if kind == "map" and isinstance(item, dict):
        return encode({key: item.get(key) for key in schema.get("x-kubernetes-list-map-keys", ())})
    return None
