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
    # Findings come in the table's order, in which sections are not interleaved.
    for section, group in groupby(findings, key=lambda finding: finding.section):
        yield "bold", str(section)
        for finding in group:
            yield from _lines(finding)
        yield "", ""
    yield _sum(findings)
    # With one problem it is clear where to begin.
    if len(wrong := to_mend(findings)) > 1:
        yield COLOURS[wrong[0].level], f"Start with: {wrong[0].title}. Other problems may follow from it."


def as_short(findings: Sequence[Finding]) -> Iterator[Line]:
    """Problems alone, in the order in which to resolve them: one line for each check, and one with what to do."""
    for finding in to_mend(findings):
        more = f" (and {len(finding.problems) - 1} more)" if len(finding.problems) > 1 else ""
        yield COLOURS[finding.level], f"{finding.level.mark} {finding.check}: {finding.said}{more}"
        yield "", f"  → {finding.remedy}"
    yield _sum(findings)


def to_mend(findings: Sequence[Finding]) -> list[Finding]:
    """Problems: failures before warnings, and causes before their effects, in the table's order."""
    # `sorted` is stable, so the table's order stays within a level.
    return sorted(
        (finding for finding in findings if finding.level >= Level.WARNING), key=lambda finding: -finding.level
    )


def as_json(findings: Sequence[Finding]) -> dict[str, object]:
    """Everything; ``level`` is ok, skipped, warning or failure. Fields are added, never renamed."""
    outcome = worst(findings)
    return {
        "outcome": outcome.name.lower(),
        "exitCode": EXIT_CODES[outcome],
        # These keys are an interface for scripts; they need not follow the fields' names.
        "checks": [
            {
                "check": finding.check,
                "section": str(finding.section),
                "title": finding.title,
                "level": finding.level.name.lower(),
                "said": finding.said,
                "problems": list(finding.problems),
                "do": finding.remedy,
                "page": finding.page,
            }
            for finding in findings
        ],
    }


def _lines(finding: Finding) -> Iterator[Line]:
    colour, detail = COLOURS[finding.level], f": {finding.said}" if finding.said else ""
    # A line that is in order or skipped has no remedy to show.
    if finding.level < Level.WARNING:
        why = f": skipped, {finding.said}" if finding.level is Level.SKIPPED else detail
        yield colour, f"  {finding.level.mark} {finding.title}{why}"
        return
    yield colour, f"  {finding.level.mark} {finding.title}"
    for problem in finding.problems[:SHOWN]:
        yield "", f"      {problem}"
    if len(finding.problems) > SHOWN:
        yield "", f"      and {len(finding.problems) - SHOWN} more (-o json lists all)"
    yield "", f"      → {finding.remedy}"
    yield "dim", f"      {finding.page}"


def _sum(findings: Sequence[Finding]) -> Line:
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    warnings = "warning" if counts[Level.WARNING] == 1 else "warnings"
    wrong = [f"{counts[Level.FAILURE]} failed", f"{counts[Level.WARNING]} {warnings}"]
    summary = f"{len(findings)} checks: {', '.join(wrong)}, {counts[Level.SKIPPED]} skipped, {counts[Level.OK]} ok"
    # Skipped lines do not colour the summary: they are no reason to act.
    return COLOURS[worst(findings)] if worst(findings) >= Level.WARNING else "green", summary
