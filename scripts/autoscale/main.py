"""``autoscale``: the command-line interface. Every command explains itself with ``--help``.

A command is imported when it is asked for: all of them together take most of a second.
"""

from __future__ import annotations

import os
import shlex
import sys
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Annotated, Any, Final

import typer
from typer.completion import completion_init  # type: ignore[attr-defined]  # not in __all__
from typer.core import TyperCommand

from protocol import VERSION
from scripts.autoscale.clusters import KUBECTLS
from scripts.autoscale.running import CRASHED, INTERRUPTED, reason_of
from scripts.autoscale.terminal.streams import prepare_streams
from scripts.autoscale.terminal.visible import visible_lines

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


COMMANDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "local": "scripts.autoscale.local:app",
        "demo": "scripts.autoscale.demo:demo",
        "check": "scripts.autoscale.check.command:check",
        "top": "scripts.autoscale.top.command:top",
        "web": "scripts.autoscale.page:web",
        "bench": "scripts.autoscale.bench:bench",
        "migrate": "scripts.autoscale.migrate:migrate",
        "sleep": "scripts.autoscale.sleep.command:sleep",
        "wake": "scripts.autoscale.sleep.command:wake",
        "replay": "scripts.autoscale.replay.command:replay",
        "simulate": "scripts.autoscale.simulate.command:simulate",
        "explain": "scripts.autoscale.explain:explain",
        "cost": "scripts.autoscale.costs.cost:cost",
        "record": "scripts.autoscale.costs.record:record",
        "images": "scripts.autoscale.images:images_app",
        "completion": "scripts.autoscale.terminal.completion:completion",
    }
)
"""Where each command's function is; that of a group of commands makes the group."""
OF_A_CLUSTER: Final = ("check", "top", "web", "explain", "migrate", "sleep", "wake", "bench", "cost", "record")
"""The commands of kubectl's plugin."""

PLUGIN: Final = "kubectl autoscaling"
"""kubectl's own command ``autoscale`` makes an HPA, and goes before any plugin of that name."""

_GROUPS: Final = frozenset({"local", "images"})
_OF_MANY_VALUES: Final = frozenset({"replay", "simulate"})


def app(names: Iterable[str] = COMMANDS, *, completes: bool = False) -> typer.Typer:
    """The command with these of its subcommands; ``completes``: it completes itself in shells.

    Raises ``KeyError`` for a name that is none.
    """
    root = typer.Typer(
        name="autoscale",
        help="Vertical autoscaling for fleets of postgres VMs.",
        no_args_is_help=True,
        add_completion=completes,
        # Errors are reported by `_run`; typer's own tracebacks show local variables, which may hold secrets.
        pretty_exceptions_enable=False,
        callback=_before_any,
    )
    for name in names:
        module, _, function = COMMANDS[name].partition(":")
        target = getattr(import_module(module), function)
        if name in _GROUPS:
            root.add_typer(target(), name=name)
        else:
            root.command(name, cls=ManyValues if name in _OF_MANY_VALUES else None)(target)
    return root


def _say_version(asked: bool) -> None:
    if asked:
        print(f"autoscale {VERSION}")
        raise typer.Exit


def _before_any(
    version: Annotated[  # noqa: ARG001 - its callback answers
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    # With a callback a single command stays a subcommand; otherwise typer makes it the whole program.
    return


def main() -> None:
    """The entry point."""
    _run(app(asked(COMMANDS), completes=True))


def plugin() -> None:
    """The entry point of kubectl's plugin: commands about a cluster, which is kubectl's unless flags say another."""
    defaults = {name: {"kubeconfig": KUBECTLS} for name in OF_A_CLUSTER}
    _run(app(asked(OF_A_CLUSTER)), prog_name=PLUGIN, default_map=defaults)


def complete() -> None:
    """Completions for ``kubectl autoscaling …``: words that fit, then cobra's code for "no files"."""
    *before, begun = sys.argv[1:] or [""]
    try:
        if before:
            # Typer completes as for bash, whose variables these are.
            os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = (
                shlex.join((PLUGIN, *before, begun)),
                f"{len(before) + 1}",
            )
            os.environ[f"_{PLUGIN}_COMPLETE".upper()] = "complete_bash"
            completion_init()
            plugin()
        # Names of commands need none of their modules.
        print("\n".join(name for name in OF_A_CLUSTER if name.startswith(begun)))
    finally:
        # cobra's directive 4 means "no file completion".
        print(":4")


def asked(names: Collection[str]) -> Collection[str]:
    """Only the command that was typed, if it is one of ``names``: making all of them takes longer."""
    typed = sys.argv[1:2] or _completed()[1:2]
    # An unknown word gets the whole program, whose error lists all commands.
    return [name for name in typed if name in names] or names


def _completed() -> list[str]:
    """The words that a shell wants completed, but for the last one, which is not whole yet."""
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    # Without a space at its end, the last word is still being typed.
    return line.split()[:-1] if line and not line[-1:].isspace() else line.split()


def _run(made: typer.Typer, **more: object) -> None:
    try:
        prepare_streams(os.environ, sys.stdout, sys.stderr)
        made(**more)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - whatever it is, its status must not look like an answer
        sys.exit(_failed(error))


def _failed(error: Exception) -> int:
    """Prints why a command failed, and returns its exit status."""
    if reason := reason_of(error):
        print(f"autoscale: {visible_lines(reason)}", file=sys.stderr)
        return 2 if sys.argv[1:2] == ["check"] else 1  # 1 of check means warnings
    traceback.print_exception(error)
    print(f"autoscale {VERSION}: internal error; please report it with the lines above", file=sys.stderr)
    return CRASHED


if __name__ == "__main__":
    main()
