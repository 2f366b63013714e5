"""The structural schema of a custom resource: defaults, pruning of unknown fields, and validation.

- The order is Kubernetes': prune, then default, then validate. The schema does not apply to
  ``apiVersion``, ``kind`` and ``metadata`` of the object itself.
- Values are never changed in place; parts that need no change may be shared with the input.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from deploy.local.apiserver.apimachinery.errors import Cause
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject, deep_copy
from deploy.local.apiserver.schema.cel import EvaluationError, UnknownExpressionError, compiled, escaped, evaluate
from deploy.local.apiserver.schema.validation import counterpart, is_unchanged, shown, violations

_RULES: Final = "x-kubernetes-validations"


def broken_rules(value: Any, schema: JsonObject, before: Any, path: str = "") -> Iterator[Cause]:
    """A cause for every rule below ``schema`` that ``value`` breaks; ``before`` is None if there was nothing."""
    for rule in schema.get(_RULES, ()):
        yield from _checked(rule, value, before, path)
    if isinstance(value, dict):
        properties = schema.get("properties") or {}
        for name, inner in value.items():
            below = properties.get(name, schema.get("additionalProperties"))
            if isinstance(below, dict):
                old = before.get(name) if isinstance(before, dict) else None
                yield from broken_rules(inner, below, old, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for index, inner in enumerate(value):
            old = counterpart(inner, before, schema)
            yield from broken_rules(inner, schema["items"], old, f"{path}[{index}]")


def _checked(rule: JsonObject, value: Any, before: Any, path: str) -> Iterator[Cause]:
    text: str = rule["rule"]
    about_change = "oldSelf" in text
    # A rule about a change needs an earlier value. Any other is skipped for a value that stays as it was.
    if before is None if about_change else is_unchanged(value, before):
        return
    try:
        expression = compiled(text)
    except UnknownExpressionError:
        # The client was warned when it wrote the definition; see `unreadable`.
        return
    scope = {"self": value, "oldSelf": before} if about_change else {"self": value}
    # Only a text with `__` can name an escaped field, and escaping copies the whole value.
    if "__" in text:
        scope = {name: escaped(inner) for name, inner in scope.items()}
    why = rule.get("message") or f"failed rule: {text}"
    try:
        outcome = evaluate(expression, scope)
    except EvaluationError as error:
        outcome, why = False, f"rule evaluation error: {error}: {text}"
    if outcome is not True:
        # `fieldPath` begins with a dot, which only fits behind another path.
        where = path + rule.get("fieldPath", "") if path else rule.get("fieldPath", "").lstrip(".")
        yield Cause(where or "<nil>", f"Invalid value: {shown(value)}: {why}", rule.get("reason", "FieldValueInvalid"))


def unreadable(schema: Any) -> Iterator[str]:
    """Every rule below ``schema`` that cannot be evaluated here, with the reason."""
    if isinstance(schema, list):
        for inner in schema:
            yield from unreadable(inner)
    if not isinstance(schema, dict):
        return
    for rule in schema.get(_RULES, ()):
        try:
            compiled(rule["rule"])
        except UnknownExpressionError as error:
            yield f"rule {rule['rule']!r} is not evaluated by this server: {error}"
    for name, inner in schema.items():
        if name != _RULES:
            yield from unreadable(inner)


_TYPE_META: Final = ("apiVersion", "kind", "metadata")
_PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"
_EMBEDDED: Final = "x-kubernetes-embedded-resource"


@dataclass(frozen=True, slots=True)
class Schema:
    """One version's ``openAPIV3Schema``."""

    document: JsonObject

    def without_unknown(self, body: JsonObject) -> tuple[JsonObject, list[str]]:
        """``body`` without the fields that the schema does not know, and the paths of those fields."""
        unknown: list[str] = []
        # The metadata of the object itself follows rules of its own, whatever the schema says about it.
        root = {**self.document, "properties": {**self.document.get("properties", {}), **_open(_TYPE_META)}}
        return _prune(body, root, "", unknown), unknown

    def with_defaults(self, body: JsonObject) -> JsonObject:
        """``body`` with the schema's defaults for fields that are absent (or null and not nullable)."""
        root = {**self.document, "properties": _without(self.document.get("properties", {}), _TYPE_META)}
        result: JsonObject = _default(body, root)
        return result

    def causes(self, body: JsonObject, before: JsonObject | None) -> list[Cause]:
        """Violations of the schema by ``body``; ``before`` is the state that it replaces."""
        root = {**self.document, "properties": _without(self.document.get("properties", {}), _TYPE_META)}
        own = {key: body[key] for key in body if key not in _TYPE_META}
        # Rules count on the types of the schema, so they are evaluated only for an object that fits it.
        return list(violations(own, root, "", before)) or list(broken_rules(body, root, before))


def _open(names: tuple[str, ...]) -> JsonObject:
    return {name: {_PRESERVE: True} for name in names}


def _without(properties: JsonObject, names: tuple[str, ...]) -> JsonObject:
    return {name: inner for name, inner in properties.items() if name not in names}


def _prune(value: Any, schema: JsonObject, path: str, unknown: list[str]) -> Any:
    if isinstance(value, list):
        items = schema.get("items")
        if not isinstance(items, dict):
            return value
        return [_prune(inner, items, f"{path}[{index}]", unknown) for index, inner in enumerate(value)]
    if not isinstance(value, dict):
        return value
    return dict(_kept(value, schema, path, unknown))


def _kept(value: JsonObject, schema: JsonObject, path: str, unknown: list[str]) -> Iterator[tuple[str, Any]]:
    properties = schema.get("properties") or {}
    # An embedded object has these fields, even if its schema does not name them.
    if schema.get(_EMBEDDED):
        properties = {**_open(_TYPE_META), **properties}
    additional = schema.get("additionalProperties")
    for key, inner in value.items():
        where = f"{path}.{key}" if path else key
        if key in properties:
            yield key, _prune(inner, properties[key], where, unknown)
        elif isinstance(additional, dict):
            yield key, _prune(inner, additional, where, unknown)
        # Fields inside a preserved one are preserved as well.
        elif additional is True or schema.get(_PRESERVE):
            yield key, inner
        else:
            unknown.append(where)


def _default(value: Any, schema: JsonObject) -> Any:
    if isinstance(value, list):
        items = schema.get("items")
        return [_default(inner, items) for inner in value] if isinstance(items, dict) else value
    if not isinstance(value, dict):
        return value
    properties: JsonObject = schema.get("properties") or {}
    additional = schema.get("additionalProperties")
    result: JsonObject = {}
    for key, inner in value.items():
        rule = properties.get(key, additional)
        if not isinstance(rule, dict):
            result[key] = inner
        # A null that the schema does not allow counts as absent if there is a default.
        elif inner is not None or rule.get("nullable") or "default" not in rule:
            result[key] = _default(inner, rule)
    for key, rule in properties.items():
        if key not in result and "default" in rule:
            # The default belongs to the schema; the object gets a copy.
            result[key] = _default(deep_copy(rule["default"]), rule)
    return result
