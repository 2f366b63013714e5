"""``python -m scripts.autoscale.replay``: the command by itself."""

from __future__ import annotations

import typer

from scripts.autoscale.replay.command import replay
from scripts.autoscale.replay.many_values import ManyValues

if __name__ == "__main__":
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command(cls=ManyValues)(replay)
    alone()
