"""Finds VirtualMachines by name, and shows them as a table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.markup import escape
from rich.table import Table

from deploy.kube.client import client_from_kubeconfig
from protocol.kubernetes.api import ApiRefusedError
from protocol.kubernetes.objects import Json, child, name_of, text
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from protocol.messages import ObjectName
from scripts.autoscale.clusters import DEFAULT_NAMESPACE
from scripts.autoscale.terminal.completion import complete_namespace
from scripts.autoscale.terminal.visible import visible

VmNamespace = Annotated[
    str,
    typer.Option(
        "--namespace",
        "-n",
        help="Namespace of the VM, unless given as NAMESPACE/NAME (default: the context's).",
        autocompletion=complete_namespace,
    ),
]

_NAME: Final = r"[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?"
_GIVEN: Final = re.compile(rf"(?:({_NAME})/)?({_NAME})")


def vm_name(given: str, namespace: str = DEFAULT_NAMESPACE) -> ObjectName:
    """``NAME`` in ``namespace``, or ``NAMESPACE/NAME``. Raises ``typer.BadParameter``."""
    match = _GIVEN.fullmatch(given)
    if match is None:
        raise typer.BadParameter(f"expected a VM as NAME or NAMESPACE/NAME, got {given!r}")
    return ObjectName(match[1] or namespace, match[2])


async def vm_host(kubeconfig: Path, vm: ObjectName) -> str:
    """The address of a running VM on the flat network. Raises ``LookupError``."""
    async with client_from_kubeconfig(kubeconfig) as client:
        try:
            virtual_machine = await client.get(VIRTUAL_MACHINES, vm)
        except ApiRefusedError as error:
            raise LookupError(str(error)) from error
    # The overlay address goes first, since it stays when the VM moves.
    host = text(virtual_machine, "status", "extraNetIP") or text(virtual_machine, "status", "podIP")
    if not host:
        raise LookupError(
            f"the VM {vm} does not run yet (phase {text(virtual_machine, 'status', 'phase') or 'unknown'})"
        )
    return host


async def vm_table(kubeconfig: Path) -> Table:
    """All VMs of a cluster with their sizes."""
    async with client_from_kubeconfig(kubeconfig) as client:
        listed = await client.list(VIRTUAL_MACHINES)
    table = Table("VM", "phase", "node", "CPU", "memory", "wanted", box=None)
    for vm in listed.objects:
        table.add_row(*_row(vm))
    return table


def _row(vm: Json) -> tuple[str, ...]:
    guest = child(vm, "spec", "guest")
    cpu, slots = child(guest, "cpus").get("use"), child(guest, "memorySlots").get("use")
    wanted = f"{cpu} cpu, {slots} x {text(guest, 'memorySlotSize')}"
    status = (text(vm, "status", key) or "-" for key in ("phase", "node", "cpus", "memorySize"))
    # Values of a cluster may contain markup or control characters.
    return tuple(escape(visible(cell)) for cell in (str(name_of(vm)), *status, wanted))
