"""Rules of CustomResourceDefinitions, by what a real API server answers to each."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.local.apiserver.schema.cel import EvaluationError, UnknownExpressionError, compiled, escaped, evaluate
from deploy.local.apiserver.schema.structural import broken_rules
from tests.examples import examples

SELF: dict[str, Any] = {
    "min": "250m",
    "max": 4,
    "name": "vm-1",
    "list": [1, 2, 3],
    "ports": [{"name": "http"}, {"name": "metrics"}],
    "inner": {"on": True},
    "half": 0.5,
    "timeout": "90m",
    "my-key": 1,
}
CPU_RULE = (
    "quantity(string(self.min)).compareTo(quantity(string(self.use))) <= 0 && "
    "quantity(string(self.use)).compareTo(quantity(string(self.max))) <= 0"
)
SLOTS_RULE = "self.slots.min <= self.slots.use && self.slots.use <= self.slots.max"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3 == 7", True),
        ("-7 / 2", -3),
        ("-(7 % 2)", -1),
        ("7.0 / 2.0", 3.5),
        ("self.max > 3 && self.max < 5", True),
        ("self.max >= 4 ? 'big' : 'small'", "big"),
        ("has(self.inner.on) && !has(self.inner.off)", True),
        ("self.absent == 1 || true", True),
        ("self.absent == 1 && false", False),
        ("2 in self.list", True),
        ("'name' in self", True),
        ("self.list[1] - 1", 1),
        ("size(self.list) == self.list.size()", True),
        ("self.list.all(x, x > 0) && self.list.exists(x, x == 3)", True),
        ("self.list.exists_one(x, x == 3) && !self.list.exists_one(x, x > 1)", True),
        ("self.list.filter(x, x > 1)", [2, 3]),
        ("self.list.map(x, x * 2)", [2, 4, 6]),
        ("self.ports.all(one, self.ports.exists_one(other, other.name == one.name))", True),
        ("self.all(key, size(key) < 8)", True),
        ("self.name.startsWith('vm') && self.name.endsWith('1') && self.name.contains('-')", True),
        (r'self.name.matches("^[a-z]+-\\d$") && self.name.matches(r"\d")', True),
        ("self.name.split('-')[0].upperAscii()", "VM"),
        ("size('äö')", 2),
        ("self['my-key'] == 1 && {'a': 1}['a'] == 1", True),
        ("self.?absent.orValue(3)", 3),
        ("type(self.max) == int && dyn(self.half) == 0.5", True),
        ("duration(self.timeout) > duration('1h')", True),
        ("timestamp('2026-01-01T00:00:00Z') < timestamp('2030-01-01T00:00:00Z')", True),
        ("quantity(string(self.min)).compareTo(quantity(string(self.max)))", -1),
        ("quantity('1Gi').isGreaterThan(quantity('1000Mi'))", True),
        ("quantity('1') == quantity('1000m') && quantity('1').isLessThan(quantity('1.5'))", True),
        ("quantity('500m').add(quantity('1500m')).asInteger()", 2),
        ("sign(quantity('1').sub(quantity('2'))) == -1 && !quantity('1m').isInteger()", True),
        ("quantity('250m').asApproximateFloat()", 0.25),
        ("isQuantity('1Gi') && !isQuantity('much')", True),
        ("int('3') != 4 && double('0.5') == self.half", True),
        ("[1, 2] == [1, 2]", True),
    ],
)
def test_expressions_have_their_values(text: str, expected: object) -> None:
    assert evaluate(compiled(text), {"self": SELF}) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 +",
        "self.",
        "quantity('1').sign() > 0",
        "unheard(1)",
        "self.unheard(1)",
        "a b",
        "(1",
        "§",
        "has()",
        "self.1",
        "1 == 'a'",
        "(" * 999,
    ],
)
def test_unevaluable_expressions_are_refused(text: str) -> None:
    with pytest.raises(UnknownExpressionError):
        compiled(text)


@pytest.mark.parametrize(
    "text",
    [
        "self.absent",
        "self.max / 0",
        "self.name < 1",
        "self.absent && true",
        "self.max + 9223372036854775807",
        "quantity(self.name)",
        "quantity('1m').asInteger()",
        "self.name.matches('[')",
    ],
)
def test_expressions_without_a_value_say_so(text: str) -> None:
    with pytest.raises(EvaluationError):
        evaluate(compiled(text), {"self": SELF})


def test_expensive_expression_has_no_value() -> None:
    text = "self.all(a, self.all(b, self.all(c, self.all(d, a + b + c + d >= 0))))"
    with pytest.raises(EvaluationError, match="budget"):
        evaluate(compiled(text), {"self": list(range(60))})


@pytest.mark.parametrize(
    ("rule", "value", "held"),
    [
        (CPU_RULE, {"min": "250m", "use": 1, "max": "4"}, True),
        (CPU_RULE, {"min": "250m", "use": "8", "max": "4"}, False),
        (CPU_RULE, {"min": 1, "use": "999m", "max": 2}, False),
        (SLOTS_RULE, {"slots": {"min": 1, "use": 4, "max": 4}}, True),
        (SLOTS_RULE, {"slots": {"min": 1, "use": 5, "max": 4}}, False),
    ],
)
def test_vm_rules_keep_use_within_bounds(rule: str, value: Any, held: bool) -> None:
    assert (list(broken_rules(value, {"x-kubernetes-validations": [{"rule": rule}]}, None)) == []) is held


def test_cel_field_names_are_escaped() -> None:
    assert escaped({"namespace": [{"a.b-c/d": 1}], "x__y": 2}) == {
        "__namespace__": [{"a__dot__b__dash__c__slash__d": 1}],
        "x__underscores__y": 2,
    }
    rule = {"x-kubernetes-validations": [{"rule": "self.__namespace__ == 'default'"}]}
    assert list(broken_rules({"namespace": "default"}, rule, None)) == []
    assert [cause.message for cause in broken_rules({"namespace": "x"}, rule, None)] == [
        "Invalid value: \"object\": failed rule: self.__namespace__ == 'default'"
    ]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
TEXTS = st.sampled_from([CPU_RULE, SLOTS_RULE, "self == oldSelf", "self.size() > 1", "self > 1", "self.all(x, x > 1)"])


@settings(max_examples=examples(12, 40))
@given(TEXTS, VALUES, VALUES)
def test_rules_fail_only_as_declared(text: str, value: Any, before: Any) -> None:
    rule = {"x-kubernetes-validations": [{"rule": text}]}
    assert len(list(broken_rules(value, rule, before))) <= 1


@settings(max_examples=examples(12, 40))
@given(st.text())
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    with suppress(UnknownExpressionError):
        compiled(text)
