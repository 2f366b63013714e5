"""``autoscale bench VM``: runs pgbench against a VM and shows its vCPUs, memory and tps (S4.11)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final

import typer
from rich.console import Console

from deploy.neonvm.objects.vm_spec import password_secret
from protocol.messages import ObjectName
from protocol.runtime.background_jobs import background_jobs
from protocol.runtime.clock import SystemClock
from protocol.units import Resources, Seconds
from scripts.autoscale.cluster_flags import VmArgument, VmNamespace, cluster_command, parse_vm, read_database
from scripts.autoscale.clusters import ClusterFlags, find_cluster
from scripts.autoscale.demonstration import pgbench
from scripts.autoscale.demonstration.screen import Screen
from scripts.autoscale.demonstration.vm_database import database_of, make_password, password_of
from scripts.autoscale.demonstration.waiting import watch_for_ends
from scripts.autoscale.demonstration.watcher import Watcher
from scripts.autoscale.site import Site, open_site
from scripts.autoscale.terminal.printing import print_lines

_PASSWORD_TIMEOUT: Final = Seconds(180.0)
"""Kubelets refresh a mounted Secret within a minute or two."""
_RETRY: Final = Seconds(2.0)


@cluster_command()
async def bench(  # noqa: PLR0913 - each is an option of the command
    vm: VmArgument,
    seconds: Annotated[int, typer.Option(min=1, help="Duration in seconds.")] = 60,
    clients: Annotated[int, typer.Option(min=1, help="Number of connections.")] = 8,
    scale: Annotated[int, typer.Option(min=1, help="pgbench scale factor; its tables are recreated.")] = 2,
    namespace: VmNamespace = "",
    *,
    flags: ClusterFlags,
) -> int:
    """Run pgbench against a VM and show how it scales. Exits 0 only if no transaction failed."""
    cluster, console = find_cluster(flags), Console()
    name = parse_vm(vm, namespace or cluster.namespace)
    if cluster.folder is not None and cluster.folder.read_spec().guests == "simulated":
        raise typer.BadParameter(f"{cluster.title}: its guests are simulated and run no postgres")
    pgbench.find_pgbench()
    async with open_site(cluster) as site:
        virtual_machine = await read_database(site.client, name)
        if not await password_of(site.client, virtual_machine):
            await make_password(site.client, virtual_machine)
            console.print(f"created the Secret {password_secret(virtual_machine)} with a new password")
        async with database_of(site, virtual_machine) as server:
            await _wait_for_password(server, console)
            outcome = await _run_on_screen(site, console, name, _Run(server, seconds, clients, scale))
    # The problem may quote the database, hence no markup.
    print_lines(console, [f"{outcome.transactions} transactions, {outcome.failed} failed. {outcome.problem}"])
    return 1 if outcome.failed or outcome.problem or not outcome.transactions else 0


async def _wait_for_password(server: pgbench.DatabaseServer, console: Console) -> None:
    """Waits until the database accepts the password. Raises ``PgbenchError`` after some minutes."""
    clock, announced = SystemClock(), False
    deadline = clock.now() + _PASSWORD_TIMEOUT
    while problem := await pgbench.problem_of(server):
        # Only a wrong password is worth waiting for; any other problem would persist.
        if "authentication" not in problem or clock.now() >= deadline:
            raise pgbench.PgbenchError(problem)
        if not announced:
            console.print("waiting for the kubelet to update the VM's mounted Secret (a minute or two)")
        announced = True
        await clock.sleep(_RETRY)


@dataclass(slots=True)
class _Run:
    """One run of pgbench, and its current figures."""

    server: pgbench.DatabaseServer
    seconds: int
    clients: int
    scale: int
    step: str = "prepare"
    tps: float | None = None

    async def run(self) -> pgbench.Outcome:
        """Creates the tables and runs the load. Raises ``PgbenchError``."""
        await pgbench.prepare(self.server, self.scale)
        self.step = "load"
        return await pgbench.run_load(self.server, self.clients, self.seconds, partial(setattr, self, "tps"))


async def _run_on_screen(site: Site, console: Console, vm: ObjectName, work: _Run) -> pgbench.Outcome:
    clock = SystemClock()
    began = clock.now()
    with Screen(console, f"pgbench at {vm}") as screen:

        def add_event(size: Resources, because: str) -> None:
            screen.add_event(Seconds(clock.now() - began), f"{size}" + (f": {because}" if because else ""))

        watcher = Watcher(site, vm, clock, lambda _: None, add_event)

        async def draw() -> None:
            while True:
                screen.show(Seconds(clock.now() - began), work.step, watcher.snapshot(), work.tps)
                await asyncio.sleep(0.25)

        async with background_jobs(watcher.run(), draw(), watch_for_ends(site.client, clock, vm)):
            return await work.run()
