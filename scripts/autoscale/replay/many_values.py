"""Options that take several values at once: ``--trace a.csv b.csv`` means ``--trace a.csv --trace b.csv``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from typer.core import TyperCommand

MANY: Final = ("--trace", "--traces", "--policy", "--order")
"""The options of ``autoscale replay`` and ``autoscale simulate`` that take one value or more, with their aliases."""


class ManyValues(TyperCommand):
    """A command whose options in ``MANY`` may be followed by several values."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeats the option before each further value. The context's type is private to typer."""
        return super().parse_args(ctx, list(repeated(args)))


def repeated(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments with the option of ``MANY`` written before each of its values."""
    option, values = "", 0
    for argument in arguments:
        if argument.startswith("-"):
            # An option with `=` already has its first value.
            name, _, value = argument.partition("=")
            option, values = (name if name in MANY else ""), int(bool(value))
        elif option:
            if values:
                # The first value follows the option that the user wrote.
                yield option
            values += 1
        yield argument
