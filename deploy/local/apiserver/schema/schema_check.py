"""Validation of schemas, so that validating an object with them cannot fail. Pure.

``_KEYWORDS`` has all keywords that this server reads; other keywords are stored but not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from deploy.local.apiserver.apimachinery.errors import Cause
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject
from deploy.local.apiserver.schema.cel import EvaluationError, matches

# An empty type means any type.
_TYPES: Final = frozenset({"object", "array", "string", "integer", "number", "boolean", ""})
_RULE_TEXTS: Final = ("message", "fieldPath", "reason", "messageExpression")

Check = Callable[[Any], str | None]
"""Returns the error in a keyword's value; None if it is valid."""


def _of(*types: type, words: str) -> Check:
    def check(value: Any) -> str | None:
        # In Python a bool is an int.
        fits = isinstance(value, types) and (bool in types or not isinstance(value, bool))
        return None if fits else f"must be {words}"

    return check


def _texts(value: Any) -> str | None:
    fits = isinstance(value, list) and all(isinstance(text, str) for text in value)
    return None if fits else "must be a list of strings"


def _pattern(value: Any) -> str | None:
    if not isinstance(value, str):
        return "must be a string"
    try:
        # A trial match: the engine that will use the pattern must accept it.
        matches(value, "")
    except EvaluationError as error:
        return f"must be a valid regular expression: {error}"
    return None


def _unit(value: Any) -> str | None:
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
    return None if fits else "must be a number greater than zero"


def _rules(value: Any) -> str | None:
    fits = isinstance(value, list) and all(
        isinstance(rule, dict)
        and isinstance(rule.get("rule"), str)
        and all(isinstance(rule.get(name, ""), str) for name in _RULE_TEXTS)
        for rule in value
    )
    return None if fits else "must be a list of rules"


_TEXT: Final = _of(str, words="a string")
_FLAG: Final = _of(bool, words="true or false")
_COUNT: Final = _of(int, words="a whole number")
_NUMBER: Final = _of(int, float, words="a number")

_KEYWORDS: Final[dict[str, Check]] = {
    "type": lambda value: None if isinstance(value, str) and value in _TYPES else "must be a type of JSON",
    "format": _TEXT,
    "description": _TEXT,
    "nullable": _FLAG,
    "minimum": _NUMBER,
    "maximum": _NUMBER,
    "exclusiveMinimum": _FLAG,
    "exclusiveMaximum": _FLAG,
    "multipleOf": _unit,
    "minLength": _COUNT,
    "maxLength": _COUNT,
    "minItems": _COUNT,
    "maxItems": _COUNT,
    "minProperties": _COUNT,
    "maxProperties": _COUNT,
    "uniqueItems": _FLAG,
    "pattern": _pattern,
    "enum": _of(list, words="a list"),
    "required": _texts,
    "x-kubernetes-preserve-unknown-fields": _FLAG,
    "x-kubernetes-embedded-resource": _FLAG,
    "x-kubernetes-int-or-string": _FLAG,
    "x-kubernetes-list-type": _TEXT,
    "x-kubernetes-list-map-keys": _texts,
    "x-kubernetes-validations": _rules,
}


def schema_faults(schema: Any, path: str) -> Iterator[Cause]:
    """Errors in ``schema``, which is at ``path``."""
    if not isinstance(schema, dict):
        yield Cause(path, "Invalid value: must be a schema")
        return
    for keyword, check in _KEYWORDS.items():
        if schema.get(keyword) is not None and (why := check(schema[keyword])):
            yield Cause(f"{path}.{keyword}", f"Invalid value: {why}")
    for where, inner in _inner(schema):
        yield from schema_faults(inner, f"{path}.{where}")


def _inner(schema: JsonObject) -> Iterator[tuple[str, Any]]:
    """Paths and schemas nested in a schema; None for a container of the wrong type."""
    for keyword in ("items", "not", "additionalProperties"):
        # `additionalProperties` may also be true or false.
        if schema.get(keyword) is not None and not isinstance(schema[keyword], bool):
            yield keyword, schema[keyword]
    for keyword in ("allOf", "anyOf", "oneOf"):
        parts = schema.get(keyword)
        if isinstance(parts, list):
            yield from ((f"{keyword}[{index}]", inner) for index, inner in enumerate(parts))
        elif parts is not None:
            yield keyword, None
    properties = schema.get("properties")
    if isinstance(properties, dict):
        yield from ((f"properties[{name}]", inner) for name, inner in properties.items())
    elif properties is not None:
        yield "properties", None
