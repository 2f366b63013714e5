"""The CEL rules of a schema (``x-kubernetes-validations``), evaluated where they stand. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from deploy.local.apiserver.apimachinery.errors import Cause
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject
from deploy.local.apiserver.schema.cel import EvaluationError, UnknownExpressionError, compiled, escaped, evaluate
from deploy.local.apiserver.schema.validation import counterpart, is_unchanged, shown

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
