"""``autoscale migrate VM``: moves a running VM to another node and reports the progress (S4.12)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.markup import escape

from deploy.kube.client import ApiClient
from protocol.kubernetes.api import ApiError, Tolerating
from protocol.kubernetes.objects import Json, flag, name_of, text, uid_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import EVENTS, MIGRATIONS
from protocol.messages import ObjectName
from protocol.names import VM_GROUP, VM_VERSION
from protocol.pod_database import pod_of
from protocol.runtime.background_jobs import background_jobs
from protocol.runtime.clock import Clock, SystemClock
from protocol.units import Instant, Seconds
from scripts.autoscale.cluster_flags import VmArgument, VmNamespace, cluster_command, parse_database, read_database
from scripts.autoscale.clusters import ClusterFlags, find_cluster
from scripts.autoscale.demonstration.moves import CANCELLED, ENDED, SUCCEEDED, MoveWatch, ObservedMove
from scripts.autoscale.running import INTERRUPTED
from scripts.autoscale.site import Site, open_site
from scripts.autoscale.terminal.durations import duration_between
from scripts.autoscale.terminal.printing import Output, OutputFormat, print_lines, show
from scripts.autoscale.terminal.visible import visible

LIMIT: Final = Seconds(600.0)
_POLL: Final = Seconds(0.1)
_EVENTS_POLL: Final = Seconds(1.0)
_PICKED_UP: Final = Seconds(5.0)
"""A working controller picks a migration up within this time."""
_GRACE: Final = Seconds(15.0)
"""The controller aborts a migration at its timeout; one still in progress this much later has no controller."""
_CANCELS_WITHIN: Final = Seconds(60.0)
OPEN: Final = 3
"""The exit status if the migration has not ended."""


@cluster_command()
async def migrate(  # noqa: PLR0913 - each is an option of the command
    vm: VmArgument,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the migration in progress.")] = False,
    within: Annotated[
        str, typer.Option("--timeout", help="Abort the migration after this time, such as 90s or 10m.")
    ] = "10m",
    output: OutputFormat = Output.TEXT,
    namespace: VmNamespace = "",
    *,
    flags: ClusterFlags,
) -> int:
    """Move a running VM to another node that has room; it keeps its address and connections.

    While no node has room, the VM keeps scaling where it is, and the command names the node closest to having room. On
    a terminal, Ctrl-C asks whether to cancel the migration. Elsewhere it only ends the command: --cancel cancels the
    migration.

    Exit status: 0 moved, 1 failed or cancelled, 3 still in progress (no controller has ended it in time), 130 ended by
    Ctrl-C while the migration continues.
    """
    limit = parse_timeout(within)
    cluster = find_cluster(flags)
    name, console = parse_database(vm, namespace or cluster.namespace), Console(stderr=output.is_for_scripts)
    if reason := no_migration_reason(name):
        raise typer.BadParameter(reason)
    async with open_site(cluster) as site:
        virtual_machine = await read_database(site.client, name)
        if cancel:
            return await _cancel(site, name)
        # Without an overlay address, the VM's address changes with the node.
        if not keeps_connections(virtual_machine):
            console.print(f"{name} has no flat-network address: its connections break when it moves", soft_wrap=True)
        return await _migrate(site.client, name, console, output, limit)


def no_migration_reason(database: ObjectName) -> str:
    """Reason why a database never migrates; empty for a VM.

    >>> no_migration_reason(ObjectName("shop", "pod/pg-1"))
    'shop/pod/pg-1 is a pod: it is resized in place and does not migrate'
    """
    return f"{database} is a pod: it is resized in place and does not migrate" if pod_of(database) else ""


def parse_timeout(timeout: str) -> Seconds:
    """Parses ``--timeout``. Raises ``typer.BadParameter``."""
    return duration_between(Seconds(1.0), Seconds(86_400.0), timeout, "--timeout")


async def _migrate(client: ApiClient, vm: ObjectName, console: Console, output: Output, limit: Seconds) -> int:
    clock, stop = SystemClock(), asyncio.Event()
    # Only a person at a terminal can be asked; for scripts Ctrl-C keeps its default.
    asks = sys.stdin.isatty() and console.is_terminal
    if asks:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    move = await move_and_watch(client, vm, console, clock, limit, stop)
    if move.is_under_way and asks and stop.is_set():
        return await ask_to_cancel(client, move, console, clock, _confirm)
    show([], as_fields(move), output)
    if move.is_under_way:
        print_lines(console, [f"the migration has not ended; autoscale migrate {vm} --cancel cancels it"])
        return OPEN
    return 0 if move.phase == SUCCEEDED else 1


async def _confirm(question: str) -> bool:
    """Asks a question on the terminal. A second Ctrl-C ends the command without cancelling."""
    # `input` blocks a thread that cannot be cancelled, so the process is ended outright.
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: os._exit(INTERRUPTED))
    try:
        return (await asyncio.to_thread(input, question)).strip().lower() in {"y", "yes"}
    except EOFError:
        return False


async def ask_to_cancel(
    client: ApiClient, move: ObservedMove, console: Console, clock: Clock, confirm: Callable[[str], Awaitable[bool]]
) -> int:
    """Cancels the migration if the user confirms, and waits for its end. Returns the command's exit status."""
    name = ObjectName(move.vm.namespace, move.name)
    if not await confirm(f"Cancel the migration of {move.vm}? [y/N] "):
        print_lines(console, [f"the migration continues; autoscale migrate {move.vm} --cancel cancels it"])
        return INTERRUPTED
    # An object that is gone was cancelled.
    ended = CANCELLED
    with Tolerating(RefusalKind.NOT_FOUND):
        # Deleting the object asks the controller to cancel; its finalizer keeps the object until that is done.
        await client.delete(MIGRATIONS, name)
        until = clock.now() + _CANCELS_WITHIN
        while (phase := text(await client.get(MIGRATIONS, name), "status", "phase")) not in ENDED:
            if clock.now() >= until:
                print_lines(console, [f"the migration is being cancelled; its phase is still {phase or 'unset'}"])
                return OPEN
            await clock.sleep(_EVENTS_POLL)
        ended = phase
    # The VM may have moved before the controller saw the deletion.
    print_lines(
        console, ["too late: the VM has moved" if ended == SUCCEEDED else f"cancelled; {move.vm} stays on its node"]
    )
    return 0 if ended == SUCCEEDED else 1


def as_fields(move: ObservedMove) -> Json:
    """The output for scripts; times are in milliseconds (pure)."""
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
    """Return True if the VM has an overlay address, which it keeps when it migrates (pure)."""
    return flag(vm, "spec", "extraNetwork", "enable") or bool(text(vm, "status", "extraNetIP"))


async def move_and_watch(  # noqa: PLR0913, PLR0917 - the VM, how long to watch, and where to print
    client: ApiClient,
    vm: ObjectName,
    console: Console,
    clock: Clock,
    limit: Seconds,
    stop: asyncio.Event,
) -> ObservedMove:
    """Creates a migration, and prints each change of its phase and what it waits for.

    Returns it once it has ended, after ``limit`` and some grace, or when ``stop`` is set.
    """
    # Empty until the object exists: a change seen earlier belongs to another migration.
    uid = ""

    def changed(move: ObservedMove | None) -> None:
        if move is not None and move is watch.by_uid(uid):
            print_lines(console, [move.title])

    watch = MoveWatch(client, clock, changed)
    # The watch begins before the object is created, so that it does not miss a short migration.
    await watch.begin()
    async with background_jobs(watch.run()):
        migration = await client.create(MIGRATIONS, vm.namespace, migration_of(vm, limit))
        uid, name = uid_of(migration), name_of(migration).name
        # The watch may have seen the object before `create` returned its UID.
        changed(watch.by_uid(uid))
        waits = _WaitReasons(client, vm, console, clock)
        with console.status("the VM is about to move") as status:
            until = Instant(clock.now() + limit + _GRACE)
            while (move := watch.by_uid(uid)) is None or move.is_under_way:
                if stop.is_set() or clock.now() >= until:
                    break
                await waits.update(move, uid)
                status.update(escape(visible(_progress(move))))
                await clock.sleep(_POLL)
    # If the object was gone before the watch saw it, its outcome is unknown: report it as in progress.
    return ObservedMove(vm, name=name) if move is None else move


class _WaitReasons:
    """Prints what a migration waits for, each reason once."""

    def __init__(self, client: ApiClient, vm: ObjectName, console: Console, clock: Clock) -> None:
        self._client, self._vm, self._console, self._clock = client, vm, console, clock
        self._began = self._read_at = clock.now()
        self._printed: set[str] = set()
        self._is_explained = False

    async def update(self, move: ObservedMove | None, uid: str) -> None:
        """Prints new reasons; ``move`` is the migration's current state."""
        now = self._clock.now()
        # The controller writes the source node first.
        if move is None or not move.source:
            if not (move and move.waits) and now - self._began >= _PICKED_UP:
                self._print_once("no controller has picked up the migration yet: is neonvm-controller running?")
        # The scheduler's events name the nodes; listing them once a second is enough.
        elif not move.target and not self._is_explained and now - self._read_at >= _EVENTS_POLL:
            self._read_at = now
            for reason in await self._events(uid):
                self._is_explained = True
                self._print_once(reason)
        if move is not None and move.waits:
            self._print_once(move.waits)

    async def _events(self, uid: str) -> list[str]:
        """The scheduler's events about the wait, which name the node closest to having room."""
        try:
            selector = f"involvedObject.uid={uid}"
            listed = (await self._client.list(EVENTS, self._vm.namespace, field_selector=selector)).objects
        except ApiError:
            # Events are optional: the user may lack the permission to read them.
            return []
        return [text(event, "message") for event in listed if text(event, "reason") == "MigrationWaits"]

    def _print_once(self, reason: str) -> None:
        if reason not in self._printed:
            self._printed.add(reason)
            print_lines(self._console, [f"{self._vm.name}: {reason}"])


def _progress(move: ObservedMove | None) -> str:
    return "the VM is about to move" if move is None else f"{move.title} {move.progress}".rstrip()


async def _cancel(site: Site, vm: ObjectName) -> int:
    active = [migration for migration in (await site.client.list(MIGRATIONS)).objects if is_under_way(migration, vm)]
    for migration in active:
        await site.client.delete(MIGRATIONS, name_of(migration))
        print(f"cancelled {name_of(migration)}")
    if not active:
        print(f"{vm} is not migrating")
    return 0 if active else 1


def migration_of(vm: ObjectName, limit: Seconds = LIMIT) -> Json:
    """The object of a manual migration, which the controller aborts after ``limit``."""
    return {
        "apiVersion": f"{VM_GROUP}/{VM_VERSION}",
        "kind": "VirtualMachineMigration",
        # A generated name, because the object of the VM's last migration may still exist.
        "metadata": {"generateName": f"{vm.name}-", "namespace": vm.namespace},
        "spec": {"vmName": vm.name, "completionTimeout": max(1, round(limit))},
    }


def is_under_way(migration: Json, vm: ObjectName) -> bool:
    """Return True if this is a migration of ``vm`` that has not ended."""
    ours = name_of(migration).namespace == vm.namespace and text(migration, "spec", "vmName") == vm.name
    return ours and text(migration, "status", "phase") not in ENDED
