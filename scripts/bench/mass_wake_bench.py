"""``make bench-sleep BENCH_ARGS='--fleet 500'``: many VMs sleep on one node, and some wake at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from math import ceil
from statistics import median, quantiles
from typing import Final

from rich.console import Console
from rich.table import Table

from deploy.kube.informer import Informer
from deploy.local.cluster.content import simulated_vm
from deploy.local.cluster.control import ask_cluster
from deploy.local.cluster.folder import ClusterFolder
from deploy.local.cluster.spec import ClusterSpec
from deploy.neonvm.network.chooser import NetworkKind
from deploy.neonvm.texts.controller import WAITS_FOR_PERMIT
from protocol.guest.sleep import ASLEEP, SLEEPING, SleepState, sleep_order_patch
from protocol.kubernetes.conditions import condition_of
from protocol.kubernetes.objects import Json, child, items, text
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from protocol.kubernetes.timestamps import micro_timestamp
from protocol.messages import ObjectName
from protocol.runtime.background_jobs import background_jobs
from protocol.runtime.clock import SystemClock, wait_until
from protocol.units import ZERO, Instant, Resources, Seconds
from protocol.virtual_machine import VirtualMachine, parse_virtual_machine
from scripts.autoscale.demonstration.waiting import run_all
from scripts.autoscale.explain import explain_database
from scripts.autoscale.site import Site, SiteError
from scripts.autoscale.sleep.outcomes import RUNNING
from scripts.autoscale.stages import fresh_cluster
from scripts.process_costs import cpu_of, load_of_machine, memory_of

NAME: Final = "bench-herd"
_SETTLE, _IDLE, _POLL, _TIMEOUT, _RETRY = Seconds(15.0), Seconds(60.0), Seconds(6.0), Seconds(300.0), Seconds(3.0)
_CONCURRENCY, _ATTEMPTS = 50, 20


def size_of(vm: ObjectName) -> float:
    """vCPUs of a VM: 1.0 for every fourth, 0.5 for the others."""
    return 0.5 if int(vm.name.removeprefix("vm-")) % 4 else 1.0


@dataclass(slots=True)
class HerdWatch:
    """Checks every change of the VMs on a node with ``room``.

    ``peak``: the most they held at once. ``overcommits``: messages. ``lost``: deleted or restarted VMs. ``asked_at``
    and ``awake``: times of wake requests and of wakes. ``granted``: VMs in the order of their permits.
    """

    room: Resources
    peak: Resources = ZERO
    overcommits: list[str] = field(default_factory=list)
    lost: set[ObjectName] = field(default_factory=set)
    vms: dict[ObjectName, VirtualMachine] = field(default_factory=dict)
    asked_at: dict[ObjectName, Instant] = field(default_factory=dict)
    awake: dict[ObjectName, Instant] = field(default_factory=dict)
    granted: list[ObjectName] = field(default_factory=list)
    _total: Resources = ZERO

    def update(self, name: ObjectName, vm_object: Json | None, at: Instant) -> None:
        """Process a VM's new object; None if it was deleted."""
        if vm_object is None:
            self.lost.add(name)
            return
        before, vm = self.vms.get(name), parse_virtual_machine(vm_object)
        self.vms[name] = vm
        if vm.sleep.state is SleepState.RESTARTED or (before and before.pod_name not in {None, vm.pod_name}):
            self.lost.add(name)
        self._check_total(self._total - (held(before) if before else ZERO) + held(vm))
        if name not in self.asked_at:
            return
        if name not in self.granted and vm.permit is not None and vm.use.within(vm.permit):
            self.granted.append(name)
        if vm.phase == RUNNING and vm.sleep.state is SleepState.AWAKE:
            self.awake.setdefault(name, at)

    def _check_total(self, total: Resources) -> None:
        self._total, self.peak = total, self.peak.at_least(total)
        if not total.within(self.room):
            self.overcommits.append(f"{total} of {self.room}")

    def all_in(self, names: Sequence[ObjectName], phases: Set[str]) -> bool:
        """Return True if all VMs in ``names`` are in one of ``phases``."""
        return all(name in self.vms and self.vms[name].phase in phases for name in names)


def held(vm: VirtualMachine) -> Resources:
    """The size that a VM may use: its permit; while it runs, at least its requested and its actual size."""
    permit = vm.permit or ZERO
    return permit if vm.phase in SLEEPING or vm.node is None else permit.at_least(vm.use).at_least(vm.actual or ZERO)


async def bench_mass_wake(fleet: int, herd: int, console: Console) -> int:
    """Run the benchmark; return 0 if the node was never overcommitted and no VM was lost or waited without a reason."""
    # 0.5 vCPU for the system, and room for half of the herd, whose VMs have 0.625 vCPU on average.
    cpus, network = str(ceil(0.5 + herd * 0.625 / 2)), NetworkKind.LOOPBACK.value
    spec = ClusterSpec("simulated", 1, cpus, "128Gi", agents="node", network=network, load="idle")
    async with fresh_cluster(NAME, spec, console) as site:
        vms, clock = Informer(site.client, VIRTUAL_MACHINES, SystemClock()), SystemClock()
        bench = _Bench(site, console, vms, HerdWatch(await _node_resources(site, "total")))
        vms.listen(lambda change: bench.watch.update(change.name, change.after, clock.now()))
        async with background_jobs(vms.run(), bench.watch_reservations()):
            return await bench.run(fleet, herd)


@dataclass(slots=True)
class _Bench:
    site: Site
    console: Console
    vms: Informer
    watch: HerdWatch
    clock: SystemClock = field(default_factory=SystemClock)

    async def run(self, fleet: int, herd: int) -> int:
        names = [ObjectName("default", f"vm-{number}") for number in range(1, fleet + 1)]
        await asyncio.sleep(_SETTLE)
        costs = [await self._costs()]
        # In waves, because not all fit while awake.
        wave = herd * 2 // 5
        for first in range(0, fleet, wave):
            await self._create_asleep(names[first : first + wave])
            self.console.print(f"  {min(first + wave, fleet)} of {fleet} asleep")
        await asyncio.sleep(_SETTLE)
        self.console.print(f"{await _node_resources(self.site, 'reserved')} reserved of {self.watch.room}; idling")
        costs.append(await self._costs())
        began = time.monotonic()
        await asyncio.sleep(_IDLE)
        costs.append(await self._costs())
        idle_seconds = time.monotonic() - began
        unreported = await self._wake(names[:herd])
        costs.append(await self._costs())
        self.console.print(_costs_table(costs, idle_seconds), f"load of the machine: {load_of_machine()}")
        watch = self.watch
        self.console.print(f"the VMs held at most {watch.peak} of {watch.room}; overcommitted: {watch.overcommits[:3]}")
        self.console.print(
            f"{len(watch.awake)} of {herd} woke; lost: {watch.lost}; waited without a reason: {unreported}"
        )
        return 1 if watch.overcommits or watch.lost or unreported or len(watch.awake) < herd else 0

    async def _create_asleep(self, names: Sequence[ObjectName]) -> None:
        """Create VMs and put them to sleep. Raises ``SiteError``."""
        create = self.site.client.ensure
        await run_all(*(create(VIRTUAL_MACHINES, name.namespace, simulated_object(name)) for name in names))
        deadline = self.clock.now() + _TIMEOUT
        while not await wait_until(lambda: self.watch.all_in(names, {ASLEEP}), self.clock, _RETRY):
            if self.clock.now() > deadline:
                raise SiteError(f"not all of {names} fell asleep within {_TIMEOUT:g} s")
            # Retry: a guest that has just booted may refuse.
            await self._order([name for name in names if self.watch.all_in([name], {RUNNING})], asleep=True)

    async def _wake(self, herd: Sequence[ObjectName]) -> list[ObjectName]:
        """Wake all of ``herd`` at once; when no more fit, put awake VMs to sleep to make room for the others.

        Returns the VMs that waited without a reason in their status.
        """
        watch, awake = self.watch, -1
        watch.asked_at = dict.fromkeys(herd, self.clock.now())
        await self._order(herd, asleep=False)
        while awake != len(watch.awake):
            awake = len(watch.awake)
            await asyncio.sleep(_POLL)
        waiting, granted_before = [name for name in herd if name not in watch.awake], len(watch.granted)
        self.console.print(f"{awake} awake, {len(waiting)} waiting; the last of them:")
        unreported = [name for name in waiting if not await self._has_reason(name) and name not in watch.awake]
        for line in (await explain_database(self.site, self.vms.objects[waiting[-1]]))[0] if waiting else ():
            if "waking" in line.lower():
                self.console.print(f"  {line}", soft_wrap=True, markup=False)
        sent_to_sleep, deadline = 0, self.clock.now() + _TIMEOUT
        while len(watch.awake) < len(herd) and self.clock.now() < deadline:
            # A few at a time, first awake first, to keep room scarce.
            batch = list(watch.awake)[sent_to_sleep : sent_to_sleep + len(herd) // 20]
            sent_to_sleep += len(batch)
            await self._order(batch, asleep=True)
            await asyncio.sleep(1.0)
        sizes = [size_of(name) for name in watch.granted[granted_before:]]
        small_first = sizes.index(max(sizes)) if sizes else 0
        self.console.print(f"{small_first} of {sizes.count(0.5)} waiting small VMs got a permit before any large one")
        waits = {name: at - watch.asked_at[name] for name, at in watch.awake.items()}
        groups = {"fit immediately": [wait for name, wait in waits.items() if name not in waiting]}
        for title, size in (("small, waited", 0.5), ("large, waited", 1.0)):
            groups[title] = [waits[name] for name in waiting if size_of(name) == size and name in waits]
        self.console.print(_waits_table(groups))
        return unreported

    async def _has_reason(self, vm: ObjectName) -> bool:
        """Return True if the VM's status and the scheduler give the reason for its wait."""
        pods = items(await self.site.of_scheduler(f"/explain/{vm}") or {}, "pods")
        reason = text(condition_of(self.vms.objects[vm], "Asleep"), "reason")
        return reason == WAITS_FOR_PERMIT[0] and any(text(pod, "sleep") for pod in pods)

    async def watch_reservations(self) -> None:
        """Check the scheduler's reservations until cancelled."""
        while True:
            await asyncio.sleep(2.0)
            if not (reserved := await _node_resources(self.site, "reserved")).within(self.watch.room):
                self.watch.overcommits.append(f"the scheduler reserves {reserved}")

    async def _order(self, names: Sequence[ObjectName], *, asleep: bool) -> None:
        limit = asyncio.Semaphore(_CONCURRENCY)
        body = sleep_order_patch(micro_timestamp(time.time()) if asleep else None)

        async def write(name: ObjectName) -> None:
            async with limit:
                await self.site.client.merge_patch(VIRTUAL_MACHINES, name, body)

        await run_all(*map(write, names))

    async def _costs(self) -> dict[str, tuple[Seconds, float]]:
        """CPU time and memory (MiB) of each program of the cluster."""
        folder = ClusterFolder.of(NAME)
        parts = {part.name: part.pid for part in (await ask_cluster(folder, "status")).parts}
        programs = {**parts, "controller, kubelet, guests": folder.owner() or 0}
        return {name: (cpu_of(pid), memory_of(pid)) for name, pid in programs.items()}


def simulated_object(name: ObjectName) -> Json:
    """A simulated VM with the vCPUs of ``size_of``."""
    vm, cpus = simulated_vm(int(name.name.removeprefix("vm-"))), f"{size_of(name)}"
    guest = {**child(vm, "spec", "guest"), "cpus": {"min": cpus, "max": 4, "use": cpus}}
    return {**vm, "spec": {**child(vm, "spec"), "guest": guest}}


async def _node_resources(site: Site, amount: str) -> Resources:
    """``reserved`` or ``total`` of the only node, from the scheduler. Raises ``SiteError`` if it does not respond."""
    # Retry: a busy scheduler may time out.
    for _ in range(_ATTEMPTS):
        for node in items(await site.of_scheduler("/nodes") or {}, "nodes"):
            return Resources.parse(text(node, amount, "cpu"), text(node, amount, "mem"))
        await asyncio.sleep(1.0)
    raise SiteError(f"no response from the scheduler: {site.request_errors}")


def _costs_table(costs: Sequence[dict[str, tuple[Seconds, float]]], idle_seconds: float) -> Table:
    table, (empty, asleep, later, after) = Table("", "memory, no VM", "asleep", "CPU, asleep", "CPU, waking"), costs
    for name, (cpu, memory) in later.items():
        cpus = f"{(cpu - asleep[name][0]) / idle_seconds * 1000:.0f} ms/s", f"{after[name][0] - cpu:.1f} s"
        table.add_row(name, f"{empty[name][1]:.0f} MiB", f"{memory:.0f} MiB", *cpus)
    return table


def _waits_table(groups: dict[str, list[float]]) -> Table:
    table = Table("woken", "VMs", "median", "p95", "longest")
    for name, waits in groups.items():
        if len(waits) > 1:  # `quantiles` needs two values
            figures = median(waits), quantiles(waits, n=20, method="inclusive")[-1], max(waits)
            table.add_row(name, str(len(waits)), *(f"{figure:.2f} s" for figure in figures))
    return table
