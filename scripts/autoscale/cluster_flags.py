"""Options that select a command's cluster, and their completion."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.markup import escape
from rich.table import Table

from deploy.kube.client import ApiClient, client_from_kubeconfig
from deploy.neonvm.network.namespaces import CLUSTER_NAME
from protocol.kubernetes.api import ApiRefusedError
from protocol.kubernetes.kubeconfig import KubeconfigError, context_names
from protocol.kubernetes.objects import Json, child, name_of, text
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.pod_database import PREFIX, pod_of
from protocol.runtime.credentials import CredentialsError, read_kubeconfigs
from scheduler_plugin.databases import database_object
from scripts.autoscale.clusters import DEFAULT_NAMESPACE, LOCAL, flags_of
from scripts.autoscale.running import run
from scripts.autoscale.site import SiteError
from scripts.autoscale.terminal.completion import complete_namespace, complete_vm
from scripts.autoscale.terminal.visible import visible

_NAMESPACE: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")


def check_namespace(name: str) -> str:
    """Validates a namespace, or empty; a callback for typer. Raises ``typer.BadParameter``."""
    if name and _NAMESPACE.fullmatch(name) is None:
        raise typer.BadParameter(f"expected lower-case letters, digits and hyphens, at most 63, got {name!r}")
    return name


VmArgument = Annotated[
    str, typer.Argument(metavar="VM", help="The VM, as NAME or NAMESPACE/NAME.", autocompletion=complete_vm)
]
VmNamespace = Annotated[
    str,
    typer.Option(
        "--namespace",
        "-n",
        help="Namespace, unless given as NAMESPACE/NAME (default: the context's).",
        callback=check_namespace,
        autocompletion=complete_namespace,
    ),
]

_NAME: Final = r"[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?"
# ``pod/NAME`` is a pod, as in kubectl, not a VM in a namespace called pod.
_DATABASE: Final = re.compile(rf"(?:(?!pod/[^/]*$)({_NAME})/)?((?:{PREFIX})?{_NAME})")


def parse_database(argument: str, namespace: str = DEFAULT_NAMESPACE) -> ObjectName:
    """Parses ``[NAMESPACE/]NAME`` or ``[NAMESPACE/]pod/NAME``. Raises ``typer.BadParameter``."""
    match = _DATABASE.fullmatch(argument)
    if match is None:
        raise typer.BadParameter(
            f"expected a VM as [NAMESPACE/]NAME or a pod as [NAMESPACE/]pod/NAME, got {argument!r}", param_hint="NAME"
        )
    return ObjectName(match[1] or namespace, match[2])


def parse_vm(argument: str, namespace: str = DEFAULT_NAMESPACE) -> ObjectName:
    """Parses ``[NAMESPACE/]NAME``. Raises ``typer.BadParameter``, also for a pod."""
    name = parse_database(argument, namespace)
    if pod_of(name) is not None:
        raise typer.BadParameter(f"{name} is a pod; this command is for VMs only")
    return name


class MissingDatabaseError(SiteError):
    """The cluster has no database of this name."""


async def read_database(client: ApiClient, database: ObjectName) -> Json:
    """The VM or pod. Raises ``MissingDatabaseError``, otherwise like ``ApiClient.get``."""
    kind, name = database_object(database)
    try:
        return await client.get(kind, name)
    except ApiRefusedError as error:
        # Without a reason, the API server does not serve the kind.
        if error.kind is not RefusalKind.NOT_FOUND or not error.refusal.reason:
            raise
        what = "VM" if kind is VIRTUAL_MACHINES else "pod"
        raise MissingDatabaseError(f"there is no {what} {name}; see all databases: autoscale top") from None


async def vm_host(kubeconfig: Path, vm: ObjectName) -> str:
    """The address of a running VM on the flat network. Raises ``SiteError`` and the errors of ``ApiClient.get``."""
    async with client_from_kubeconfig(kubeconfig) as client:
        virtual_machine = await read_database(client, vm)
    # Prefer the overlay address, which the VM keeps when it migrates.
    host = text(virtual_machine, "status", "extraNetIP") or text(virtual_machine, "status", "podIP")
    if not host:
        raise SiteError(f"VM {vm} is not running yet (phase {text(virtual_machine, 'status', 'phase') or 'unknown'})")
    return host


async def vm_table(kubeconfig: Path) -> Table:
    """Returns a table of all VMs of a cluster with their sizes."""
    async with client_from_kubeconfig(kubeconfig) as client:
        listed = await client.list(VIRTUAL_MACHINES)
    table = Table("VM", "phase", "node", "vCPU", "memory", "desired", box=None)
    for vm in listed.objects:
        table.add_row(*_row(vm))
    return table


def _row(vm: Json) -> tuple[str, ...]:
    guest = child(vm, "spec", "guest")
    cpu, slots = child(guest, "cpus").get("use"), child(guest, "memorySlots").get("use")
    desired = f"{cpu} vCPU, {slots} x {text(guest, 'memorySlotSize')}"
    status = (text(vm, "status", key) or "-" for key in ("phase", "node", "cpus", "memorySize"))
    # Values from a cluster may contain markup or control characters.
    return tuple(escape(visible(cell)) for cell in (str(name_of(vm)), *status, desired))


def complete_context(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes context names from the typed kubeconfig, or else from kubectl's."""
    try:
        names = context_names(read_kubeconfigs(flags_of(ctx.params).kubeconfigs()))
    except (CredentialsError, KubeconfigError):
        # Completion must not print errors into the command line.
        return []
    return [name for name in names if name.startswith(incomplete)]


def _optional_cluster_name(name: str) -> str:
    # typer calls back for the empty default as well.
    return name and check_cluster_name(name)


def check_cluster_name(name: str) -> str:
    """Validates the name of a local cluster, which is also its folder's name. Raises ``typer.BadParameter``."""
    if CLUSTER_NAME.fullmatch(name) is None:
        raise typer.BadParameter(f"expected lower-case letters, digits and hyphens, at most 40, got {name!r}")
    return name


def _options(
    name: Annotated[
        str,
        typer.Option("--name", callback=_optional_cluster_name, help="Name of a local cluster.", show_default=LOCAL),
    ] = "",
    kubeconfig: Annotated[
        str, typer.Option("--kubeconfig", help="Kubeconfig file of a cluster other than the local one.")
    ] = "",
    context: Annotated[
        str,
        typer.Option(
            "--context", help="Context in the kubeconfig (default: the current one).", autocompletion=complete_context
        ),
    ] = "",
    as_user: Annotated[str, typer.Option("--as", help="User to impersonate.")] = "",
    as_group: Annotated[list[str] | None, typer.Option("--as-group", help="Group to impersonate; repeatable.")] = None,
) -> None:
    """Options of every command that works on a cluster."""


_OPTIONS: Final = inspect.signature(_options, eval_str=True).parameters


def cluster_command(
    failed: int = 1,
) -> Callable[[Callable[..., Coroutine[object, object, int]]], Callable[..., None]]:
    """Decorates a coroutine function as a command that works on a cluster; ``failed`` is as in ``run``.

    Its parameter ``flags`` is filled from ``--name``, ``--kubeconfig``, ``--context`` and ``--as``.
    """

    def decorate(command: Callable[..., Coroutine[object, object, int]]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        # typer would make `flags` an option.
        own = [parameter for parameter in signature.parameters.values() if parameter.name != "flags"]

        @wraps(command)
        def with_flags(**values: object) -> None:
            # `pop`, so that the command receives only its own options.
            flags = flags_of({name: values.pop(name, None) for name in _OPTIONS})
            run(command(**values, flags=flags), failed=failed)

        parameters = [*own, *_OPTIONS.values()]
        with_flags.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # typer reads it
        # typer resolves annotations by name as well, and `wraps` has copied the command's annotations.
        with_flags.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return with_flags

    return decorate
