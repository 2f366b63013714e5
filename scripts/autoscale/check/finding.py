"""Checks, their findings, and the outcome of all findings (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from scripts.autoscale.check.facts import CheckFacts

PAGE: Final = "docs/check.md"


class Level(IntEnum):
    """Severity of a finding; the highest is the outcome of a run."""

    OK = 0
    SKIPPED = 1
    WARNING = 2
    FAILURE = 3

    @property
    def mark(self) -> str:
        """The mark before a line.

        >>> Level.WARNING.mark
        '!'
        """
        # Marks in the order of the levels.
        return "\N{CHECK MARK}-!\N{MULTIPLICATION SIGN}"[self]


# A check that was skipped is no reason for a script to fail.
EXIT_CODES: Final = {Level.OK: 0, Level.SKIPPED: 0, Level.WARNING: 1, Level.FAILURE: 2}


class CheckSection(StrEnum):
    """Sections of the output, in order."""

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
    """A problem. ``subject`` is the name of the object, for the remedy; ``message`` is a sentence.

    ``level`` and ``remedy`` override the check's.
    """

    subject: str
    message: str
    level: Level | None = None
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of a judge: ``summary`` is shown if there are no problems."""

    summary: str = ""
    problems: Sequence[CheckProblem] = ()


Verdict = CheckResult | CheckProblem
"""The return type of a judge; a problem stands for a result with only this problem."""


class When(StrEnum):
    """The stage of an installation at which a check applies."""

    BEFORE = "before installing"
    AFTER = "after installing"
    ALWAYS = "before and after"


@dataclass(frozen=True, slots=True)
class Check:
    """A check, which is one line of output.

    ``remedy`` may contain ``{namespace}`` (the installation's) and ``{subject}`` (of the first problem). If a check
    with ``is_fatal`` fails, the checks after it are not made.
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
        """Explanation for docs/check.md: the judge's docstring."""
        return " ".join((self.judge.__doc__ or "").split())

    @property
    def page(self) -> str:
        """The check's section of the documentation."""
        return f"{PAGE}#{self.id}"

    def result(self, facts: CheckFacts) -> CheckResult:
        """Runs the judge. Raises ``UnavailableError``."""
        verdict = self.judge(facts)
        return CheckResult(problems=[verdict]) if isinstance(verdict, CheckProblem) else verdict


def check_of(  # noqa: PLR0913 - the parts of a check
    section: CheckSection, name: str, title: str, remedy: str, when: When = When.AFTER, *, is_fatal: bool = False
) -> Callable[[Callable[[CheckFacts], Verdict]], Check]:
    """Decorates a judge, whose docstring explains the check to users; see ``Check``."""
    return lambda judge: Check(name, section, title, judge, remedy, when, is_fatal)


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of output. ``remedy`` is a command or a sentence; ``problems`` are the messages of all problems."""

    check: Check
    level: Level
    message: str
    problems: tuple[str, ...] = ()
    remedy: str = ""


def worst(findings: Iterable[Finding]) -> Level:
    """The outcome of a run.

    >>> worst([])
    <Level.OK: 0>
    """
    return max((finding.level for finding in findings), default=Level.OK)
