"""Label and field selectors: parsed once, then applied to every object.

A label selector is a comma-separated list of ``key``, ``!key``, ``key=value``, ``key!=value``, ``key in (a,b)`` and
``key notin (a,b)``; a field selector has only ``=``, ``==`` and ``!=``. An object must match every part.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from deploy.local.apiserver.apimachinery.errors import bad_request
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject, field, text_at

Matcher = Callable[[JsonObject], bool]
"""Returns True if an object is selected."""

_KEY: Final = r"[A-Za-z0-9]([A-Za-z0-9_./-]*[A-Za-z0-9])?"
_VALUE: Final = r"([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?"
# Possessive quantifiers: a hostile selector cannot cause catastrophic backtracking.
_SET: Final = re.compile(rf"\s*+(?P<key>{_KEY})\s++(?P<op>in|notin)\s*+\((?P<values>[^()]*+)\)\s*+")
_EQUAL: Final = re.compile(rf"\s*+(?P<key>{_KEY})\s*+(?P<op>==|=|!=)\s*+(?P<value>{_VALUE})\s*+")
_EXISTS: Final = re.compile(rf"\s*+(?P<op>!?)\s*+(?P<key>{_KEY})\s*+")
_ONE_VALUE: Final = re.compile(_VALUE)
_ONE_FIELD: Final = re.compile(r"(?P<key>[^=!]++)(?P<op>==|=|!=)\s*+(?P<value>.*)")


NAME: Final = "metadata.name"

Pin = tuple[str, str]
"""A field's dotted path, and the value that the field has in every selected object."""


@dataclass(frozen=True, slots=True)
class SelectorRequirement:
    """One requirement of a label selector: the label must be one of ``values`` or, unless ``wanted``, must not.

    If ``values`` is None, it is about the presence of the label, with any value.
    """

    key: str
    values: frozenset[str] | None
    wanted: bool

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return True if ``labels`` satisfy the requirement."""
        if self.values is None:
            return (self.key in labels) is self.wanted
        # As in Kubernetes, `!=` and `notin` also match objects without the label.
        return (labels.get(self.key) in self.values) is self.wanted


def parse_labels(text: str) -> tuple[SelectorRequirement, ...]:
    """Parse a label selector. Raises a 400 with the offset of the error."""
    parts: list[SelectorRequirement] = []
    position = 0
    while position < len(text):
        match, requirement = _next_requirement(text, position)
        parts.append(requirement)
        position = match.end()
        if position < len(text):
            if text[position] != ",":
                raise _unreadable(text, position)
            position += 1
    return tuple(parts)


def _next_requirement(text: str, position: int) -> tuple[re.Match[str], SelectorRequirement]:
    # `in` and `notin` come first: the expression for a bare key would match their beginning.
    if match := _SET.match(text, position):
        values = frozenset(value.strip() for value in match["values"].split(","))
        if not all(_ONE_VALUE.fullmatch(value) for value in values):
            raise _unreadable(text, match.start("values"))
        return match, SelectorRequirement(match["key"], values, wanted=match["op"] == "in")
    if match := _EQUAL.match(text, position):
        return match, SelectorRequirement(match["key"], frozenset((match["value"],)), wanted=match["op"] != "!=")
    if match := _EXISTS.match(text, position):
        return match, SelectorRequirement(match["key"], None, wanted=not match["op"])
    raise _unreadable(text, position)


def _unreadable(text: str, position: int) -> Exception:
    return bad_request(f"unable to parse requirement: found {text[position:]!r} at offset {position} of {text!r}")


def label_matcher(text: str) -> Matcher:
    """Matcher of a label selector. Raises a 400 if it is invalid."""
    parts = parse_labels(text)

    def matches(body: JsonObject) -> bool:
        labels = field(body, ("metadata", "labels")) or {}
        return all(part.matches(labels) for part in parts)

    return matches


def field_matcher(text: str, selectable: Collection[str]) -> Matcher:
    """Matcher of a field selector. Raises a 400 if it is invalid, or has a path that is not in ``selectable``."""
    parts = _field_parts(text)
    for key, _, _ in parts:
        if key not in selectable:
            raise bad_request(f"field label not supported: {key}")

    def matches(body: JsonObject) -> bool:
        return all((text_at(body, path) == value) is wanted for path, value, wanted in parts)

    return matches


def _field_parts(text: str) -> list[tuple[str, str, bool]]:
    """The parts of a field selector: path, value, and True if the values must be equal. Raises a 400."""
    parts: list[tuple[str, str, bool]] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        match = _ONE_FIELD.fullmatch(part)
        if not match:
            raise bad_request(f"invalid selector: {text!r}; can't understand {part!r}")
        parts.append((match["key"].rstrip(), match["value"], match["op"] != "!="))
    return parts


def pinned(fields: str) -> Pin | None:
    """The most selective equality of a field selector; None if it has none. Raises a 400.

    >>> pinned("spec.nodeName=n1,metadata.name=db"), pinned("status.phase!=Running"), pinned("")
    (('metadata.name', 'db'), None, None)
    """
    pins = [(key, value) for key, value, wanted in _field_parts(fields) if wanted]
    # A name selects at most one object per namespace.
    return min(pins, key=lambda pin: pin[0] != NAME, default=None)


def matcher(labels: str, fields: str, selectable: Collection[str]) -> Matcher | None:
    """Matcher of a label and a field selector; None if both are empty. Raises a 400."""
    matchers = [label_matcher(labels)] if labels.strip() else []
    if fields.strip():
        matchers.append(field_matcher(fields, selectable))
    if not matchers:
        return None
    return matchers[0] if len(matchers) == 1 else lambda body: all(selects(body) for selects in matchers)
