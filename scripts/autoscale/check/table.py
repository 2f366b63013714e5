"""The table of all checks, and their evaluation (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from scripts.autoscale.check.facts import CheckFacts, UnavailableError
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

# The modules of judges, causes before their effects.
_JUDGES: Final = (
    *(api_server, access, custom_resources, admission_refusals, workloads, settings_texts, extender_calls),
    *(lease_holders, certificate_ages, clock_skew, guest_nodes, moving_vms, sleeping_vms, pod_databases),
)
_SECTIONS: Final = list(CheckSection)

CHECKS: Final = sorted(
    (judge for module in _JUDGES for judge in vars(module).values() if isinstance(judge, Check)),
    key=lambda check: _SECTIONS.index(check.section),
)
"""All checks in the order of the output: by section, then in the order of definition."""


def evaluate(facts: CheckFacts, *, before: bool) -> Iterator[Finding]:
    """Yields the findings of the checks before or after installing, up to a fatal one that fails."""
    for check in CHECKS:
        if check.when is (When.AFTER if before else When.BEFORE):
            continue
        finding = _finding(check, facts)
        yield finding
        # All later checks would fail or be skipped for the same reason.
        if check.is_fatal and finding.level is Level.FAILURE:
            return


def _finding(check: Check, facts: CheckFacts) -> Finding:
    try:
        result = check.result(facts)
    except UnavailableError as unseen:
        return Finding(check, Level.SKIPPED, str(unseen))
    if not result.problems:
        return Finding(check, Level.OK, result.summary)
    # The worst problem comes first: it determines the finding's level, message and remedy.
    problems = sorted(result.problems, key=lambda problem: -_level(problem))
    messages = tuple(problem.message for problem in problems)
    remedy = problems[0].remedy or check.remedy
    instruction = remedy.replace("{namespace}", facts.namespace).replace("{subject}", problems[0].subject)
    return Finding(check, _level(problems[0]), messages[0], messages, instruction)


def _level(problem: CheckProblem) -> Level:
    return Level.FAILURE if problem.level is None else problem.level
