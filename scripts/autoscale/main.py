"""``autoscale``: the command-line interface. Every command explains itself with ``--help``.

A command is imported when it is asked for: all of them together take most of a second.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Final

import typer

from scripts.autoscale.replay.many_values import ManyValues
from scripts.autoscale.running import INTERRUPTED

COMMANDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "local": "scripts.autoscale.local:app",
        "demo": "scripts.autoscale.demo:demo",
        "top": "scripts.autoscale.top:top",
        "bench": "scripts.autoscale.bench:bench",
        "migrate": "scripts.autoscale.migrate:migrate",
        "replay": "scripts.autoscale.replay.command:replay",
        "simulate": "scripts.autoscale.simulate.command:simulate",
        "explain": "scripts.autoscale.explain:explain",
        "images": "scripts.autoscale.images:images_app",
    }
)
"""Where each command's function is; that of a group of commands makes the group."""
_GROUPS: Final = frozenset({"local", "images"})
_OF_MANY_VALUES: Final = frozenset({"replay", "simulate"})


def app(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The command with these of its subcommands. Raises ``KeyError`` for a name that is none."""
    root = typer.Typer(
        name="autoscale",
        help="Vertical autoscaling for fleets of postgres VMs.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        callback=_before_any,
    )
    for name in names:
        module, _, function = COMMANDS[name].partition(":")
        found = getattr(import_module(module), function)
        if name in _GROUPS:
            root.add_typer(found(), name=name)
        else:
            root.command(name, cls=ManyValues if name in _OF_MANY_VALUES else None)(found)
    return root


def _before_any() -> None:
    # With it a single command stays a command; typer would make it the whole program.
    return


def main() -> None:
    """The entry point."""
    asked = [name for name in sys.argv[1:2] if name in COMMANDS]
    try:
        app(asked or COMMANDS)()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
