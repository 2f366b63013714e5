"""Findings as text and as JSON (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from scripts.autoscale.check.finding import EXIT_CODES, Finding, Level, worst

SHOWN: Final = 5
"""Maximum number of problems shown per check; JSON contains all."""

COLOURS: Final = {Level.OK: "green", Level.SKIPPED: "dim", Level.WARNING: "yellow", Level.FAILURE: "bold red"}

Line = tuple[str, str]
"""A colour (empty: none) and a text."""


def as_text(findings: Sequence[Finding]) -> Iterator[Line]:
    """Sections with a line per check; for a problem also its messages, remedy and section of the documentation."""
    # Findings are in the table's order, which is sorted by section.
    for section, group in groupby(findings, key=lambda finding: finding.check.section):
        yield "bold", str(section)
        for finding in group:
            yield from _lines(finding)
        yield "", ""
    yield _sum(findings)
    if len(problems := by_urgency(findings)) > 1:
        yield COLOURS[problems[0].level], f"Start with: {problems[0].check.title}. Other problems may follow from it."


def as_short(findings: Sequence[Finding]) -> Iterator[Line]:
    """Only problems, in the order in which to resolve them: a line for each check, and one with its remedy."""
    for finding in by_urgency(findings):
        more = f" (and {len(finding.problems) - 1} more)" if len(finding.problems) > 1 else ""
        yield COLOURS[finding.level], f"{finding.level.mark} {finding.check.id}: {finding.message}{more}"
        yield "", f"  → {finding.remedy}"
    yield _sum(findings)


def by_urgency(findings: Sequence[Finding]) -> list[Finding]:
    """Findings with problems: failures before warnings, and causes before their effects, in the table's order."""
    # `sorted` is stable, so it keeps the table's order within a level.
    return sorted(
        (finding for finding in findings if finding.level >= Level.WARNING), key=lambda finding: -finding.level
    )


def as_json(findings: Sequence[Finding]) -> dict[str, object]:
    """The document for scripts. Fields may be added, but are never renamed."""
    outcome = worst(findings)
    return {
        "outcome": outcome.name.lower(),
        "exitCode": EXIT_CODES[outcome],
        # These keys are an interface, and need not match the fields' names.
        "checks": [
            {
                "check": finding.check.id,
                "section": str(finding.check.section),
                "title": finding.check.title,
                "level": finding.level.name.lower(),
                "said": finding.message,
                "problems": list(finding.problems),
                "do": finding.remedy,
                "page": finding.check.page,
            }
            for finding in findings
        ],
    }


def _lines(finding: Finding) -> Iterator[Line]:
    colour, detail = COLOURS[finding.level], f": {finding.message}" if finding.message else ""
    # A line that is in order or skipped has no remedy to show.
    if finding.level < Level.WARNING:
        why = f": skipped, {finding.message}" if finding.level is Level.SKIPPED else detail
        yield colour, f"  {finding.level.mark} {finding.check.title}{why}"
        return
    yield colour, f"  {finding.level.mark} {finding.check.title}"
    for problem in finding.problems[:SHOWN]:
        yield "", f"      {problem}"
    if len(finding.problems) > SHOWN:
        yield "", f"      and {len(finding.problems) - SHOWN} more (-o json lists all)"
    yield "", f"      → {finding.remedy}"
    yield "dim", f"      {finding.check.page}"


def _sum(findings: Sequence[Finding]) -> Line:
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    warnings = "warning" if counts[Level.WARNING] == 1 else "warnings"
    wrong = [f"{counts[Level.FAILURE]} failed", f"{counts[Level.WARNING]} {warnings}"]
    checks = "check" if len(findings) == 1 else "checks"
    summary = f"{len(findings)} {checks}: {', '.join(wrong)}, {counts[Level.SKIPPED]} skipped, {counts[Level.OK]} ok"
    # Skipped lines need no action, so they do not colour the summary.
    return COLOURS[worst(findings)] if worst(findings) >= Level.WARNING else "green", summary
