"""The part of the Common Expression Language in which rules of CustomResourceDefinitions are usually written. Pure.

Known: literals, lists, ``self``, ``oldSelf``, fields, indices, ``has``, ``size``, ``string``, ``int``, ``double``,
``quantity``, ``isQuantity``, the macros ``all``, ``exists`` and ``map``, ``startsWith``, ``endsWith``, ``contains``,
``matches``, ``compareTo``, ``isGreaterThan``, ``isLessThan``, arithmetic, comparison, ``in``, ``&&``, ``||``, ``!`` and
``?:``.

Rules that hold here:

- A text becomes a function once (``compiled``); one with anything unknown is refused then, not later.
- What fails while evaluating (a missing key, say) raises ``EvaluationError``, unless ``&&`` or ``||`` decide without.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from deploy.local.apiserver.apimachinery.jsonvalue import encode
from protocol.units import QuantityError, parse_quantity

Scope = Mapping[str, Any]
Expression = Callable[[Scope], Any]
"""The value of a compiled text in a scope of names."""


class UnknownExpressionError(ValueError):
    """A text is not of the part of CEL that is known here."""


class EvaluationError(Exception):
    """An expression has no value for this object."""


_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<number>\d+\.\d+|\d+)|(?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')"""
    r"""|(?P<name>[A-Za-z_]\w*)|(?P<mark>&&|\|\||[<>=!]=|[-+*/%<>!?:.,()\[\]]))"""
)
_CONSTANTS: Final = {"true": True, "false": False, "null": None}


def _less(left: Any, right: Any) -> bool:
    return bool(left < right)


def _divided(left: Any, right: Any) -> Any:
    if isinstance(left, float) or isinstance(right, float):
        return left / right
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


_BINARY: Final[tuple[dict[str, Callable[[Any, Any], Any]], ...]] = (
    {
        "==": lambda left, right: left == right,
        "!=": lambda left, right: left != right,
        "<": _less,
        "<=": lambda left, right: not _less(right, left),
        ">": lambda left, right: _less(right, left),
        ">=": lambda left, right: not _less(left, right),
        "in": lambda left, right: left in right,
    },
    {"+": lambda left, right: left + right, "-": lambda left, right: left - right},
    {
        "*": lambda left, right: left * right,
        "/": _divided,
        "%": lambda left, right: left - right * _divided(left, right),
    },
)
"""Operators by precedence, the weakest first (after ``?:``, ``||`` and ``&&``)."""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else encode(value).decode()


def _is_quantity(value: Any) -> bool:
    try:
        parse_quantity(value)
    except QuantityError:
        return False
    return True


_FUNCTIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "size": len,
    "string": _text,
    "int": int,
    "double": float,
    "quantity": parse_quantity,
    "isQuantity": _is_quantity,
}
_METHODS: Final[dict[str, Callable[..., Any]]] = {
    "size": len,
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": lambda text, part: part in text,
    "matches": lambda text, pattern: re.search(pattern, text) is not None,
    "compareTo": lambda left, right: (left > right) - (left < right),
    "isGreaterThan": lambda left, right: left > right,
    "isLessThan": _less,
    "asInteger": int,
}
_MACROS: Final[dict[str, Callable[[list[Any]], Any]]] = {"all": all, "exists": any, "map": list}
_FAILURES: Final = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError)


@lru_cache(maxsize=512)
def compiled(text: str) -> Expression:
    """The function of a text. Raises ``UnknownExpressionError``."""
    parser = _Parser(text)
    expression = parser.ternary()
    parser.expect_end()
    return expression


def evaluate(expression: Expression, scope: Scope) -> Any:
    """The value in ``scope``. Raises ``EvaluationError``."""
    try:
        return expression(scope)
    except _FAILURES as error:
        raise EvaluationError(f"{type(error).__name__}: {error}") from None


class _Parser:
    """A recursive descent over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if not match or match.lastgroup is None:
                raise UnknownExpressionError(f"cannot read {text[position:]!r}")
            self._tokens.append((match.lastgroup, match[match.lastgroup]))
            position = match.end()
        self._at = 0

    def _peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _take(self) -> tuple[str, str]:
        if self._at >= len(self._tokens):
            raise UnknownExpressionError(f"{self._text!r} ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _accept(self, mark: str) -> bool:
        found = self._at < len(self._tokens) and self._tokens[self._at] in {("mark", mark), ("name", mark)}
        self._at += found
        return found

    def _expect(self, mark: str) -> None:
        if not self._accept(mark):
            raise UnknownExpressionError(f"expected {mark!r}, found {self._peek()!r} in {self._text!r}")

    def expect_end(self) -> None:
        """Raises where anything is left."""
        if self._at < len(self._tokens):
            raise UnknownExpressionError(f"unexpected {self._peek()!r} in {self._text!r}")

    def ternary(self) -> Expression:
        """The weakest level: ``condition ? one : other``."""
        condition = self._logic("||", lambda: self._logic("&&", lambda: self._binary(0)))
        if not self._accept("?"):
            return condition
        one = self.ternary()
        self._expect(":")
        other = self.ternary()
        return lambda scope: one(scope) if condition(scope) else other(scope)

    def _logic(self, mark: str, weaker: Callable[[], Expression]) -> Expression:
        parts = [weaker()]
        while self._accept(mark):
            parts.append(weaker())
        return parts[0] if len(parts) == 1 else _decided(parts, by=mark == "||")

    def _binary(self, level: int) -> Expression:
        if level == len(_BINARY):
            return self._unary()
        left = self._binary(level + 1)
        while self._peek() in _BINARY[level]:
            operator = _BINARY[level][self._take()[1]]
            left = _combined(operator, left, self._binary(level + 1))
        return left

    def _unary(self) -> Expression:
        if self._accept("!"):
            negated = self._unary()
            return lambda scope: not negated(scope)
        if self._accept("-"):
            positive = self._unary()
            return lambda scope: -positive(scope)
        value = self._primary()
        while self._peek() in {".", "["}:
            if self._accept("["):
                value = _indexed(value, self.ternary())
                self._expect("]")
            else:
                self._expect(".")
                value = self._member(value)
        return value

    def _member(self, value: Expression) -> Expression:
        kind, name = self._take()
        if kind != "name":
            raise UnknownExpressionError(f"expected a name after '.', found {name!r}")
        if not self._accept("("):
            return lambda scope: value(scope)[name]
        if name in _MACROS:
            return self._macro(value, _MACROS[name])
        method = _METHODS.get(name)
        if method is None:
            raise UnknownExpressionError(f"unknown method {name!r}")
        arguments = self._list(")")
        return lambda scope: method(value(scope), *(argument(scope) for argument in arguments))

    def _macro(self, value: Expression, gather: Callable[[list[Any]], Any]) -> Expression:
        variable = self._take()[1]
        self._expect(",")
        body = self.ternary()
        self._expect(")")
        return lambda scope: gather([body({**scope, variable: item}) for item in value(scope)])

    def _list(self, end: str) -> list[Expression]:
        items: list[Expression] = []
        while not self._accept(end):
            if items:
                self._expect(",")
            items.append(self.ternary())
        return items

    def _primary(self) -> Expression:
        kind, text = self._take()
        if kind == "number":
            number = float(text) if "." in text else int(text)
            return lambda _: number
        if kind == "string":
            plain = re.sub(r"\\(.)", r"\1", text[1:-1])
            return lambda _: plain
        if kind == "name":
            return self._named(text)
        if text == "(":
            inner = self.ternary()
            self._expect(")")
            return inner
        if text == "[":
            items = self._list("]")
            return lambda scope: [item(scope) for item in items]
        raise UnknownExpressionError(f"unexpected {text!r} in {self._text!r}")

    def _named(self, name: str) -> Expression:
        if name in _CONSTANTS:
            constant = _CONSTANTS[name]
            return lambda _: constant
        if not self._accept("("):
            return lambda scope: scope[name]
        (argument,) = self._list(")") or (None,)
        if argument is None or (name != "has" and name not in _FUNCTIONS):
            raise UnknownExpressionError(f"unknown function {name!r}")
        return _present(argument) if name == "has" else _called(_FUNCTIONS[name], argument)


def _decided(parts: list[Expression], by: bool) -> Expression:
    """``||`` (decided by true) and ``&&`` (by false): one part that decides makes failures of the others irrelevant."""

    def decide(scope: Scope) -> Any:
        failure: Exception | None = None
        for part in parts:
            try:
                if bool(part(scope)) is by:
                    return by
            except _FAILURES as error:
                failure = error
        if failure is not None:
            raise failure
        return not by

    return decide


def _combined(operator: Callable[[Any, Any], Any], left: Expression, right: Expression) -> Expression:
    return lambda scope: operator(left(scope), right(scope))


def _indexed(value: Expression, index: Expression) -> Expression:
    return lambda scope: value(scope)[index(scope)]


def _called(function: Callable[[Any], Any], argument: Expression) -> Expression:
    return lambda scope: function(argument(scope))


def _present(argument: Expression) -> Expression:
    def present(scope: Scope) -> bool:
        try:
            argument(scope)
        except LookupError:
            return False
        return True

    return present
