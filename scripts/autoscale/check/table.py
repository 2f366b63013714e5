"""The table of all checks, and how facts become findings by it (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from scripts.autoscale.check.facts import CheckFacts, UnseenError
from scripts.autoscale.check.finding import Check, CheckProblem, CheckSection, Finding, Level, When
from scripts.autoscale.check.judges import (
    access,
    admission_refusals,
    api_server,
    certificate_ages,
    clock_skew,
    custom_resources,
    extender_calls,
    guest_nodes,
    lease_holders,
    moving_vms,
    pod_databases,
    settings_texts,
    sleeping_vms,
    workloads,
)

PAGE: Final = "docs/check.md"

# The modules of judges, causes before what may follow from them.
_JUDGES: Final = (
    *(api_server, access, custom_resources, admission_refusals, workloads, settings_texts, extender_calls),
    *(lease_holders, certificate_ages, clock_skew, guest_nodes, moving_vms, sleeping_vms, pod_databases),
)
_SECTIONS: Final = list(CheckSection)

CHECKS: Final = sorted(
    (judge for module in _JUDGES for judge in vars(module).values() if isinstance(judge, Check)),
    key=lambda check: _SECTIONS.index(check.section),
)
"""In the order of the output: sections, and in each the judges as they are defined. docs/check.md is made of it."""


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
        result = check.result(facts)
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
