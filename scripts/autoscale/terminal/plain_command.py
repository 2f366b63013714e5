"""Commands whose usage lines and errors read as those of other programs."""

from __future__ import annotations

import re
from typing import Any, Final

import typer
from typer.core import TyperCommand

_BRACES: Final = re.compile(r"\{([^|}]+)\}")


class PlainCommand(TyperCommand):
    """A command without typer's braces around required arguments, and without pydantic's words in errors."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Returns the parts of the usage line; braces are left around a choice. The context's type is private."""
        return [_BRACES.sub(r"\1", piece) for piece in super().collect_usage_pieces(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the arguments. Raises ``typer.BadParameter``."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise
