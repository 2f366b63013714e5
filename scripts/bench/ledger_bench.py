"""``make bench-ledger``: CPU time of startup, permits, binds and planning rounds in a large fleet.

Runs the ledger and the planner without an API server: decodes lists from memory, without network and TLS.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from fractions import Fraction
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Annotated, Final

import msgspec
import typer

from protocol.kubernetes.api import ApiCall
from protocol.kubernetes.objects import Json, JsonObject
from protocol.kubernetes.pages import Page, read_page
from protocol.messages import AgentRequest, Metrics, ObjectName
from protocol.ranking.config import RankingConfig
from protocol.runtime.clock import SystemClock
from protocol.units import ZERO, Bytes, ComputeUnit, Instant, MilliCpu
from scheduler_plugin.cluster.feed import Feed
from scheduler_plugin.cluster.migrations import MIGRATIONS
from scheduler_plugin.cluster.translate import NODES, VMS
from scheduler_plugin.cluster.translate import PODS as POD_LIST
from scheduler_plugin.constraints.model import PODS, NodeTraits
from scheduler_plugin.ledger.events import (
    BindEnded,
    BindRequested,
    Listed,
    PermitRequested,
    PermitWritten,
    PodGone,
    WriteOutcome,
)
from scheduler_plugin.ledger.facts import NodeFacts, NodePolicy, PodFacts, ResourcePolicy, VmFacts
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.order_queues import OrderQueues
from scheduler_plugin.planner.plan import MigrationPolicy
from scheduler_plugin.planner.planner import Planner
from scheduler_plugin.planner.victims import PlanningTime
from scheduler_plugin.settings.document import parse_settings
from scheduler_plugin.telemetry import Telemetry
from scripts.bench.kubernetes.fake_objects import as_listed, node, node_name, running_pod, running_vm
from scripts.process_costs import MIB

UNIT: Final = ComputeUnit.parse("250m", "1Gi")
SIZES: Final = (2, 4, 6, 8)
"""VM sizes in compute units."""

ROOM: Final = 6
"""Compute units of a node per VM; a VM has five on average."""

SETTINGS: Final = """
nodeDefaults:
  computeUnit: {vCPUs: "500m", mem: "128Mi"}
  cpu: {watermark: 0.9, system: "500m"}
  memory: {watermark: 0.9, system: "1Gi"}
"""

NAMESPACE: Final = "bench"
ROUNDS: Final = 500


class LargeFleet:
    """A ledger with ``nodes`` nodes and ``per_node`` VMs on each; VM n runs on node n modulo ``nodes``."""

    def __init__(self, nodes: int, per_node: int) -> None:
        mark = Fraction(9, 10)
        policy = NodePolicy(UNIT, ResourcePolicy(mark, MilliCpu(0)), ResourcePolicy(mark, Bytes(0)))
        self.names = [f"node-{number}" for number in range(nodes)]
        # Like real nodes: a limit on pods, and a unique hostname label.
        traits = [NodeTraits({"kubernetes.io/hostname": name}, other_allocatable={PODS: 250}) for name in self.names]
        size = UNIT * (per_node * ROOM)
        facts = [NodeFacts(name, size, policy, traits=trait) for name, trait in zip(self.names, traits, strict=True)]
        self.vms = [_vm(number, SIZES[number // nodes % len(SIZES)]) for number in range(nodes * per_node)]
        pods = [_pod(number, self.names[number % nodes]) for number in range(len(self.vms))]
        self.ledger, self.sequence, self.now = Ledger(), 0, 100.0
        self.load_ms = _milliseconds(lambda: self.ledger.apply(Listed(facts, pods, self.vms), Instant(0.0)))

    def request_permit(self, number: int, *, more: bool) -> None:
        """Request the VM's size, or (``more``) one unit more, as its agent does; store the permit."""
        vm, now, self.sequence = self.vms[number], Instant(self.now), self.sequence + 1
        size, load = vm.use + UNIT if more else vm.use, Metrics(1.0, 1.0, vm.use.mem)
        pod = ObjectName(NAMESPACE, f"pod-{number}")
        request = AgentRequest(pod, size, last_permit=vm.permit, metrics=load, sequence=self.sequence)
        write = self.ledger.apply(PermitRequested(f"{pod}", request), now).persist
        if write is not None:
            self.vms[number] = stored = vm.with_permit(vm.version + 1, write.permit)
            self.ledger.apply(PermitWritten(vm.name, write.revision, WriteOutcome.DONE, stored), now)

    def place(self, number: int) -> None:
        """Filter and score all nodes for a new pod; bind it to the best one."""
        pod = PodFacts(f"new-{number}", ObjectName(NAMESPACE, f"new-{number}"), UNIT * SIZES[number % len(SIZES)])
        fits = self.ledger.filter(pod, self.names).fits
        scores = self.ledger.scores(pod, fits)
        self.ledger.apply(BindRequested(pod, fits[scores.index(max(scores))]), Instant(self.now))

    def remove(self, number: int) -> None:
        """Undo ``place``."""
        self.ledger.apply(BindEnded(f"new-{number}", "", WriteOutcome.REFUSED), Instant(self.now))
        self.ledger.apply(PodGone(f"new-{number}"), Instant(self.now))

    def plan(self, planner: Planner) -> list[float]:
        """Run one planning round; return each step's milliseconds. The scheduler answers requests between steps."""
        now = PlanningTime(Instant(self.now), self.now)
        progress = planner.plan(self.ledger, MigrationPolicy(), RankingConfig(), now, lambda low, _: low)
        steps: list[float] = []
        done: list[bool] = []
        while not done:
            steps.append(_milliseconds(lambda: done.extend([] if next(progress, self) is None else [True])))
        return steps


class FakeLists:
    """A running fleet's lists, as an API server returns them. ``spent``: CPU seconds of generating them."""

    def __init__(self, nodes: int, per_node: int) -> None:
        node_of_vm = [node_name(number % nodes) for number in range(nodes * per_node)]
        self._objects: dict[str, tuple[int, Callable[[int], Json]]] = {
            NODES.path: (nodes, lambda number: as_listed(number, node(number))),
            POD_LIST.path: (len(node_of_vm), lambda number: running_pod(number, node_of_vm[number])),
            VMS.path: (len(node_of_vm), lambda number: running_vm(number, node_of_vm[number])),
            MIGRATIONS.path: (0, lambda _: {}),
        }
        self.spent = 0.0

    async def page(self, call: ApiCall) -> Page:
        """See ``KubernetesApi.page``."""
        began, (count, make) = time.process_time(), self._objects[call.path]
        first = int(call.query.get("continue", 0))
        end = min(count, first + int(call.query["limit"]))
        metadata = {"resourceVersion": "9000000", "continue": str(end) if end < count else ""}
        body = msgspec.json.encode({"metadata": metadata, "items": [make(number) for number in range(first, end)]})
        self.spent += time.process_time() - began
        return read_page(body)

    async def call(self, call: ApiCall) -> JsonObject:
        """Not used at startup."""
        raise NotImplementedError(call)

    def stream(self, call: ApiCall) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Not used at startup."""
        raise NotImplementedError(call)


async def measure_start(nodes: int, per_node: int) -> float:
    """Return the CPU seconds from the first list page until the scheduler is ready."""
    clock, lists = SystemClock(), FakeLists(nodes, per_node)
    settings = parse_settings(SETTINGS)
    feed = Feed(Ledger(), OrderQueues(), Telemetry(clock.now), clock=clock, settings=settings, identity=None)
    began = time.process_time()
    for informer in feed.informers:
        await informer.list_once(lists)
        feed.listed(informer.kind.name)
    if not feed.ready.is_set():
        raise RuntimeError(f"not ready: {feed.missing} not listed")
    return time.process_time() - began - lists.spent


def _vm(number: int, units: int) -> VmFacts:
    use, name = UNIT * units, f"vm-{number}"
    pod = ObjectName(NAMESPACE, f"pod-{number}")
    return VmFacts(ObjectName(NAMESPACE, name), name, 1, UNIT * 16, use, use, permit=use, pod=pod)


def _pod(number: int, node: str) -> PodFacts:
    name, vm = ObjectName(NAMESPACE, f"pod-{number}"), ObjectName(NAMESPACE, f"vm-{number}")
    return PodFacts(f"{name}", name, ZERO, vm, node, vm_uid=vm.name)


def _milliseconds(work: Callable[[], object]) -> float:
    began = time.process_time_ns()
    work()
    return (time.process_time_ns() - began) / 1e6


def _percentiles(name: str, samples: list[float]) -> str:
    cuts = quantiles(samples, n=100)
    return f"{name}: p50 {cuts[49]:.3f} ms, p99 {cuts[98]:.3f} ms, longest {max(samples):.3f} ms"


def _planning_rounds(fleet: LargeFleet) -> tuple[list[float], list[float]]:
    """Milliseconds of the longest step of each round without pressure, and of all steps of rounds with pressure."""
    planner = Planner()
    quiet = [max(fleet.plan(planner)) for _ in range(ROUNDS // 5)]
    busy: list[float] = []
    for first in range(ROUNDS // 25):
        for number in range(first, len(fleet.vms), len(fleet.names)):
            fleet.request_permit(number, more=True)
        fleet.plan(planner)
        # The planner acts only on pressure that lasts.
        fleet.now += MigrationPolicy().settle + 1
        busy += fleet.plan(planner)
    return quiet, busy


def main(
    nodes: Annotated[int, typer.Option(min=100)] = 5_000,
    vms: Annotated[int, typer.Option(help="VMs on each node.")] = 20,
) -> None:
    """Print CPU time and memory of the ledger and the planner for a fleet of this size."""
    # The scheduler does this too until it is ready.
    gc.disable()
    ready = asyncio.run(measure_start(nodes, vms))
    print(f"{nodes:,} nodes, {nodes * vms:,} VMs: ready after {ready:.1f} s of CPU")
    peak = _peak_mib()
    fleet = LargeFleet(nodes, vms)
    gc.enable()
    gc.freeze()
    print(f"of which loading the ledger: {fleet.load_ms / 1000:.1f} s; peak memory: {peak:.0f} MiB")
    # A prime stride spreads the requests over all nodes.
    numbers = [number * 7919 % len(fleet.vms) for number in range(ROUNDS)]
    permits = [_milliseconds(partial(fleet.request_permit, n, more=more)) for n in numbers for more in (True, False)]
    print(_percentiles("permit, including its write", permits))
    placements = []
    for number in range(ROUNDS):
        placements.append(_milliseconds(partial(fleet.place, number)))
        fleet.remove(number)
    print(_percentiles("filter, scores and bind of a pod, over all nodes", placements))
    quiet, busy = _planning_rounds(fleet)
    print(_percentiles("planning round, no node over its watermark", quiet))
    print(_percentiles("step of a planning round, nodes over their watermark", busy))


def _peak_mib() -> float:
    peak = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
    return int(peak) * 1024 / MIB


if __name__ == "__main__":
    typer.run(main)
