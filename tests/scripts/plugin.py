"""kubectl's completions for its plugin."""

from __future__ import annotations

import sys
from contextlib import suppress

import pytest

from scripts.autoscale import main as program


def completed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *typed: str) -> list[str]:
    """The words for a line whose last word is still being typed."""
    for name in ("COMP_WORDS", "COMP_CWORD", f"_{program.PLUGIN}_COMPLETE".upper()):
        monkeypatch.setenv(name, "")  # removed again after the test
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-autoscaling", *typed])
    with suppress(SystemExit):
        program.complete()
    *words, directive = capsys.readouterr().out.split()
    assert directive == ":4"
    return words
