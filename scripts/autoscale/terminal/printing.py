"""Output of every command that lists something: text for people, JSON or YAML for scripts.

Field names in JSON and YAML are stable: ``docs/command-line.md`` lists them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Final

import typer
import yaml
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from protocol.runtime.json_log import without_steering
from scripts.autoscale.terminal.visible import visible_lines


class Output(StrEnum):
    """The format of ``-o``."""

    TEXT = "text"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"

    @property
    def is_for_scripts(self) -> bool:
        """True if a program is to read it."""
        return self in {Output.JSON, Output.YAML}


OutputFormat = Annotated[
    Output, typer.Option("--output", "-o", help="text; wide: more columns; json or yaml: for scripts.")
]


_WIDEST: Final = 1000
"""Columns of a table at most; a name has at most 253 characters."""


def serialised(fields: object, output: str) -> str:
    """YAML if ``output`` is that, else JSON, with the order of the fields kept (pure)."""
    if output == Output.YAML:
        made = _yaml(fields, is_unicode=True)
        # YAML leaves marks that reverse the direction of a text as they are.
        return made if without_steering(made) == made else _yaml(fields, is_unicode=False)
    return without_steering(json.dumps(fields, indent=2, ensure_ascii=False))


def _yaml(fields: object, *, is_unicode: bool) -> str:
    # A line is not folded: scripts and people search it by line.
    return yaml.safe_dump(fields, sort_keys=False, allow_unicode=is_unicode, width=10_000).rstrip("\n")


def show(lines: Iterable[str], fields: object, output: Output) -> None:
    """Prints the lines, or the fields for scripts. No line is wrapped or cut."""
    if output.is_for_scripts:
        # Plain print: rich would wrap lines and colour them.
        print(serialised(fields, output))
        return
    print_lines(Console(), lines)


def print_table(console: Console, table: Table) -> None:
    """Prints a table whole: a terminal may wrap a long line, but Rich must not cut names and numbers."""
    for column in table.columns:
        column.no_wrap = True
    wide = console.options.update(max_width=_WIDEST)
    console.width = max(console.width, Measurement.get(console, wide, table).maximum)
    console.print(table)


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Prints texts of a cluster as they are: no markup, nothing that steers the terminal, no line wrapped or cut."""
    for line in lines:
        # Long lines are left to the terminal, so that copying one gives it whole.
        console.print(escape(visible_lines(line)), soft_wrap=True, highlight=False)
