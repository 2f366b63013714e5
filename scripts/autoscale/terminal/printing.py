"""Output of commands: text for terminals, JSON or YAML for scripts.

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
        """True if the output is for programs."""
        return self in {Output.JSON, Output.YAML}


OutputFormat = Annotated[
    Output, typer.Option("--output", "-o", help="text; wide: more columns; json or yaml: for scripts.")
]


_WIDEST: Final = 1000
"""Maximum width of a table; names have at most 253 characters."""


def serialised(fields: object, output: str) -> str:
    """Serialises to YAML or JSON, in the order of the fields (pure)."""
    if output == Output.YAML:
        document = _yaml(fields, is_unicode=True)
        # YAML does not escape characters that reverse the direction of text.
        return document if without_steering(document) == document else _yaml(fields, is_unicode=False)
    return without_steering(json.dumps(fields, indent=2, ensure_ascii=False))


def _yaml(fields: object, *, is_unicode: bool) -> str:
    # Long lines are not folded, so that they can be searched by line.
    return yaml.safe_dump(fields, sort_keys=False, allow_unicode=is_unicode, width=10_000).rstrip("\n")


def show(lines: Iterable[str], fields: object, output: Output) -> None:
    """Prints the lines, or the fields for scripts, without wrapping or truncating."""
    if output.is_for_scripts:
        # Not with rich, which would wrap and colour lines.
        print(serialised(fields, output))
        return
    print_lines(Console(), lines)


def print_table(console: Console, table: Table) -> None:
    """Prints a table at its full width: the terminal may wrap lines, but Rich must not truncate names and numbers."""
    for column in table.columns:
        column.no_wrap = True
    wide = console.options.update(max_width=_WIDEST)
    console.width = max(console.width, Measurement.get(console, wide, table).maximum)
    console.print(table)


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Prints texts of a cluster as they are: no markup, nothing that steers the terminal, no line wrapped or cut."""
    for line in lines:
        # The terminal wraps long lines, so that they can be copied as one.
        console.print(escape(visible_lines(line)), soft_wrap=True, highlight=False)
