"""Wording gets plainer and never worse: counts of ``prose.py`` against their bounds."""

from __future__ import annotations

import pytest

from tests.docs.prose import long_subjects, read_prose

# Today's counts. Lower a bound in the commit that lowers its count; none is ever raised.
AT_MOST = {
    "phrases in code": 0,
    "phrases in documents": 0,
    "question docstrings, percent": 0.0,
    "question docstrings in tests, percent": 0.0,
    "empty names": 3,
    "class names used twice": 1,
    "household classes": 0,
    "long test names, percent": 0.0,
}
AT_LEAST = {"comments per 100 lines": 5.6}
SINCE = "c0a1d7ea"
"""The first commit whose successors keep their subjects short."""


def test_prose_gets_no_worse() -> None:
    """A count above its bound fails; ``python -m tests.docs.prose KIND`` prints the places."""
    prose = read_prose()
    if not prose.code_lines:
        pytest.skip("git cannot list the files of this checkout")
    counts = prose.counts()
    assert counts.keys() == AT_MOST.keys() | AT_LEAST.keys()
    assert {kind: counts[kind] for kind, bound in AT_MOST.items() if counts[kind] > bound} == {}
    assert {kind: counts[kind] for kind, bound in AT_LEAST.items() if counts[kind] < bound} == {}


def test_subjects_are_short() -> None:
    """A subject has at most 72 characters, so that one line of a log shows it whole."""
    subjects = long_subjects(SINCE)
    if subjects is None:
        pytest.skip("this checkout does not have the commit that the check begins with")
    assert subjects == []
