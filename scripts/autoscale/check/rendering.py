"""Findings as people, scripts and pages read them (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from scripts.autoscale.check.finding import EXIT_CODES, Finding, Level, worst

SHOWN: Final = 5
"""This many problems of a check are shown; JSON has all."""

COLOURS: Final = {Level.OK: "green", Level.SKIPPED: "dim", Level.WARNING: "yellow", Level.FAILURE: "bold red"}

Line = tuple[str, str]
"""A colour (empty: none) and a text."""


def as_text(findings: Sequence[Finding]) -> Iterator[Line]:
    """Sections with a line for each check, and for what is wrong: what, what to do, where to read on."""
    for section, found in groupby(findings, key=lambda each: each.section):
        yield "bold", str(section)
        for finding in found:
            yield from _lines(finding)
        yield "", ""
    yield _sum(findings)
    if len(wrong := to_mend(findings)) > 1:
        yield COLOURS[wrong[0].level], f"Begin with: {wrong[0].title}. What follows from it ends with it."


def as_short(findings: Sequence[Finding]) -> Iterator[Line]:
    """Problems alone, in the order in which to resolve them: one line for each check, and one with what to do."""
    for finding in to_mend(findings):
        more = f" (and {len(finding.problems) - 1} more)" if len(finding.problems) > 1 else ""
        yield COLOURS[finding.level], f"{finding.level.mark} {finding.check}: {finding.said}{more}"
        yield "", f"  → {finding.remedy}"
    yield _sum(findings)


def to_mend(findings: Sequence[Finding]) -> list[Finding]:
    """Problems: failures before warnings, and causes before their effects, in the table's order."""
    return sorted((each for each in findings if each.level >= Level.WARNING), key=lambda each: -each.level)


def as_json(findings: Sequence[Finding]) -> dict[str, object]:
    """Everything; ``level`` is ok, skipped, warning or failure. Fields are added, never renamed."""
    outcome = worst(findings)
    return {
        "outcome": outcome.name.lower(),
        "exitCode": EXIT_CODES[outcome],
        "checks": [
            {
                "check": each.check,
                "section": str(each.section),
                "title": each.title,
                "level": each.level.name.lower(),
                "said": each.said,
                "problems": list(each.problems),
                "do": each.remedy,
                "page": each.page,
            }
            for each in findings
        ],
    }


def _lines(finding: Finding) -> Iterator[Line]:
    colour, said = COLOURS[finding.level], f": {finding.said}" if finding.said else ""
    if finding.level < Level.WARNING:
        why = f": skipped, {finding.said}" if finding.level is Level.SKIPPED else said
        yield colour, f"  {finding.level.mark} {finding.title}{why}"
        return
    yield colour, f"  {finding.level.mark} {finding.title}"
    for problem in finding.problems[:SHOWN]:
        yield "", f"      {problem}"
    if len(finding.problems) > SHOWN:
        yield "", f"      and {len(finding.problems) - SHOWN} more (-o json has all)"
    yield "", f"      → {finding.remedy}"
    yield "dim", f"      {finding.page}"


def _sum(findings: Sequence[Finding]) -> Line:
    counts = {level: sum(each.level is level for each in findings) for level in Level}
    wrong = [f"{counts[Level.FAILURE]} failed", f"{counts[Level.WARNING]} to look at"]
    told = f"{len(findings)} checks: {', '.join(wrong)}, {counts[Level.SKIPPED]} skipped, {counts[Level.OK]} in order"
    return COLOURS[worst(findings)] if worst(findings) >= Level.WARNING else "green", told
