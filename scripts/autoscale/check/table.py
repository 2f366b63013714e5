"""The table of all checks, and how facts become findings by it (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from scripts.autoscale.check.facts import CheckFacts, UnseenError
from scripts.autoscale.check.finding import Check, CheckProblem, Finding, Level, When
from scripts.autoscale.check.tables import cluster_checks, guest_checks, program_checks, trust_checks

PAGE: Final = "docs/check.md"

CHECKS: Final = (*cluster_checks.CHECKS, *program_checks.CHECKS, *trust_checks.CHECKS, *guest_checks.CHECKS)
"""In the order of the output. docs/check.md is generated from it."""


def judged(facts: CheckFacts, *, before: bool) -> Iterator[Finding]:
    """Every line of one occasion, in the table's order; it ends at a fatal one that fails."""
    for check in CHECKS:
        # Skips checks of the other occasion alone; those for both are always made.
        if check.when is (When.AFTER if before else When.BEFORE):
            continue
        finding = _finding(check, facts)
        yield finding
        # Everything after it would fail or be skipped for the same reason.
        if check.is_fatal and finding.level is Level.FAILURE:
            return


def _finding(check: Check, facts: CheckFacts) -> Finding:
    try:
        result = check.judge(facts)
    except UnseenError as unseen:
        return Finding(check.id, check.section, check.title, Level.SKIPPED, str(unseen), page=page(check))
    if not result.problems:
        return Finding(check.id, check.section, check.title, Level.OK, result.said, page=page(check))
    # The worst problem comes first: it gives the line its level, its text and its remedy.
    problems = sorted(result.problems, key=lambda problem: -_level(problem))
    sentences = tuple(problem.said for problem in problems)
    remedy = problems[0].remedy or check.remedy
    instruction = remedy.replace("{namespace}", facts.namespace).replace("{subject}", problems[0].subject)
    return Finding(
        check.id, check.section, check.title, _level(problems[0]), sentences[0], sentences, instruction, page(check)
    )


def _level(problem: CheckProblem) -> Level:
    return Level.FAILURE if problem.level is None else problem.level


def page(check: Check) -> str:
    """Page to read on."""
    return f"{PAGE}#{check.id}"
