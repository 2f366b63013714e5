"""Output of findings: with remedies for users, in short form, and for programs."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from scripts.autoscale.check.command import CheckOutput, show
from scripts.autoscale.check.finding import EXIT_CODES, Check, CheckResult, CheckSection, Finding, Level, worst


def check(name: str, section: CheckSection, title: str) -> Check:
    return Check(name, section, title, lambda _: CheckResult(), "")


FINDINGS = [
    Finding(check("api-answers", CheckSection.API, "the API server answers"), Level.OK, "Kubernetes v1.36.2"),
    Finding(check("rights", CheckSection.RIGHTS, "you may"), Level.SKIPPED, "you cannot look"),
    Finding(
        check("nodes-ready", CheckSection.NODES, "nodes are ready"),
        Level.WARNING,
        "node n1 is not ready",
        problems=tuple(f"node n{number} is not ready" for number in range(1, 8)),
        remedy="kubectl describe node n1",
    ),
    Finding(check("x", CheckSection.NODES, "[red]x"), Level.FAILURE, "bad", ("bad",), "mend it"),
]

TEXT = """\
Kubernetes API
  ✓ the API server answers: Kubernetes v1.36.2

Permissions
  - you may: skipped, you cannot look

Nodes
  ! nodes are ready
      node n1 is not ready
      node n2 is not ready
      node n3 is not ready
      node n4 is not ready
      node n5 is not ready
      and 2 more (-o json lists all)
      → kubectl describe node n1
      docs/check.md#nodes-ready
  × [red]x
      bad
      → mend it
      docs/check.md#x

4 checks: 1 failed, 1 warning, 1 skipped, 1 ok
Start with: [red]x. Other problems may follow from it.
"""

SHORT = """\
× x: bad
  → mend it
! nodes-ready: node n1 is not ready (and 6 more)
  → kubectl describe node n1
4 checks: 1 failed, 1 warning, 1 skipped, 1 ok
"""


def printed(output: CheckOutput, *, is_terminal: bool = False) -> str:
    screen = io.StringIO()
    console = Console(file=screen, width=40, force_terminal=is_terminal, color_system="auto")
    show(console, FINDINGS, output)
    return screen.getvalue()


def test_text_has_problems_and_remedies() -> None:
    assert printed("text") == TEXT


def test_short_output_is_in_order_of_urgency() -> None:
    assert printed("short") == SHORT


def test_programs_read_everything() -> None:
    found = json.loads(printed("json"))
    assert (found["outcome"], found["exitCode"], len(found["checks"])) == ("failure", 2, 4)
    assert found["checks"][3] == {
        "check": "x",
        "section": "Nodes",
        "title": "[red]x",
        "level": "failure",
        "said": "bad",
        "problems": ["bad"],
        "do": "mend it",
        "page": "docs/check.md#x",
    }
    assert len(found["checks"][2]["problems"]) == 7


def test_colours_are_on_terminals_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in printed("text", is_terminal=True)
    assert "\x1b[" not in printed("text")


def test_the_worst_line_decides_the_exit_code() -> None:
    codes = [EXIT_CODES[worst(FINDINGS[:count])] for count in range(5)]
    assert codes == [0, 0, 0, 1, 2]
