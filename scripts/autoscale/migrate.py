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
from protocol.durations import parse_duration
from protocol.kubernetes.api import ApiError, Tolerating
from protocol.kubernetes.objects import Json, flag, name_of, text, uid_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import EVENTS, MIGRATIONS, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.names import VM_GROUP, VM_VERSION
from protocol.pod_database import pod_of
from protocol.runtime.beside import beside
from protocol.runtime.clock import Clock, SystemClock
from protocol.units import Instant, Seconds
from scripts.autoscale.cluster_flags import VmNamespace, database_named, of_a_cluster
from scripts.autoscale.clusters import ClusterFlags, find_cluster
from scripts.autoscale.demonstration.moves import CANCELLED, ENDED, SUCCEEDED, MoveWatch, ObservedMove
from scripts.autoscale.running import INTERRUPTED
from scripts.autoscale.site import Site, open_site
from scripts.autoscale.terminal.completion import complete_vm
from scripts.autoscale.terminal.printing import Output, OutputFormat, print_lines, show
from scripts.autoscale.terminal.visible import visible

LIMIT: Final = Seconds(600.0)
_LOOK: Final = Seconds(0.1)
_EVENTS: Final = Seconds(1.0)
_TAKEN_UP: Final = Seconds(5.0)
"""A controller that works takes a migration up within this time."""
_GRACE: Final = Seconds(15.0)
"""The controller ends a migration at its time; one that is still there so much later has no controller."""
_CANCELS_WITHIN: Final = Seconds(60.0)
OPEN: Final = 3
"""The status of a command whose migration has not ended."""


@of_a_cluster()
async def migrate(  # noqa: PLR0913 - each is an option of the command
    vm: Annotated[str, typer.Argument(help="The VM, as NAME or NAMESPACE/NAME.", autocompletion=complete_vm)],
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the migration in progress.")] = False,
    within: Annotated[
        str, typer.Option("--timeout", help="Abort the migration after this time, such as 90s or 10m.")
    ] = "10m",
    output: OutputFormat = Output.TEXT,
    namespace: VmNamespace = "",
    *,
    flags: ClusterFlags,
) -> int:
    """Move a running VM to another node that has room; its address and connections stay.

    While no node has room, the VM scales on where it is, and the command says which node comes nearest. On a terminal,
    Ctrl-C asks whether to cancel the migration. Elsewhere it only ends the command: --cancel cancels the migration.

    Exit status: 0 moved, 1 failed or cancelled, 3 the migration goes on (no controller has ended it in time), 130 ended
    by Ctrl-C while the migration goes on.
    """
    limit = limit_of(within)
    cluster = find_cluster(flags)
    name, console = database_named(vm, namespace or cluster.namespace), Console(stderr=output.is_for_scripts)
    if why := stays_because(name):
        raise typer.BadParameter(why)
    async with open_site(cluster) as site:
        virtual_machine = await site.client.get(VIRTUAL_MACHINES, name)
        if cancel:
            return await _cancel(site, name)
        # Without an address of the overlay the pod's address changes with the node.
        if not keeps_connections(virtual_machine):
            console.print(f"{name} has no flat-network address: its connections break when it moves", soft_wrap=True)
        return await _migrate(site.client, name, console, output, limit)


def stays_because(database: ObjectName) -> str:
    """The reason why a database never migrates; empty for a VM.

    >>> stays_because(ObjectName("shop", "pod/pg-1"))
    'shop/pod/pg-1 is a pod: it is resized in place and does not migrate'
    """
    return f"{database} is a pod: it is resized in place and does not migrate" if pod_of(database) else ""


def limit_of(timeout: str) -> Seconds:
    """The time that a migration may take. Raises ``typer.BadParameter``."""
    try:
        limit = parse_duration(timeout)
    except ValueError as error:
        raise typer.BadParameter(f"--timeout: {error}") from None
    if not 1 <= limit <= 86_400:
        raise typer.BadParameter(f"--timeout: expected 1s to 24h, got {timeout!r}")
    return limit


async def _migrate(client: ApiClient, vm: ObjectName, console: Console, output: Output, limit: Seconds) -> int:
    clock, stop = SystemClock(), asyncio.Event()
    # Only a person at a terminal can be asked; scripts keep the default of Ctrl-C.
    asks = sys.stdin.isatty() and console.is_terminal
    if asks:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    move = await move_and_watch(client, vm, console, clock, limit, stop)
    if move.is_under_way and asks and stop.is_set():
        return await ask_to_cancel(client, move, console, clock, _is_yes)
    show([], as_fields(move), output)
    if move.is_under_way:
        print_lines(console, [f"the migration has not ended; autoscale migrate {vm} --cancel cancels it"])
        return OPEN
    return 0 if move.phase == SUCCEEDED else 1


async def _is_yes(question: str) -> bool:
    """Ask a question on the terminal. A second Ctrl-C ends the command, and cancels nothing."""
    # `input` blocks a thread that cannot be cancelled, so the process is ended outright.
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: os._exit(INTERRUPTED))
    try:
        return (await asyncio.to_thread(input, question)).strip().lower() in {"y", "yes"}
    except EOFError:
        return False


async def ask_to_cancel(
    client: ApiClient, move: ObservedMove, console: Console, clock: Clock, is_yes: Callable[[str], Awaitable[bool]]
) -> int:
    """Cancels the migration if the answer is yes, and waits for its end; the exit status of the command."""
    name = ObjectName(move.vm.namespace, move.name)
    if not await is_yes(f"Cancel the migration of {move.vm}? [y/N] "):
        print_lines(console, [f"the migration goes on; autoscale migrate {move.vm} --cancel cancels it"])
        return INTERRUPTED
    # If the object is gone, the controller has ended it.
    ended = CANCELLED
    with Tolerating(RefusalKind.NOT_FOUND):
        # Deleting the object asks the controller to cancel; its finalizer keeps the object until that is done.
        await client.delete(MIGRATIONS, name)
        until = clock.now() + _CANCELS_WITHIN
        while (phase := text(await client.get(MIGRATIONS, name), "status", "phase")) not in ENDED:
            if clock.now() >= until:
                print_lines(console, [f"the migration is being cancelled, and is {phase or 'not begun'} still"])
                return OPEN
            await clock.sleep(_EVENTS)
        ended = phase
    # The VM may have moved before the controller saw the deletion.
    print_lines(console, ["too late: the VM has moved" if ended == SUCCEEDED else f"cancelled; {move.vm} stays"])
    return 0 if ended == SUCCEEDED else 1


def as_fields(move: ObservedMove) -> Json:
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
    """Return True if the VM has an address of its own, which it takes along (pure)."""
    return flag(vm, "spec", "extraNetwork", "enable") or bool(text(vm, "status", "extraNetIP"))


async def move_and_watch(  # noqa: PLR0913, PLR0917 - what is to move, and how long and where that is watched
    client: ApiClient,
    vm: ObjectName,
    console: Console,
    clock: Clock,
    limit: Seconds,
    stop: asyncio.Event,
) -> ObservedMove:
    """Creates a migration and prints each change of its phase and what it waits for.

    Returns it once it has ended, after ``limit`` and some grace, or when ``stop`` is set. The watch starts before the
    object is created, so that a short migration is seen as well.
    """
    # Empty until the object exists: a turn that is seen earlier belongs to another migration.
    made = ""

    def turned(move: ObservedMove | None) -> None:
        if move is not None and move is watch.by_uid(made):
            print_lines(console, [move.title])

    watch = MoveWatch(client, clock, turned)
    # Watching begins before the object is created, so that a short migration is seen as well.
    await watch.begin()
    async with beside(watch.run()):
        migration = await client.create(MIGRATIONS, vm.namespace, migration_of(vm, limit))
        made, name = uid_of(migration), name_of(migration).name
        # The watch may have seen the object before `create` returned its UID.
        turned(watch.by_uid(made))
        waits = _Waits(client, vm, console, clock)
        with console.status("the VM is about to move") as status:
            until = Instant(clock.now() + limit + _GRACE)
            while (move := watch.by_uid(made)) is None or move.is_under_way:
                if stop.is_set() or clock.now() >= until:
                    break
                await waits.look(move, made)
                status.update(escape(visible(_doing(move))))
                await clock.sleep(_LOOK)
    # An object that was gone before the watch could show it is under way for all that is known.
    return ObservedMove(vm, name=name) if move is None else move


class _Waits:
    """Prints what a migration waits for, each reason once."""

    def __init__(self, client: ApiClient, vm: ObjectName, console: Console, clock: Clock) -> None:
        self._client, self._vm, self._console, self._clock = client, vm, console, clock
        self._began = self._read_at = clock.now()
        self._told: set[str] = set()
        self._is_explained = False

    async def look(self, move: ObservedMove | None, uid: str) -> None:
        """``move`` is its present state."""
        now = self._clock.now()
        # The controller writes the source node first.
        if move is None or not move.source:
            if not (move and move.waits) and now - self._began >= _TAKEN_UP:
                self._tell("no controller has taken the migration up yet: does neonvm-controller run?")
        # The scheduler's events name the nodes; asking for them once a second is enough.
        elif not move.target and not self._is_explained and now - self._read_at >= _EVENTS:
            self._read_at = now
            for why in await self._events(uid):
                self._is_explained = True
                self._tell(why)
        if move is not None and move.waits:
            self._tell(move.waits)

    async def _events(self, uid: str) -> list[str]:
        """The scheduler's events about its wait: which node comes nearest."""
        try:
            selector = f"involvedObject.uid={uid}"
            listed = (await self._client.list(EVENTS, self._vm.namespace, field_selector=selector)).objects
        except ApiError:
            # Events are a comfort: without the right to read them the migration goes on.
            return []
        return [text(event, "message") for event in listed if text(event, "reason") == "MigrationWaits"]

    def _tell(self, why: str) -> None:
        if why not in self._told:
            self._told.add(why)
            print_lines(self._console, [f"{self._vm.name}: {why}"])


def _doing(move: ObservedMove | None) -> str:
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
    """A migration as a person requests it, which its controller gives up after ``limit``."""
    return {
        "apiVersion": f"{VM_GROUP}/{VM_VERSION}",
        "kind": "VirtualMachineMigration",
        # A generated name, since a VM may move again while the object of its last move still exists.
        "metadata": {"generateName": f"{vm.name}-", "namespace": vm.namespace},
        "spec": {"vmName": vm.name, "completionTimeout": max(1, round(limit))},
    }


def is_under_way(migration: Json, vm: ObjectName) -> bool:
    """Return True if this is a migration of ``vm`` that has not ended."""
    ours = name_of(migration).namespace == vm.namespace and text(migration, "spec", "vmName") == vm.name
    return ours and text(migration, "status", "phase") not in ENDED
