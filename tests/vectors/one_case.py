"""One case of a test's own, answered as those of the files are."""

from __future__ import annotations

from typing import Any

from tests.vectors.case import Case
from tests.vectors.families import families
from tests.vectors.registry import Outcome, run_case


def run(family: str, group: str, given: Any, expected: Any, text: str = "", **more: Any) -> Outcome:
    semantics = more.pop("semantics", "both")
    content = {"input": given, "expected": expected, **more}
    return run_case(Case(family, group, f"{group}/1", content, text, semantics=semantics), families([family]))
