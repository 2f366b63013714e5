"""How every command that lists something prints it: text for people, JSON or YAML for scripts.

Field names in JSON and YAML are stable: ``docs/command-line.md`` lists them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

import typer
import yaml
from rich.console import Console
from rich.markup import escape


class Output(StrEnum):
    """The format of ``-o``."""

    TEXT = "text"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"

    @property
    def is_for_scripts(self) -> bool:
        """Whether a program is to read it."""
        return self in {Output.JSON, Output.YAML}


OutputFormat = Annotated[
    Output, typer.Option("--output", "-o", help="text; wide: more columns; json or yaml: for scripts.")
]


def serialised(fields: object, output: Output) -> str:
    """JSON or YAML, with the order of the fields kept (pure)."""
    if output is Output.YAML:
        return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=10_000).rstrip("\n")
    return json.dumps(fields, indent=2, ensure_ascii=False)


def show(lines: Iterable[str], fields: object, output: Output) -> None:
    """Prints the lines, or the fields for scripts. No line is wrapped or cut."""
    if output.is_for_scripts:
        print(serialised(fields, output))
        return
    console = Console()
    for line in lines:
        console.print(escape(line), soft_wrap=True, highlight=False)
