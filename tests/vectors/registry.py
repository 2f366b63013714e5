"""Registry of the checks for groups of cases, of declined groups, and of comparisons.

- A family holds a table from group to a function ``Case -> answer``, which is compared with ``case.expected``.
- Every value of a case must be read while it is answered and compared. One that is not fails the case, because the
  answer would be the same without it; ``Check.ignores`` names the exceptions with their reasons.
- What a group's cases have must be there: ``Check.needs``, what the answer reads, and what ``ignores`` names exactly.
- ``declined`` maps a group or a case id to the reason why an upstream rule is deliberately not followed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import isclose, isnan
from typing import Any

from tests.vectors.case import SEMANTICS, Case
from tests.vectors.reading import MissingError, TrackedMapping, plain

Answer = Callable[[Case], Any]


class UnusedError(ValueError):
    """A value of a case that the answer has no use for; the message is its path."""


class Declined(Exception):  # noqa: N818 - no error: an answer raises it for a case that we deliberately do not follow
    """The reason why one case of a group that we otherwise answer is not followed."""


def _as_written(case: Case) -> Any:
    return case.expected


@dataclass(frozen=True)
class Check:
    """The check of one group, and the binding part of the expected value.

    ``ignores`` maps patterns of paths (``expected.code``) to the reason why these values need not be read. ``needs``
    are the parts that each case has.
    """

    answer: Answer
    expected: Callable[[Case], Any] = _as_written
    ignores: Mapping[str, str] = field(default_factory=dict)
    needs: Sequence[str] = ("input", "expected")


@dataclass(frozen=True)
class Family:
    """The groups that the project answers and the groups or cases that it declines, each with its reason."""

    name: str
    groups: Mapping[str, Check | Answer]
    declined: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """Outcome of one case: exactly one of passed, failed (why) and declined (why)."""

    case: Case
    failure: str | None = None
    declined: str | None = None

    @property
    def passed(self) -> bool:
        """True if the answer was the expected one."""
        return self.failure is None and self.declined is None


def chosen(case: Case, facts: Mapping[str, Any], *sets: Sequence[str]) -> dict[str, Any]:
    """Those of ``facts`` that the case expects. Raises ``MissingError`` and ``UnusedError``.

    All of the first of ``sets`` must be expected, and of each other one all or none.
    """
    expected: TrackedMapping = case.expected
    for number, names in enumerate(sets):
        if number == 0 or not expected.keys().isdisjoint(names):
            for name in names:
                _ = expected[name]
    for name in expected:
        if name not in facts:
            raise UnusedError(expected.path(name))
    return {name: facts[name] for name in expected}


def run_case(case: Case, families: Mapping[str, Family]) -> Outcome:
    """Answers one case. What is unknown, missing or not used, and an answer that raises, are failures."""
    family = families.get(case.family)
    if family is None:
        return Outcome(case, failure=f"unknown family {case.family!r}")
    if case.semantics not in SEMANTICS:
        return Outcome(case, failure=f"unknown semantics {case.semantics!r}")
    reason = family.declined.get(case.id) or family.declined.get(case.group)
    if reason:
        return Outcome(case, declined=reason)
    entry = family.groups.get(case.group)
    if entry is None:
        return Outcome(case, failure=f"unknown group {case.group!r}")
    return _checked(case.fresh(), entry if isinstance(entry, Check) else Check(entry))


def _checked(case: Case, check: Check) -> Outcome:
    missing = [part for part in check.needs if part not in case.content]
    if missing:
        return Outcome(case, failure=f"the case lacks {', '.join(missing)}")
    try:
        expected, actual = check.expected(case), check.answer(case)
        _require(case, check)
    except Declined as declined:
        return Outcome(case, declined=str(declined))
    except Exception as error:  # noqa: BLE001 - whatever the code under test raises is this case's failure
        return Outcome(case, failure=_problem(error))
    expected, actual = plain(expected), plain(actual)
    if not same(expected, actual, case.tolerance):
        return Outcome(case, failure=f"expected {expected}, got {actual}")
    unused = [path for path in case.unread() if not any(fnmatchcase(path, ignored) for ignored in check.ignores)]
    return Outcome(case, failure=f"the case does not use {', '.join(unused)}" if unused else None)


def _problem(error: Exception) -> str:
    match error:
        case MissingError():
            return f"the case lacks {error.path}"
        case UnusedError():
            return f"the case does not use {error}"
        case _:
            return f"raised {type(error).__name__}: {error}"


def _require(case: Case, check: Check) -> None:
    """Reads what ``ignores`` names without a wildcard. Raises ``MissingError``."""
    for path in check.ignores:
        if "*" not in path:
            value: Any = case.more
            for name in path.split("."):
                value = value[name]


def same(expected: Any, actual: Any, tolerance: float) -> bool:
    """Deep equality; numbers may differ by ``tolerance`` absolutely or 1e-9 relatively, a bool is no number."""
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        return expected.keys() == actual.keys() and all(same(expected[k], actual[k], tolerance) for k in expected)
    if _is_list(expected) and _is_list(actual):
        return len(expected) == len(actual) and all(
            same(left, right, tolerance) for left, right in zip(expected, actual, strict=True)
        )
    if _is_number(expected) and _is_number(actual):
        both_nan = isnan(expected) and isnan(actual)
        return both_nan or isclose(expected, actual, rel_tol=1e-9, abs_tol=tolerance)
    return type(expected) is type(actual) and bool(expected == actual)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
