"""Typer callbacks that check output files before a command starts its work."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import typer

_PICTURES: Final = (".png", ".svg", ".pdf")


def a_file(path: Path | None) -> Path | None:
    """Refuses a file whose folder does not exist. Raises ``typer.BadParameter``."""
    if path is not None and not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {str(path.parent)!r}")
    return path


def a_picture(path: Path | None) -> Path | None:
    """Refuses a file whose folder does not exist, or whose format is unknown. Raises ``typer.BadParameter``."""
    if path is not None and path.suffix not in _PICTURES:
        raise typer.BadParameter(f"{path.name!r} does not end in {', '.join(_PICTURES)}")
    return a_file(path)
