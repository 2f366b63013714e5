"""Options that choose a command's cluster, and their completion."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Final

import typer

from deploy.neonvm.network.namespaces import CLUSTER_NAME
from protocol.kubernetes.kubeconfig import KubeconfigError, context_names
from protocol.runtime.credentials import CredentialsError, read_kubeconfigs
from scripts.autoscale.clusters import LOCAL, flags_of
from scripts.autoscale.terminal.visible import visible_lines


def complete_context(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of contexts: of the kubeconfig that was typed, else of kubectl's."""
    try:
        names = context_names(read_kubeconfigs(flags_of(ctx.params).kubeconfigs()))
    except (CredentialsError, KubeconfigError):
        # Completion must not print errors into the command line.
        return []
    return [name for name in names if name.startswith(incomplete)]


def _perhaps_named(given: str) -> str:
    # typer calls back for the default as well, which is empty.
    return given and cluster_name(given)


def cluster_name(given: str) -> str:
    """The name of a cluster, which names its folder too. Raises ``typer.BadParameter``."""
    if CLUSTER_NAME.fullmatch(given) is None:
        raise typer.BadParameter(f"expected lower-case letters, digits and hyphens, at most 40, got {given!r}")
    return given


def _options(
    name: Annotated[
        str, typer.Option("--name", callback=_perhaps_named, help="A local cluster's name.", show_default=LOCAL)
    ] = "",
    kubeconfig: Annotated[str, typer.Option("--kubeconfig", help="Another cluster than the local one.")] = "",
    context: Annotated[
        str,
        typer.Option(
            "--context", help="The kubeconfig's context; the current one unless given.", autocompletion=complete_context
        ),
    ] = "",
    as_user: Annotated[str, typer.Option("--as", help="The user to impersonate.")] = "",
    as_group: Annotated[
        list[str] | None, typer.Option("--as-group", help="A group to impersonate; repeatable.")
    ] = None,
) -> None:
    """The options of every command that means a cluster."""


_OPTIONS: Final = inspect.signature(_options, eval_str=True).parameters


def of_a_cluster(failed: int = 1) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command whose parameter ``flags`` typer fills from ``--name``, ``--kubeconfig``, ``--context`` and ``--as``.

    If the cluster cannot be found, the command says why in one line and exits with the status ``failed``.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        # typer would take `flags` for an option of its own.
        own = [parameter for parameter in signature.parameters.values() if parameter.name != "flags"]

        @wraps(command)
        def with_flags(**values: object) -> None:
            # `pop` takes the shared options out of `values`, so that the command gets only its own.
            flags = flags_of({name: values.pop(name, None) for name in _OPTIONS})
            try:
                command(**values, flags=flags)
            except CredentialsError as error:
                typer.echo(f"autoscale: {visible_lines(str(error))}", err=True)
                raise typer.Exit(failed) from None

        parameters = [*own, *_OPTIONS.values()]
        with_flags.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # typer reads it
        # typer resolves annotations by name as well, and `wraps` has copied those of the command.
        with_flags.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return with_flags

    return decorate
