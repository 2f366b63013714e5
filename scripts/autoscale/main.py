"""``autoscale``: the command-line interface. Every command explains itself with ``--help``.

Commands are imported on demand: importing all of them takes most of a second.
"""

from __future__ import annotations

import inspect
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Annotated, Any, Final

import typer
from typer.completion import completion_init  # type: ignore[attr-defined]  # not in __all__

from protocol import VERSION
from scripts.autoscale.clusters import KUBECTL_DEFAULT
from scripts.autoscale.running import CRASHED, INTERRUPTED, reason_of
from scripts.autoscale.terminal.plain_command import PlainCommand
from scripts.autoscale.terminal.streams import prepare_streams
from scripts.autoscale.terminal.visible import visible_lines

MULTI_VALUE_OPTIONS: Final = ("--trace", "--traces", "--policy", "--order")
"""Options of ``autoscale replay`` and ``autoscale simulate`` that accept several values, with their aliases."""


class MultiValueCommand(PlainCommand):
    """A command whose options in ``MULTI_VALUE_OPTIONS`` accept several values."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeats the option before each further value. The context's type is private to typer."""
        return super().parse_args(ctx, list(repeat_options(args)))


def repeat_options(arguments: Sequence[str]) -> Iterator[str]:
    """Yields the arguments with each option of ``MULTI_VALUE_OPTIONS`` repeated before each of its values."""
    option, values = "", 0
    for argument in arguments:
        if argument.startswith("-"):
            # An option with `=` already has its first value.
            name, _, value = argument.partition("=")
            option, values = (name if name in MULTI_VALUE_OPTIONS else ""), int(bool(value))
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
"""Import path of each command's function; for a command group, of the function that returns its app."""
CLUSTER_COMMANDS: Final = ("check", "top", "web", "explain", "migrate", "sleep", "wake", "bench", "cost", "record")
"""The commands of the kubectl plugin."""

PLUGIN: Final = "kubectl autoscaling"
"""Not ``kubectl autoscale``: that built-in command creates an HPA and takes precedence over a plugin."""

_COMMAND_GROUPS: Final = frozenset({"local", "images"})
_MULTI_VALUE_COMMANDS: Final = frozenset({"replay", "simulate"})


def app(names: Iterable[str] = COMMANDS, *, completes: bool = False) -> typer.Typer:
    """Returns the command line with the subcommands ``names``; ``completes`` adds typer's completion options.

    Raises ``KeyError`` for an unknown name.
    """
    root = typer.Typer(
        name="autoscale",
        help="Vertical autoscaling for fleets of postgres VMs.",
        no_args_is_help=True,
        add_completion=completes,
        # Rich's boxes cut long option names and break messages, so that neither can be copied or searched.
        rich_markup_mode=None,
        # As in kubectl, docker and gh; subcommands inherit it.
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        # Errors are reported by `_run`; typer's own tracebacks show local variables, which may hold secrets.
        pretty_exceptions_enable=False,
        callback=_root,
    )
    for name in names:
        module, _, function = COMMANDS[name].partition(":")
        target = getattr(import_module(module), function)
        if name in _COMMAND_GROUPS:
            root.add_typer(target(), name=name)
        else:
            command = MultiValueCommand if name in _MULTI_VALUE_COMMANDS else PlainCommand
            root.command(name, cls=command, help=_unwrapped(inspect.getdoc(target) or ""))(target)
    return root


def _unwrapped(text: str) -> str:
    # typer would keep the line breaks of a docstring within a paragraph.
    return "\n\n".join(paragraph.replace("\n", " ") for paragraph in text.split("\n\n"))


def _print_version(requested: bool) -> None:
    if requested:
        print(f"autoscale {VERSION}")
        raise typer.Exit


def _root(
    version: Annotated[  # noqa: ARG001 - its callback prints it
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    # With a callback a single command stays a subcommand; otherwise typer makes it the whole program.
    return


def main() -> None:
    """The entry point."""
    _run(lambda: app(requested_commands(COMMANDS), completes=True))


def plugin() -> None:
    """The entry point of the kubectl plugin: the cluster commands, by default for kubectl's current cluster."""
    defaults = {name: {"kubeconfig": KUBECTL_DEFAULT} for name in CLUSTER_COMMANDS}
    _run(lambda: app(requested_commands(CLUSTER_COMMANDS)), prog_name=PLUGIN, default_map=defaults)


def complete() -> None:
    """Prints completions for ``kubectl autoscaling …``, then cobra's directive for "no files"."""
    *before, incomplete = sys.argv[1:] or [""]
    try:
        if before:
            # typer's completion for bash reads these variables.
            os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = (
                shlex.join((PLUGIN, *before, incomplete)),
                f"{len(before) + 1}",
            )
            os.environ[f"_{PLUGIN}_COMPLETE".upper()] = "complete_bash"
            completion_init()
            plugin()
        # Command names need no imports.
        print("\n".join(name for name in CLUSTER_COMMANDS if name.startswith(incomplete)))
    finally:
        # cobra's directive 4 means "no file completion".
        print(":4")


def requested_commands(names: Collection[str]) -> Collection[str]:
    """Returns only the typed command if it is one of ``names``, else all: importing all of them is slow."""
    typed = sys.argv[1:2] or _words_before_completed()[1:2]
    # For an unknown command, typer's error needs all of them.
    return [name for name in typed if name in names] or names


def _words_before_completed() -> list[str]:
    """The words of the command line before the one that a shell asks to complete."""
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    # Without a space at its end, the last word is still being typed.
    return line.split()[:-1] if line and not line[-1:].isspace() else line.split()


def _run(command_line: Callable[[], typer.Typer], **options: object) -> None:
    try:
        prepare_streams(os.environ, sys.stdout, sys.stderr)
        # Built here, because importing a command takes long enough for a Ctrl-C.
        command_line()(**options)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - an internal error must not exit with a status that has a meaning
        sys.exit(_report_failure(error))


def _report_failure(error: Exception) -> int:
    """Prints why a command failed, and returns its exit status."""
    if reason := reason_of(error):
        print(f"autoscale: {visible_lines(reason)}", file=sys.stderr)
        return 2 if sys.argv[1:2] == ["check"] else 1  # 1 of check means warnings
    traceback.print_exception(error)
    print(f"autoscale {VERSION}: internal error; please report it with the lines above", file=sys.stderr)
    return CRASHED


if __name__ == "__main__":
    main()
