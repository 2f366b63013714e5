"""``autoscale``: the command-line interface. Every command explains itself with ``--help``."""

from __future__ import annotations

import sys

import typer

from scripts.autoscale import bench, demo, explain, local, migrate, top
from scripts.autoscale.replay.command import replay
from scripts.autoscale.replay.many_values import ManyValues
from scripts.autoscale.running import INTERRUPTED
from scripts.autoscale.simulate.command import simulate


def app() -> typer.Typer:
    """The command with all its subcommands."""
    root = typer.Typer(
        name="autoscale",
        help="Vertical autoscaling for fleets of postgres VMs.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    root.add_typer(local.app(), name="local")
    root.command("demo")(demo.demo)
    root.command("top")(top.top)
    root.command("bench")(bench.bench)
    root.command("migrate")(migrate.migrate)
    root.command("replay", cls=ManyValues)(replay)
    root.command("simulate", cls=ManyValues)(simulate)
    root.command("explain")(explain.explain)
    return root


def main() -> None:
    """The entry point."""
    try:
        app()()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
