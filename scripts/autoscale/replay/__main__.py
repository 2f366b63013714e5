"""``python -m scripts.autoscale.replay``: the command by itself."""

from __future__ import annotations

import typer

from scripts.autoscale.replay.command import replay

if __name__ == "__main__":
    typer.run(replay)
