"""``make bench-reaction``: time until a load gets more CPU, with and without the guest monitor's reports.

Alternates between the two in one guest, so that a busy machine slows down both.
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
from protocol.kubernetes.conditions import is_condition_true
from protocol.kubernetes.objects import Json, child
from protocol.kubernetes.resources import PODS, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_CONFIG
from protocol.runtime.background_jobs import background_jobs
from protocol.runtime.clock import Clock, SystemClock, wait_until
from protocol.units import Instant, MilliCpu, Resources, Seconds
from protocol.virtual_machine import parse_virtual_machine
from scripts.autoscale.demonstration.vm_database import create_vm, database_of, postgres_vm
from scripts.autoscale.running import runs
from scripts.autoscale.site import Site, SiteError
from scripts.autoscale.stages import fresh_cluster
from scripts.database_client import DatabaseSession

VM: Final = ObjectName("default", "reaction")
NAME: Final = "bench-reaction"
SESSIONS: Final = 4
LOAD: Final = "SELECT count(*) FROM generate_series(1, 400000) a"
BOOT_TIMEOUT: Final = Seconds(300.0)
QUIET: Final = Seconds(6.0)
"""Wait for a constant size before each load: the agent ignores samples right after a shrink."""

QUIET_TIMEOUT: Final = Seconds(60.0)
REACTION_TIMEOUT: Final = Seconds(30.0)
LOAD_TIMEOUT: Final = Seconds(120.0)
"""Timeout of a load. It normally takes a few seconds."""

# Short windows, so that the guest shrinks soon after a load.
SMOOTHING: Final = {"cpu": [{"hold": {"window": 4}}], "memory": [{"hold": {"window": 4}}]}


class Reaction(msgspec.Struct, frozen=True):
    """Seconds from the start of a load until more CPU was requested and online; None after ``REACTION_TIMEOUT``."""

    with_monitor: bool
    requested: float | None
    online: float | None


@runs
async def bench_reaction(
    starts: Annotated[int, typer.Option(min=2, max=200, help="Number of loads of each kind.")] = 30,
) -> int:
    """Start loads in an idle guest with 1 CPU and measure the time until it has more.

    The agent ignores the guest monitor's reports for every second load. Exits with 0 if all loads got more CPU.
    """
    console, clock = Console(), SystemClock()
    spec = ClusterSpec(network=NetworkKind.AUTO.value, nodes=1, node_cpu="8", node_memory="8Gi")
    async with fresh_cluster(NAME, spec, console) as site, AsyncExitStack() as stack:
        starter = LoadStarter(site, clock, console.print)
        async with background_jobs(starter.vms.run()):
            reactions = await starter.measure(stack, starts)
    console.print(table(reactions))
    return 0 if all(reaction.online is not None for reaction in reactions) else 1


@dataclass(slots=True)
class LoadStarter:
    """Starts loads in one VM."""

    site: Site
    clock: Clock
    print_line: Callable[[str], None]
    vms: Informer = field(init=False)
    _requested_at: Instant | None = None
    _online_at: Instant | None = None
    _sizes: tuple[Resources, Resources | None] | None = None
    _resized_at: Instant = Instant(0.0)

    def __post_init__(self) -> None:
        self.vms = Informer(self.site.client, VIRTUAL_MACHINES, self.clock)
        self.vms.listen(self._on_change)

    async def measure(self, stack: AsyncExitStack, starts: int) -> list[Reaction]:
        """Run ``starts`` loads of each kind. Raises ``SiteError``, ``DatabaseError`` and ``OSError``."""
        vm = postgres_vm(VM, cpus=4, slots=4)
        await create_vm(self.site.client, vm)
        await self._wait_for(lambda: is_condition_true(self.vms.get(VM) or {}, "Available"), BOOT_TIMEOUT, "start")
        database = await stack.enter_async_context(database_of(self.site, self.vms.objects[VM]))
        server = (database.host, database.port, database.password)
        sessions = [await DatabaseSession.open(*server) for _ in range(SESSIONS)]
        for session in sessions:
            stack.callback(session.close)
        reactions: list[Reaction] = []
        for number in range(2 * starts):
            await self._prepare(with_monitor=number % 2 == 0)
            reactions.append(await self._start(sessions, with_monitor=number % 2 == 0))
            self.print_line(f"  {number + 1:3}  {_describe(reactions[-1])}")
        self.print_line(await self._monitor_counters())
        return reactions

    async def _prepare(self, *, with_monitor: bool) -> None:
        policy = {"smoothing": SMOOTHING, "monitor": {"hold": "3s" if with_monitor else "0s"}}
        patch: Json = {"metadata": {"annotations": {ANNOTATION_CONFIG: msgspec.json.encode(policy).decode()}}}
        await self.site.client.merge_patch(VIRTUAL_MACHINES, VM, patch)
        # Jitter, to avoid synchronizing with the agent's scrapes.
        quiet = Seconds(QUIET + self.clock.jitter())
        await self._wait_for(
            lambda: self._is_small() and self.clock.now() - self._resized_at >= quiet, QUIET_TIMEOUT, "settle"
        )
        self._requested_at = self._online_at = None

    async def _start(self, sessions: list[DatabaseSession], *, with_monitor: bool) -> Reaction:
        started = self.clock.now()
        for session in sessions:
            session.begin(LOAD)
        try:
            await self._wait_for(lambda: self._online_at is not None, REACTION_TIMEOUT, "get more CPU")
        except SiteError as error:
            # A timeout is a result, not a failure.
            self.print_line(str(error))
        reaction = Reaction(with_monitor, _since(started, self._requested_at), _since(started, self._online_at))
        try:
            async with asyncio.timeout(LOAD_TIMEOUT):
                for session in sessions:
                    await session.finished()
        except TimeoutError:
            raise SiteError(f"the load did not end within {LOAD_TIMEOUT:g} s; the guest may hang") from None
        return reaction

    def _on_change(self, change: ObjectChange) -> None:
        if change.after is not None and change.name == VM:
            vm, one_cpu = parse_virtual_machine(change.after), MilliCpu(1000)
            if (vm.use, vm.actual) != self._sizes:
                self._sizes, self._resized_at = (vm.use, vm.actual), self.clock.now()
            # Record the first increase only.
            if vm.use.cpu > one_cpu and self._requested_at is None:
                self._requested_at = self.clock.now()
            if vm.actual is not None and vm.actual.cpu > one_cpu and self._online_at is None:
                self._online_at = self.clock.now()

    def _is_small(self) -> bool:
        vm_object = self.vms.get(VM)
        vm = None if vm_object is None else parse_virtual_machine(vm_object)
        return vm is not None and vm.actual is not None and vm.actual.cpu <= MilliCpu(1000) >= vm.use.cpu

    async def _wait_for(self, condition: Callable[[], bool], at_most: Seconds, action: str) -> None:
        if not await wait_until(condition, self.clock, at_most):
            raise SiteError(f"the VM did not {action} within {at_most:g} s")

    async def _monitor_counters(self) -> str:
        """The agent's counters of monitor reports, as text."""
        pods = (await self.site.client.list(PODS, VM.namespace)).objects
        for pod in pods:
            explanation = await self.site.of_agent(pod, "/explain")
            if explanation is not None:
                return f"guest monitor, as seen by the agent: {child(explanation, 'monitor')}"
        return "no response from the agent"


def _since(started: Instant, at: Instant | None) -> float | None:
    return None if at is None else round(at - started, 3)


def _describe(reaction: Reaction) -> str:
    mode = "with reports" if reaction.with_monitor else "without reports"
    return f"{mode}: requested after {reaction.requested} s, online after {reaction.online} s"


def table(reactions: list[Reaction]) -> Table:
    """Format the times as a table (pure)."""
    view = Table("seconds from the load's start", "starts", "median", "p95", "longest", title="Reaction")
    for name, with_monitor in (("without reports", False), ("with reports", True)):
        selected = [reaction for reaction in reactions if reaction.with_monitor is with_monitor]
        for event, times in (
            ("requested", [reaction.requested for reaction in selected]),
            ("CPU online", [reaction.online for reaction in selected]),
        ):
            measured = [seconds for seconds in times if seconds is not None]
            # ``quantiles`` needs two values.
            if len(measured) > 1:
                p95 = quantiles(measured, n=20, method="inclusive")[-1]
                numbers = (f"{median(measured):.2f}", f"{p95:.2f}", f"{max(measured):.2f}")
                view.add_row(f"{name}, {event}", f"{len(measured)} of {len(times)}", *numbers)
    return view


if __name__ == "__main__":
    typer.run(bench_reaction)
