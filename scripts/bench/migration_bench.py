"""``make bench-migration``: migrates a VM back and forth between two nodes under load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from deploy.local.cluster.spec import ClusterSpec
from deploy.neonvm.network import netns
from deploy.neonvm.network.chooser import NetworkKind
from deploy.neonvm.network.namespaces import switch_of
from protocol.kubernetes.conditions import is_condition_true
from protocol.kubernetes.objects import text
from protocol.kubernetes.resources import MIGRATIONS, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.runtime.background_jobs import background_jobs
from protocol.runtime.clock import Clock, SystemClock, poll_until, wait_until
from protocol.units import Instant, Seconds
from scripts.autoscale.demonstration.migration_scenario import small_vm
from scripts.autoscale.demonstration.moves import SUCCEEDED, MoveWatch, ObservedMove
from scripts.autoscale.demonstration.pgbench import DatabaseServer, Outcome, find_pgbench, prepare, run_load
from scripts.autoscale.demonstration.vm_clients import ClientReport, probe
from scripts.autoscale.demonstration.vm_database import create_vm, database_of
from scripts.autoscale.demonstration.waiting import watch_for_ends
from scripts.autoscale.migrate import migration_of
from scripts.autoscale.running import runs
from scripts.autoscale.site import Site, SiteError
from scripts.autoscale.stages import fresh_cluster
from scripts.bench.echoes import Echoes, echoing


@dataclass(frozen=True, slots=True)
class MigrationFigures:
    """Results of the benchmark. Failures include failed transactions of ``load`` and failed queries of the probe."""

    moves: Sequence[ObservedMove]
    probe_report: ClientReport
    echoes: Echoes
    load: Outcome

    @property
    def done(self) -> list[ObservedMove]:
        """The migrations that succeeded."""
        return [move for move in self.moves if move.phase == SUCCEEDED and move.client_span is not None]

    @property
    def spans(self) -> list[tuple[Instant, Instant]]:
        """Begin and end of each migration, as clients may notice it."""
        return [span for move in self.done if (span := move.client_span) is not None]

    @property
    def stalls(self) -> list[Seconds]:
        """The longest stall of the probe in each span, in seconds."""
        return [stall for span in self.spans if (stall := self.probe_report.longest_stall(*span)) is not None]

    @property
    def failed(self) -> int:
        """Number of failed transactions."""
        return self.load.failed + self.probe_report.outcome.failed

    @property
    def is_clean(self) -> bool:
        """True if every migration succeeded, no transaction failed, and the probe measured stalls."""
        has_stalls = self.load.transactions > 0 and bool(self.stalls)
        return len(self.done) == len(self.moves) > 0 and not self.failed and has_stalls


VM: Final = ObjectName("default", "ping-pong")
_NAME: Final = "bench-migration"
_CLIENTS: Final = 4
_SCALE: Final = 2
_PERIOD: Final = 6
"""Minimum seconds between the starts of two migrations."""
_EXTRA_SECONDS: Final = 10
_BOOT_TIMEOUT: Final = Seconds(240.0)
_MIGRATION_TIMEOUT: Final = Seconds(120.0)


@runs
async def bench_migration(
    count: Annotated[int, typer.Option(min=1, max=200, help="Number of migrations.")] = 20,
    network: Annotated[
        NetworkKind, typer.Option(help="How nodes are networked: namespaces, hub or loopback.")
    ] = NetworkKind.AUTO,
) -> int:
    """Migrate a VM back and forth under pgbench, with a probe that sends a query every 20 ms.

    Prints counts, total times, downtimes, the probe's longest stalls, and (as root) how many ICMP echoes, sent every
    10 ms, were lost. Exits with 0 if every migration succeeded and no transaction failed.
    """
    console, clock = Console(), SystemClock()
    find_pgbench()
    spec = ClusterSpec(network=network.value, nodes=2, node_cpu="4", node_memory="4Gi")
    async with fresh_cluster(_NAME, spec, console) as site, AsyncExitStack() as stack:
        benchmark = _Benchmark(site, clock, console.print)
        async with background_jobs(benchmark.watcher.run(), watch_for_ends(site.client, clock)):
            figures = await benchmark.measure(stack, count)
    console.print(table(figures))
    return 0 if figures.is_clean else 1


class _Benchmark:
    """Runs migrations under load."""

    def __init__(self, site: Site, clock: Clock, print_line: Callable[[str], None]) -> None:
        self._site = site
        self._clock = clock
        self._print = print_line
        self.watcher = MoveWatch(site.client, clock, self._on_phase)

    async def measure(self, stack: AsyncExitStack, count: int) -> MigrationFigures:
        """Run ``count`` migrations. Raises ``SiteError`` and ``PgbenchError``."""
        server = await self._server(stack)
        echoes = await self._echoes(stack)
        seconds = count * _PERIOD + _EXTRA_SECONDS
        self._print(f"{count} migrations under load, at least {seconds} s")
        async with asyncio.TaskGroup() as tasks:
            load = tasks.create_task(run_load(server, _CLIENTS, seconds, lambda _: None))
            probing = tasks.create_task(probe(server, seconds, self._clock))
            await self._back_and_forth(count)
            # The figures then lack the stalls of the last migrations.
            if load.done():
                self._print("the load ended before the last migration")
        outcome, probe_report = load.result(), probing.result()
        for problem in {outcome.problem, probe_report.outcome.problem} - {""}:
            self._print(problem)
        return MigrationFigures(self.watcher.moves, probe_report, echoes, outcome)

    async def _server(self, stack: AsyncExitStack) -> DatabaseServer:
        # Autoscaling stays disabled, so that the VM keeps its size.
        vm_object = small_vm(VM) | {"metadata": {"name": VM.name, "namespace": VM.namespace}}
        await create_vm(self._site.client, vm_object)
        if not await poll_until(self._is_available, self._clock, _BOOT_TIMEOUT):
            raise SiteError(f"the VM did not start within {_BOOT_TIMEOUT:g} s")
        vm = await self._site.client.get(VIRTUAL_MACHINES, VM)
        server = await stack.enter_async_context(database_of(self._site, vm))
        await prepare(server, _SCALE)
        return server

    async def _echoes(self, stack: AsyncExitStack) -> Echoes:
        """Start sending echoes to the VM; send none if its network does not forward ICMP, such as a hub."""
        switch = await asyncio.to_thread(switch_of, _NAME)
        if switch is None:
            return Echoes()
        vm = await self._site.client.get(VIRTUAL_MACHINES, VM)
        raw, address = netns.icmp_in(switch), text(vm, "status", "extraNetIP")
        return await stack.enter_async_context(echoing(raw, address, self._clock))

    async def _back_and_forth(self, count: int) -> None:
        # Let the load start first.
        await self._clock.sleep(Seconds(2.0))
        for number in range(1, count + 1):
            next_start = Instant(self._clock.now() + _PERIOD)
            await self._site.client.create(MIGRATIONS, VM.namespace, migration_of(VM))
            if not await wait_until(partial(self._have_ended, number), self._clock, _MIGRATION_TIMEOUT):
                raise SiteError(f"migration {number} did not end within {_MIGRATION_TIMEOUT:g} s")
            # Pause at least half a second, to tell the stalls of two migrations apart.
            await self._clock.sleep(Seconds(max(0.5, next_start - self._clock.now())))

    async def _is_available(self) -> bool:
        return is_condition_true(await self._site.client.get(VIRTUAL_MACHINES, VM), "Available")

    def _have_ended(self, count: int) -> bool:
        return len(self.watcher.moves) >= count and not any(move.is_under_way for move in self.watcher.moves)

    def _on_phase(self, move: ObservedMove) -> None:
        if not move.is_under_way:
            self._print(f"  {len(self.watcher.moves):3}  {move.title}")


def table(figures: MigrationFigures) -> Table:
    """Format the figures as a table (pure)."""
    done, round_trips = figures.done, [figures.echoes.round_trips(*span) for span in figures.spans]
    answered = [[round_trip for round_trip in of_move if round_trip is not None] for of_move in round_trips]
    view = Table("milliseconds", "median", "max", title=f"{len(done)} of {len(figures.moves)} migrations succeeded")
    rows: dict[str, list[float]] = {
        "total": [move.total_ms for move in done if move.total_ms is not None],
        "downtime": [move.downtime_ms for move in done if move.downtime_ms is not None],
        "longest stall of a client": [stall * 1000 for stall in figures.stalls],
        "longest wait for an echo": [max(of_move) * 1000 for of_move in answered if of_move],
    }
    for name, values in rows.items():
        view.add_row(name, *((f"{median(values):.0f}", f"{max(values):.0f}") if values else ("-", "-")))
    reasons = {move.reason or move.phase for move in figures.moves if move.phase != SUCCEEDED}
    failures = "".join(f"\nnot migrated: {reason}" for reason in sorted(reasons))
    lost = [of_move.count(None) for of_move in round_trips]
    view.caption = (
        f"{figures.load.transactions} transactions, {figures.failed} failed\n"
        f"{sum(lost)} echoes lost in {sum(map(bool, lost))} migrations{failures}"
    )
    return view


if __name__ == "__main__":
    typer.run(bench_migration)
