"""``autoscale sleep VM`` and ``autoscale wake VM`` (B.18)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.markup import escape

from deploy.kube.client import ApiClient
from protocol.guest.sleep import is_asleep, sleep_order, sleep_order_patch, sleep_report
from protocol.kubernetes.api import Tolerating
from protocol.kubernetes.objects import Json, text, uid_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from protocol.kubernetes.timestamps import micro_timestamp
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock, SystemClock
from protocol.units import Seconds
from scripts.autoscale.cluster_flags import VmArgument, VmNamespace, cluster_command, parse_vm, read_database
from scripts.autoscale.clusters import ClusterFlags, find_cluster
from scripts.autoscale.migrate import OPEN, parse_timeout
from scripts.autoscale.site import SiteError, open_site
from scripts.autoscale.sleep import texts
from scripts.autoscale.sleep.outcomes import (
    OrderOutcome,
    already_asleep,
    as_fields,
    fell_asleep,
    progress,
    refusal,
    sleep_timeout,
    woke,
)
from scripts.autoscale.terminal.printing import Output, OutputFormat, print_lines, show
from scripts.autoscale.terminal.visible import visible

_POLL: Final = Seconds(0.1)

Timeout = Annotated[str, typer.Option("--timeout", help="Stop waiting after this time, for example 90s or 10m.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Write the order and exit without waiting for the result.")]


@cluster_command()
async def sleep(  # noqa: PLR0913 - each is an option of the command
    vm: VmArgument,
    within: Timeout = "1m",
    no_wait: NoWait = False,
    output: OutputFormat = Output.TEXT,
    namespace: VmNamespace = "",
    *,
    flags: ClusterFlags,
) -> int:
    """Put a VM to sleep: free its CPU and memory, and keep its sessions open.

    The VM refuses while its database is busy, for example with a session in a transaction. It wakes on the first packet
    to postgres, or with `autoscale wake`.

    Exit status: 0 asleep, 1 refused, 3 timeout.
    """
    limit = parse_timeout(within)
    async with _orders(vm, namespace, output, flags) as orders:
        return await orders.sleep(None if no_wait else limit, output)


@cluster_command()
async def wake(  # noqa: PLR0913 - each is an option of the command
    vm: VmArgument,
    within: Timeout = "10m",
    no_wait: NoWait = False,
    output: OutputFormat = Output.TEXT,
    namespace: VmNamespace = "",
    *,
    flags: ClusterFlags,
) -> int:
    """Wake a sleeping VM, or remove its order to sleep. The VM waits while its node has no room for it.

    Exit status: 0 awake, 3 timeout.
    """
    limit = parse_timeout(within)
    async with _orders(vm, namespace, output, flags) as orders:
        return await orders.wake(None if no_wait else limit, output)


@asynccontextmanager
async def _orders(vm: str, namespace: str, output: Output, flags: ClusterFlags) -> AsyncIterator[Orders]:
    cluster = find_cluster(flags)
    name = parse_vm(vm, namespace or cluster.namespace)
    async with open_site(cluster) as site:
        yield Orders(site.client, name, SystemClock(), Console(stderr=output.is_for_scripts))


class Orders:
    """Writes an order to one VM and waits for the result, unless the limit is None."""

    def __init__(self, client: ApiClient, vm: ObjectName, clock: Clock, console: Console) -> None:
        self._client, self._vm, self._clock, self._console = client, vm, clock, console

    async def sleep(self, limit: Seconds | None, output: Output) -> int:
        """Return the exit status. Raises ``SiteError`` if the VM cannot sleep, otherwise like ``ApiClient``."""
        vm = await read_database(self._client, self._vm)
        if why := refusal(vm):
            raise SiteError(why)
        if line := already_asleep(vm):
            show([line], as_fields(vm), output)
            return 0
        # With microseconds, because only a changed value is a new order.
        order = micro_timestamp(self._clock.wall())
        vm = await self._client.merge_patch(VIRTUAL_MACHINES, self._vm, sleep_order_patch(order))
        if limit is None:
            show([texts.ORDERED.format(name=self._vm.name)], as_fields(vm), output)
            return 0
        vm, outcome = await self._follow(vm, limit, lambda seen, duration: fell_asleep(seen, order, duration))
        if outcome is None:
            return self._timed_out(vm, limit, output, sleep_timeout(vm, order))
        show([outcome.line], as_fields(vm), output)
        return 0 if outcome.is_done else 1

    async def wake(self, limit: Seconds | None, output: Output) -> int:
        """Return the exit status. Raises like ``ApiClient``, and ``SiteError`` if the VM is deleted while it wakes."""
        vm = await read_database(self._client, self._vm)
        order, sleeps = sleep_order(vm), is_asleep(vm)
        if order:
            vm = await self._client.merge_patch(VIRTUAL_MACHINES, self._vm, sleep_order_patch(None))
        if not sleeps:
            is_withdrawn = order and sleep_report(vm).order != order
            line = texts.WITHDRAWN if is_withdrawn else texts.AWAKE_ALREADY
            show([line.format(name=self._vm.name)], as_fields(vm), output)
            return 0
        if limit is None:
            show([texts.ASKED_TO_WAKE.format(name=self._vm.name)], as_fields(vm), output)
            return 0
        vm, outcome = await self._follow(vm, limit, woke)
        if outcome is None:
            return self._timed_out(vm, limit, output, texts.STILL)
        show([outcome.line], as_fields(vm), output)
        return 0

    async def _follow(
        self, vm: Json, limit: Seconds, end: Callable[[Json, Seconds], OrderOutcome | None]
    ) -> tuple[Json, OrderOutcome | None]:
        """Polls the VM; returns it and the result, or None after ``limit``. Raises ``SiteError`` if it is deleted."""
        began, uid = self._clock.now(), uid_of(vm)
        with self._console.status(escape(visible(progress(vm)))) as status:
            while (outcome := end(vm, Seconds(self._clock.now() - began))) is None:
                if self._clock.now() - began >= limit:
                    break
                await self._clock.sleep(_POLL)
                vm = await self._poll(uid)
                status.update(escape(visible(progress(vm))))
        return vm, outcome

    async def _poll(self, uid: str) -> Json:
        vm: Json = {}
        with Tolerating(RefusalKind.NOT_FOUND):
            vm = await self._client.get(VIRTUAL_MACHINES, self._vm)
        # The order does not apply to a new VM of the same name.
        if uid_of(vm) != uid:
            raise SiteError(texts.GONE.format(vm=self._vm))
        return vm

    def _timed_out(self, vm: Json, limit: Seconds, output: Output, line: str) -> int:
        phase = text(vm, "status", "phase") or "new"
        show([], as_fields(vm), output)
        print_lines(self._console, [line.format(name=self._vm.name, vm=self._vm, phase=phase, limit=f"{limit:g} s")])
        return OPEN
