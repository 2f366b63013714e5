"""Rules in the Common Expression Language: Google's implementation with Kubernetes' quantities. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final, Protocol

from cel_expr_python import cel  # type: ignore[import-untyped]  # its stubs lack the py.typed marker
from cel_expr_python.ext import ext_optional, ext_strings  # type: ignore[import-untyped]  # as above

from deploy.local.apiserver.apimachinery.jsonvalue import encode
from protocol.units import QuantityError, parse_quantity

Scope = Mapping[str, Any]


class Expression(Protocol):
    """A compiled expression."""

    def eval(self, *, data: Scope) -> Any:
        """Evaluate with the variables ``data``; the result has ``type()`` and ``plain_value()``."""


_VALUE: Final = "quantity"
_TYPE: Final = cel.Type
# CEL cannot pass opaque values between functions, so a quantity is a map with its exact value as a fraction.
_QUANTITY: Final = _TYPE.Map(_TYPE.STRING, _TYPE.STRING)
# `__` comes first: the other replacements contain it.
_ESCAPES: Final = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
_RESERVED: Final = frozenset({
    "true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let",
    "loop", "package", "namespace", "return", "var", "void", "while",
})  # fmt: skip


class UnknownExpressionError(ValueError):
    """The text is not CEL, or uses an unknown name."""


class EvaluationError(Exception):
    """The expression cannot be evaluated for this object."""


def is_quantity(text: Any) -> bool:
    """Return True if a value is a Kubernetes quantity."""
    try:
        parse_quantity(text)
    except QuantityError:
        return False
    return True


def _quantity(value: Fraction) -> dict[str, str]:
    return {_VALUE: str(value)}


def _number(quantity: Mapping[str, Any]) -> Fraction:
    raw = quantity[_VALUE]
    # CEL wraps strings in its own type.
    return Fraction(raw if isinstance(raw, str) else raw.value())


def _as_integer(quantity: Mapping[str, Any]) -> int:
    value = _number(quantity)
    if value.denominator != 1:
        raise ValueError("the quantity is not a whole number")
    return value.numerator


def _sign(value: Fraction) -> int:
    return (value > 0) - (value < 0)


def _function(
    name: str, returns: cel.Type, parameters: list[cel.Type], impl: Callable[..., Any], *, member: bool = True
) -> cel.FunctionDecl:
    overload = cel.Overload(f"k8s_{name}", returns, parameters, member, impl)
    return cel.FunctionDecl(name, [overload])


_PAIR: Final = [_QUANTITY, _QUANTITY]
_QUANTITIES: Final = cel.CelExtension(
    "kubernetes.quantity",
    [
        _function("quantity", _QUANTITY, [_TYPE.STRING], lambda text: _quantity(parse_quantity(text)), member=False),
        _function("isQuantity", _TYPE.BOOL, [_TYPE.STRING], is_quantity, member=False),
        _function("compareTo", _TYPE.INT, _PAIR, lambda one, other: _sign(_number(one) - _number(other))),
        _function("isGreaterThan", _TYPE.BOOL, _PAIR, lambda one, other: _number(one) > _number(other)),
        _function("isLessThan", _TYPE.BOOL, _PAIR, lambda one, other: _number(one) < _number(other)),
        _function("add", _QUANTITY, _PAIR, lambda one, other: _quantity(_number(one) + _number(other))),
        _function("sub", _QUANTITY, _PAIR, lambda one, other: _quantity(_number(one) - _number(other))),
        _function("sign", _TYPE.INT, [_QUANTITY], lambda one: _sign(_number(one)), member=False),
        _function("isInteger", _TYPE.BOOL, [_QUANTITY], lambda one: _number(one).denominator == 1),
        _function("asInteger", _TYPE.INT, [_QUANTITY], _as_integer),
        _function("asApproximateFloat", _TYPE.DOUBLE, [_QUANTITY], lambda one: float(_number(one))),
    ],
)
_OF_RULES: Final = ("self", "oldSelf")


@lru_cache(maxsize=4)
def _environment(names: tuple[str, ...]) -> Any:
    extensions = [_QUANTITIES, ext_strings.ExtStrings(), ext_optional.ExtOptional()]
    return cel.NewEnv(variables=dict.fromkeys(names, _TYPE.DYN), extensions=extensions)


_SHORT: Final = 128
"""Results for texts up to this length are cached."""


# Cached: rules are evaluated with every write of an object, but change only with the CRD.
@lru_cache(maxsize=512)
def compiled(text: str, names: tuple[str, ...] = _OF_RULES) -> Expression:
    """Compile ``text``, which may use the variables ``names``. Raises ``UnknownExpressionError``."""
    try:
        expression: Expression = _environment(names).compile(text)
    except (RuntimeError, TypeError, UnicodeError) as error:
        raise UnknownExpressionError(str(error)) from None
    return expression


def evaluate(expression: Expression, scope: Scope) -> Any:
    """The value of ``expression`` with the variables ``scope``. Raises ``EvaluationError``."""
    try:
        outcome = expression.eval(data=dict(scope))
    # A missing key, an overflow or an exceeded budget raises one of these, or is an error value.
    except (RuntimeError, TypeError, UnicodeError, RecursionError) as error:
        raise EvaluationError(str(error)) from None
    if outcome.type() == _TYPE.ERROR:
        raise EvaluationError(str(outcome.value()))
    return outcome.plain_value()


def matches(pattern: str, text: str) -> bool:
    """Return True if ``text`` contains a match of ``pattern``, in RE2 syntax as in Kubernetes.

    Raises ``EvaluationError`` for an invalid pattern.
    """
    # Long texts are rarely repeated, and would fill the cache.
    return _cached_search(pattern, text) if len(text) <= _SHORT else _search(pattern, text)


def _search(pattern: str, text: str) -> bool:
    try:
        # Python's `re` can take exponential time, and its syntax differs from RE2's.
        expression = compiled(f"self.matches({encode(pattern).decode()})")
    except UnknownExpressionError as error:
        raise EvaluationError(str(error)) from None
    return bool(evaluate(expression, {"self": text}))


_cached_search = lru_cache(maxsize=1024)(_search)  # most writes repeat almost all texts of an object


def escaped(value: Any) -> Any:
    """``value`` with field names escaped as in rules (``__namespace__``)."""
    if isinstance(value, list):
        return [escaped(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {_escaped_name(name): escaped(inner) for name, inner in value.items()}


def _escaped_name(name: str) -> str:
    if name in _RESERVED:
        return f"__{name}__"
    for plain, replacement in _ESCAPES.items():
        name = name.replace(plain, replacement)
    return name
