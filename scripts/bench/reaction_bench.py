"""``make bench-reaction``: time until a load gets more CPU, with and without the guest monitor's reports.

Both are measured alternately in one guest, so that a busy machine slows down both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from deploy.kube.informer import Informer, ObjectChange
from deploy.local.cluster.spec import ClusterSpec
from deploy.neonvm.network.chooser import NetworkKind
from protocol.kubernetes.conditions import holds
from protocol.kubernetes.objects import Json, child
from protocol.kubernetes.resources import PODS, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_CONFIG
from protocol.runtime.beside import beside
from protocol.runtime.clock import Clock, SystemClock
from protocol.units import Instant, MilliCpu, Resources, Seconds
from protocol.virtual_machine import parse_virtual_machine
from scripts.autoscale.demonstration.vm_database import create_vm, database_of, postgres_vm
from scripts.autoscale.demonstration.waiting import wait_until
from scripts.autoscale.running import runs
from scripts.autoscale.site import Site, SiteError
from scripts.autoscale.stages import fresh_cluster
from scripts.database_client import DatabaseSession

VM: Final = ObjectName("default", "reaction")
NAME: Final = "bench-reaction"
SESSIONS: Final = 4
LOAD: Final = "SELECT count(*) FROM generate_series(1, 400000) a"
BOOT: Final = Seconds(300.0)
CALM: Final = Seconds(6.0)
"""The guest's size must be unchanged for this long before the next load: the agent ignores the noise of a shrink."""

REST: Final = Seconds(60.0)
GIVE_UP: Final = Seconds(30.0)
OVER: Final = Seconds(120.0)
"""Timeout of a load, which normally takes a few seconds."""

HOLD: Final = {"cpu": [{"hold": {"window": 4}}], "memory": [{"hold": {"window": 4}}]}


class Reaction(msgspec.Struct, frozen=True):
    """Seconds from the first query of a load until more CPU was ordered and online; None after ``GIVE_UP``."""

    with_monitor: bool
    ordered: float | None
    online: float | None


@runs
async def bench_reaction(
    starts: Annotated[int, typer.Option(min=2, max=200, help="Number of loads of each kind.")] = 30,
) -> int:
    """Start loads in an idle guest with 1 CPU, and measure the time until it has more CPU.

    For every second load, the agent ignores the guest monitor's reports. Exits with 0 if all loads got more CPU.
    """
    console, clock = Console(), SystemClock()
    spec = ClusterSpec(network=NetworkKind.AUTO.value, nodes=1, node_cpu="8", node_memory="8Gi")
    async with fresh_cluster(NAME, spec, console) as site, AsyncExitStack() as stack:
        starter = Starter(site, clock, console.print)
        async with beside(starter.vms.run()):
            reactions = await starter.measure(stack, starts)
    console.print(table(reactions))
    return 0 if all(reaction.online is not None for reaction in reactions) else 1


@dataclass(slots=True)
class Starter:
    """Starts loads in one VM."""

    site: Site
    clock: Clock
    say: Callable[[str], None]
    vms: Informer = field(init=False)
    _ordered: Instant | None = None
    _online: Instant | None = None
    _sizes: tuple[Resources, Resources | None] | None = None
    _resized: Instant = Instant(0.0)

    def __post_init__(self) -> None:
        self.vms = Informer(self.site.client, VIRTUAL_MACHINES, self.clock)
        self.vms.listen(self._see)

    async def measure(self, stack: AsyncExitStack, starts: int) -> list[Reaction]:
        """Run ``starts`` loads of each kind. Raises ``SiteError``, ``DatabaseError`` and ``OSError``."""
        vm = postgres_vm(VM, cpus=4, slots=4)
        await create_vm(self.site.client, vm)
        await self._until(lambda: holds(self.vms.get(VM) or {}, "Available"), BOOT, "come up")
        database = await stack.enter_async_context(database_of(self.site, self.vms.objects[VM]))
        server = (database.host, database.port, database.password)
        sessions = [await DatabaseSession.open(*server) for _ in range(SESSIONS)]
        for session in sessions:
            stack.callback(session.close)
        reactions: list[Reaction] = []
        for number in range(2 * starts):
            await self._prepare(with_monitor=number % 2 == 0)
            reactions.append(await self._start(sessions, with_monitor=number % 2 == 0))
            self.say(f"  {number + 1:3}  {_line(reactions[-1])}")
        self.say(await self._explained())
        return reactions

    async def _prepare(self, *, with_monitor: bool) -> None:
        policy = {"smoothing": HOLD, "monitor": {"hold": "3s" if with_monitor else "0s"}}
        patch: Json = {"metadata": {"annotations": {ANNOTATION_CONFIG: msgspec.json.encode(policy).decode()}}}
        await self.site.client.merge_patch(VIRTUAL_MACHINES, VM, patch)
        # Random, to avoid synchronizing with the agent's intervals.
        calm = Seconds(CALM + self.clock.jitter())
        await self._until(lambda: self._is_small() and self.clock.now() - self._resized >= calm, REST, "come to rest")
        self._ordered = self._online = None

    async def _start(self, sessions: list[DatabaseSession], *, with_monitor: bool) -> Reaction:
        began = self.clock.now()
        for session in sessions:
            session.begin(LOAD)
        try:
            await self._until(lambda: self._online is not None, GIVE_UP, "have more CPU")
        except SiteError as error:
            # No reaction is a result, too.
            self.say(str(error))
        reaction = Reaction(with_monitor, _since(began, self._ordered), _since(began, self._online))
        try:
            async with asyncio.timeout(OVER):
                for session in sessions:
                    await session.finished()
        except TimeoutError:
            raise SiteError(f"the load did not end within {OVER:g} s; the guest may hang") from None
        return reaction

    def _see(self, change: ObjectChange) -> None:
        if change.after is not None and change.name == VM:
            vm, one_cpu = parse_virtual_machine(change.after), MilliCpu(1000)
            if (vm.use, vm.actual) != self._sizes:
                self._sizes, self._resized = (vm.use, vm.actual), self.clock.now()
            # Only the first increase counts.
            if vm.use.cpu > one_cpu and self._ordered is None:
                self._ordered = self.clock.now()
            if vm.actual is not None and vm.actual.cpu > one_cpu and self._online is None:
                self._online = self.clock.now()

    def _is_small(self) -> bool:
        vm_object = self.vms.get(VM)
        vm = None if vm_object is None else parse_virtual_machine(vm_object)
        return vm is not None and vm.actual is not None and vm.actual.cpu <= MilliCpu(1000) >= vm.use.cpu

    async def _until(self, holds: Callable[[], bool], at_most: Seconds, what: str) -> None:
        if not await wait_until(holds, self.clock, at_most):
            raise SiteError(f"the VM did not {what} within {at_most:g} s")

    async def _explained(self) -> str:
        """The agent's counters of the monitor's alarms."""
        pods = (await self.site.client.list(PODS, VM.namespace)).objects
        for pod in pods:
            explanation = await self.site.of_agent(pod, "/explain")
            if explanation is not None:
                return f"the agent about the guest monitor: {child(explanation, 'monitor')}"
        return "the agent does not answer"


def _since(began: Instant, at: Instant | None) -> float | None:
    return None if at is None else round(at - began, 3)


def _line(reaction: Reaction) -> str:
    how = "with reports" if reaction.with_monitor else "without reports"
    return f"{how}: ordered after {reaction.ordered} s, online after {reaction.online} s"


def table(reactions: list[Reaction]) -> Table:
    """The times as a table (pure)."""
    view = Table("seconds from the load's start", "starts", "median", "p95", "longest", title="Reaction")
    for name, with_monitor in (("without reports", False), ("with the guest's monitor", True)):
        chosen = [reaction for reaction in reactions if reaction.with_monitor is with_monitor]
        for what, times in (
            ("ordered", [reaction.ordered for reaction in chosen]),
            ("CPU online", [reaction.online for reaction in chosen]),
        ):
            measured = [seconds for seconds in times if seconds is not None]
            # ``quantiles`` needs two values.
            if len(measured) > 1:
                p95 = quantiles(measured, n=20, method="inclusive")[-1]
                numbers = (f"{median(measured):.2f}", f"{p95:.2f}", f"{max(measured):.2f}")
                view.add_row(f"{name}, {what}", f"{len(measured)} of {len(times)}", *numbers)
    return view


if __name__ == "__main__":
    typer.run(bench_reaction)
