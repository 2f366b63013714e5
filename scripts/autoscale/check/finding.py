"""Checks, their findings, and the outcome of all findings (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from scripts.autoscale.check.facts import CheckFacts


class Level(IntEnum):
    """Severity of a finding; the greatest of all is the outcome."""

    OK = 0
    SKIPPED = 1
    WARNING = 2
    FAILURE = 3

    @property
    def mark(self) -> str:
        """The sign before a line.

        >>> Level.WARNING.mark
        '!'
        """
        # An IntEnum is an index: the signs are in the order of the levels.
        return "\N{CHECK MARK}-!\N{MULTIPLICATION SIGN}"[self]


# A check that was skipped is no reason for a script to fail.
EXIT_CODES: Final = {Level.OK: 0, Level.SKIPPED: 0, Level.WARNING: 1, Level.FAILURE: 2}


class CheckSection(StrEnum):
    """The parts of the output, in their order."""

    API = "Kubernetes API"
    RIGHTS = "Permissions"
    DEFINITIONS = "Custom resources"
    NAMESPACE = "Namespace"
    PARTS = "Programs"
    SETTINGS = "Settings"
    SCHEDULER = "kube-scheduler and extender"
    LEASES = "Leases"
    CERTIFICATES = "Certificates and webhooks"
    CLOCKS = "Clocks"
    NODES = "Nodes"
    VMS = "Virtual machines"
    PODS = "Postgres in pods"


@dataclass(frozen=True, slots=True)
class CheckProblem:
    """One thing that is wrong. ``subject`` is the object's name, which the remedy may name; ``said`` is a sentence.

    ``level`` and ``remedy`` stand in for those of the check.
    """

    subject: str
    said: str
    level: Level | None = None
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of a judge: ``said`` is shown if there is no problem."""

    said: str = ""
    problems: Sequence[CheckProblem] = ()


Verdict = CheckResult | CheckProblem
"""What a judge returns; a problem alone is a result with only this one."""


class When(StrEnum):
    """On which of the two occasions a check is made."""

    BEFORE = "before installing"
    AFTER = "after installing"
    ALWAYS = "before and after"


@dataclass(frozen=True, slots=True)
class Check:
    """One line. ``remedy`` may name ``{namespace}`` (the installation's) and ``{subject}`` (what is wrong first).
    ``is_fatal``: where it fails, nothing after it is worth asking.
    """

    id: str
    section: CheckSection
    title: str
    judge: Callable[[CheckFacts], Verdict]
    remedy: str
    when: When = When.AFTER
    is_fatal: bool = False

    @property
    def meaning(self) -> str:
        """Explanation for the page: the docstring of the judge."""
        return " ".join((self.judge.__doc__ or "").split())

    def result(self, facts: CheckFacts) -> CheckResult:
        """The verdict as a result. Raises ``UnseenError``."""
        verdict = self.judge(facts)
        return CheckResult(problems=[verdict]) if isinstance(verdict, CheckProblem) else verdict


def check_of(  # noqa: PLR0913 - the parts of a check
    section: CheckSection, name: str, title: str, remedy: str, when: When = When.AFTER, *, is_fatal: bool = False
) -> Callable[[Callable[[CheckFacts], Verdict]], Check]:
    """Makes a check of its judge, whose docstring tells people what the check is about; see ``Check``."""
    return lambda judge: Check(name, section, title, judge, remedy, when, is_fatal)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the output. ``remedy`` is a command or a sentence; ``problems`` are all sentences."""

    check: str
    section: CheckSection
    title: str
    level: Level
    said: str
    problems: tuple[str, ...] = ()
    remedy: str = ""
    page: str = ""


def worst(findings: Iterable[Finding]) -> Level:
    """The outcome of a run.

    >>> worst([])
    <Level.OK: 0>
    """
    return max((finding.level for finding in findings), default=Level.OK)
