"""The console scripts as pyproject.toml declares them."""

from __future__ import annotations

import tomllib
from functools import partial
from typing import Final

from scripts import entry_points
from tests.package.import_graph import ROOT

SCRIPTS: Final[dict[str, str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


def program_of(script: str) -> tuple[str, str]:
    """The ``module:function`` that a console script calls, and the extra that it names."""
    module, _, attribute = SCRIPTS[script].partition(":")
    assert module == entry_points.__name__
    start = getattr(entry_points, attribute)
    assert isinstance(start, partial)
    program, extra = start.args
    return program, extra
