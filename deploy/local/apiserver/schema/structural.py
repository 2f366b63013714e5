"""The structural schema of a custom resource: defaults, pruning of unknown fields, and validation.

- The order is Kubernetes': prune, default, validate. The schema does not apply to the object's own ``apiVersion``,
  ``kind`` and ``metadata``.
- Values are never changed in place; results may share unchanged parts with the input.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

from deploy.local.apiserver.apimachinery.errors import Cause
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject
from deploy.local.apiserver.schema.cel import EvaluationError, UnknownExpressionError, compiled, escaped, evaluate
from deploy.local.apiserver.schema.validation import counterpart, is_unchanged, literal, violations

_RULES: Final = "x-kubernetes-validations"


def broken_rules(value: Any, schema: JsonObject, before: Any, path: str = "") -> Iterator[Cause]:
    """A cause for every CEL rule in ``schema`` that ``value`` violates; ``before`` is None for a new value."""
    for rule in schema.get(_RULES, ()):
        yield from _evaluate_rule(rule, value, before, path)
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


def _evaluate_rule(rule: JsonObject, value: Any, before: Any, path: str) -> Iterator[Cause]:
    text: str = rule["rule"]
    is_transition = "oldSelf" in text
    # A transition rule needs an earlier value. Other rules are skipped for unchanged values.
    if before is None if is_transition else is_unchanged(value, before):
        return
    try:
        expression = compiled(text)
    except UnknownExpressionError:
        # The client got a warning when it wrote the CRD; see `unsupported_rules`.
        return
    scope = {"self": value, "oldSelf": before} if is_transition else {"self": value}
    # Escaping copies the whole value, and only a text with `__` can use an escaped name.
    if "__" in text:
        scope = {name: escaped(inner) for name, inner in scope.items()}
    why = rule.get("message") or f"failed rule: {text}"
    try:
        outcome = evaluate(expression, scope)
    except EvaluationError as error:
        outcome, why = False, f"rule evaluation error: {error}: {text}"
    if outcome is not True:
        # `fieldPath` begins with a dot, which is wrong without another path before it.
        where = path + rule.get("fieldPath", "") if path else rule.get("fieldPath", "").lstrip(".")
        yield Cause(
            where or "<nil>", f"Invalid value: {literal(value)}: {why}", rule.get("reason", "FieldValueInvalid")
        )


def unsupported_rules(schema: Any) -> Iterator[str]:
    """A warning for every CEL rule in ``schema`` that this server cannot evaluate."""
    if isinstance(schema, list):
        for inner in schema:
            yield from unsupported_rules(inner)
    if not isinstance(schema, dict):
        return
    for rule in schema.get(_RULES, ()):
        try:
            compiled(rule["rule"])
        except UnknownExpressionError as error:
            yield f"rule {rule['rule']!r} is not evaluated by this server: {error}"
    for name, inner in schema.items():
        if name != _RULES:
            yield from unsupported_rules(inner)


_TYPE_META: Final = ("apiVersion", "kind", "metadata")
_PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"
_EMBEDDED: Final = "x-kubernetes-embedded-resource"


@dataclass(frozen=True, slots=True)
class Schema:
    """One version's ``openAPIV3Schema``."""

    document: JsonObject

    @property
    def _own_schema(self) -> JsonObject:
        return {**self.document, "properties": _without(self.document.get("properties", {}), _TYPE_META)}

    def without_unknown(self, body: JsonObject) -> tuple[JsonObject, list[str]]:
        """``body`` without unknown fields, and the paths of these fields."""
        unknown: list[str] = []
        # The object's own metadata follows its own rules, not the schema.
        root = {**self.document, "properties": {**self.document.get("properties", {}), **_open(_TYPE_META)}}
        return _prune(body, root, "", unknown), unknown

    def with_defaults(self, body: JsonObject) -> JsonObject:
        """``body`` with the schema's defaults for fields that are absent (or null and not nullable)."""
        result: JsonObject = _default(body, self._own_schema)
        return result

    def causes(self, body: JsonObject, before: JsonObject | None) -> list[Cause]:
        """Violations of the schema by ``body``; ``before`` is the state that it replaces."""
        root, own = self._own_schema, _without(body, _TYPE_META)
        # Rules rely on the schema's types, so they are evaluated only for an object that matches it.
        return list(violations(own, root, "", before)) or list(broken_rules(body, root, before))


def _open(names: tuple[str, ...]) -> JsonObject:
    return {name: {_PRESERVE: True} for name in names}


def _without(fields: JsonObject, names: tuple[str, ...]) -> JsonObject:
    return {name: inner for name, inner in fields.items() if name not in names}


def _prune(value: Any, schema: JsonObject, path: str, unknown: list[str]) -> Any:
    if isinstance(value, list):
        items = schema.get("items")
        if not isinstance(items, dict):
            return value
        return [_prune(inner, items, f"{path}[{index}]", unknown) for index, inner in enumerate(value)]
    if not isinstance(value, dict):
        return value
    return dict(_known_fields(value, schema, path, unknown))


def _known_fields(value: JsonObject, schema: JsonObject, path: str, unknown: list[str]) -> Iterator[tuple[str, Any]]:
    properties = schema.get("properties") or {}
    # An embedded object has these fields even if its schema does not list them.
    if schema.get(_EMBEDDED):
        properties = {**_open(_TYPE_META), **properties}
    additional = schema.get("additionalProperties")
    for key, inner in value.items():
        where = f"{path}.{key}" if path else key
        if key in properties:
            yield key, _prune(inner, properties[key], where, unknown)
        elif isinstance(additional, dict):
            yield key, _prune(inner, additional, where, unknown)
        # Fields inside a preserved one are preserved too.
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
        # If it is not nullable, null is replaced by the default.
        elif inner is not None or rule.get("nullable") or "default" not in rule:
            result[key] = _default(inner, rule)
    for key, rule in properties.items():
        if key not in result and "default" in rule:
            # A copy: the default itself belongs to the schema.
            result[key] = _default(deepcopy(rule["default"]), rule)
    return result
