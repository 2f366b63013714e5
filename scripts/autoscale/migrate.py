"""``autoscale migrate VM``: moves a running VM to another node and reports the progress (S4.12)."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.markup import escape

from deploy.kube.client import ApiClient
from protocol.kubernetes.objects import Json, flag, name_of, text
from protocol.kubernetes.resources import MIGRATIONS, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.names import VM_GROUP, VM_VERSION
from protocol.runtime.clock import Clock, SystemClock
from protocol.units import Seconds
from scripts.autoscale.clusters import Context, Kubeconfig
from scripts.autoscale.demonstration.moves import ENDED, SUCCEEDED, Move, MoveWatch
from scripts.autoscale.local import Name
from scripts.autoscale.running import run
from scripts.autoscale.site import Site, open_site
from scripts.autoscale.terminal.completion import complete_vm
from scripts.autoscale.terminal.printing import Output, OutputFormat, print_lines, show
from scripts.autoscale.terminal.visible import visible
from scripts.autoscale.vms import DEFAULT, VmNamespace, vm_name

_LOOK: Final = Seconds(0.1)


def migrate(  # noqa: PLR0913, PLR0917 - each is an option of the command
    vm: Annotated[str, typer.Argument(help="The VM, as NAME or NAMESPACE/NAME.", autocompletion=complete_vm)],
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the migration in progress.")] = False,
    output: OutputFormat = Output.TEXT,
    name: Name = "local",
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    namespace: VmNamespace = DEFAULT,
) -> None:
    """Move a running VM to another node that has room; its address and connections stay.

    Exits 0 only if it succeeded. Ctrl-C stops watching, not the migration; --cancel cancels it.
    """
    run(_migrate(vm_name(vm, namespace), (name, kubeconfig, context), output, cancel=cancel))


async def _migrate(vm: ObjectName, where: tuple[str, str, str], output: Output, *, cancel: bool) -> int:
    async with open_site(*where) as site:
        found, console = await site.client.get(VIRTUAL_MACHINES, vm), Console(stderr=output.is_for_scripts)
        if cancel:
            return await _cancel(site, vm)
        if not keeps_connections(found):
            console.print(f"{vm} has no overlay address: its connections break when it moves", soft_wrap=True)
        move = await move_and_watch(site.client, vm, console, SystemClock())
        show([], as_fields(move), output)
        return 0 if move.phase == SUCCEEDED else 1


def as_fields(move: Move) -> Json:
    """For scripts: times in milliseconds (pure)."""
    return {
        "vm": str(move.vm),
        "source": move.source or None,
        "target": move.target or None,
        "phase": move.phase,
        "reason": move.reason or None,
        "totalMs": move.total_ms,
        "downtimeMs": move.downtime_ms,
    }


def keeps_connections(vm: Json) -> bool:
    """Whether the VM has an address of its own, which it takes along (pure)."""
    return flag(vm, "spec", "extraNetwork", "enable") or bool(text(vm, "status", "extraNetIP"))


async def move_and_watch(client: ApiClient, vm: ObjectName, console: Console, clock: Clock) -> Move:
    """Creates a migration and prints each change of its phase; returns it once it has ended.

    The watch starts before the object is created, so that a short migration is seen as well.
    """
    made = ""

    def turned(move: Move | None) -> None:
        if move is not None and move is watch.by_uid(made):
            print_lines(console, [move.title])

    watch = MoveWatch(client, clock, turned)
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(watch.run())
        await watch.synced()
        made = text(await client.create(MIGRATIONS, vm.namespace, migration_of(vm)), "metadata", "uid")
        turned(watch.by_uid(made))
        with console.status("the VM is about to move") as status:
            while (move := watch.by_uid(made)) is None or move.is_under_way:
                status.update(escape(visible(_doing(move))))
                await clock.sleep(_LOOK)
        watching.cancel()
    return move


def _doing(move: Move | None) -> str:
    return "the VM is about to move" if move is None else f"{move.title} {move.progress}".rstrip()


async def _cancel(site: Site, vm: ObjectName) -> int:
    found = [each for each in (await site.client.list(MIGRATIONS)).objects if is_under_way(each, vm)]
    for each in found:
        await site.client.delete(MIGRATIONS, name_of(each))
        print(f"cancelled {name_of(each)}")
    if not found:
        print(f"{vm} is not migrating")
    return 0 if found else 1


def migration_of(vm: ObjectName) -> Json:
    """A migration as a person requests it."""
    return {
        "apiVersion": f"{VM_GROUP}/{VM_VERSION}",
        "kind": "VirtualMachineMigration",
        "metadata": {"generateName": f"{vm.name}-", "namespace": vm.namespace},
        "spec": {"vmName": vm.name},
    }


def is_under_way(migration: Json, vm: ObjectName) -> bool:
    """Whether this is a migration of ``vm`` that has not ended."""
    ours = name_of(migration).namespace == vm.namespace and text(migration, "spec", "vmName") == vm.name
    return ours and text(migration, "status", "phase") not in ENDED
