"""``make bench-ledger``: what reading the lists, a permit, a bind and a planning round cost in a large fleet.

The ledger and the planner alone, without an API server: CPU time of this process, so other programs disturb little.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Annotated, Final

import typer

from protocol.messages import AgentRequest, Metrics, ObjectName
from protocol.ranking.config import RankingConfig
from protocol.units import ZERO, Bytes, ComputeUnit, Instant, MilliCpu
from scheduler_plugin.constraints.model import PODS, NodeTraits
from scheduler_plugin.ledger.events import AgentAsked, BindEnded, Listed, PermitWritten, PodGone, PodToBind, WriteEnd
from scheduler_plugin.ledger.facts import NodeFacts, NodePolicy, PodFacts, ResourcePolicy, VmFacts
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.planner.plan import MigrationPolicy
from scheduler_plugin.planner.planner import Planner
from scheduler_plugin.planner.victims import Now
from scripts.bench.process_costs import MIB

UNIT: Final = ComputeUnit.parse("250m", "1Gi")
SIZES: Final = (2, 4, 6, 8)
"""The VMs' sizes in compute units."""

ROOM: Final = 6
"""The compute units of a node for each of its VMs: one more than these have."""

NAMESPACE: Final = "bench"
ROUNDS: Final = 500


class LargeFleet:
    """Nodes with ``per_node`` VMs each, and a ledger that has read them; VM n is on node n modulo their number."""

    def __init__(self, nodes: int, per_node: int) -> None:
        mark = Fraction(9, 10)
        policy = NodePolicy(UNIT, ResourcePolicy(mark, MilliCpu(0)), ResourcePolicy(mark, Bytes(0)))
        self.names = [f"node-{number}" for number in range(nodes)]
        # Counted pods and a label of its own, as every real node has.
        traits = [NodeTraits({"kubernetes.io/hostname": name}, has={PODS: 250}) for name in self.names]
        size = UNIT * (per_node * ROOM)
        facts = [NodeFacts(name, size, policy, traits=trait) for name, trait in zip(self.names, traits, strict=True)]
        # Every node has VMs of all sizes.
        self.vms = [_vm(number, SIZES[number // nodes % len(SIZES)]) for number in range(nodes * per_node)]
        pods = [_pod(number, self.names[number % nodes]) for number in range(len(self.vms))]
        self.ledger, self.sequence, self.now = Ledger(), 0, 100.0
        self.reading = _milliseconds(lambda: self.ledger.apply(Listed(facts, pods, self.vms), Instant(0.0)))

    def ask(self, number: int, *, more: bool) -> None:
        """The agent of the VM asks for a unit more than the VM has, or for that alone; the permit is stored."""
        vm, now, self.sequence = self.vms[number], Instant(self.now), self.sequence + 1
        wanted, load = vm.use + UNIT if more else vm.use, Metrics(1.0, 1.0, vm.use.mem)
        pod = ObjectName(NAMESPACE, f"pod-{number}")
        request = AgentRequest(pod, wanted, last_permit=vm.permit, metrics=load, sequence=self.sequence)
        write = self.ledger.apply(AgentAsked(f"{pod}", request), now).persist
        if write is not None:
            self.vms[number] = stored = vm.with_permit(vm.version + 1, write.permit)
            self.ledger.apply(PermitWritten(vm.name, write.revision, WriteEnd.DONE, stored), now)

    def place(self, number: int) -> None:
        """A new pod comes: all nodes are filtered and scored for it, and it is bound to the best."""
        pod = PodFacts(f"new-{number}", ObjectName(NAMESPACE, f"new-{number}"), UNIT * SIZES[number % len(SIZES)])
        fits = self.ledger.filter(pod, self.names).fits
        scores = self.ledger.scores(pod, fits)
        self.ledger.apply(PodToBind(pod, fits[scores.index(max(scores))]), Instant(self.now))

    def remove(self, number: int) -> None:
        """The pod of ``place`` goes again."""
        self.ledger.apply(BindEnded(f"new-{number}", "", WriteEnd.REFUSED), Instant(self.now))
        self.ledger.apply(PodGone(f"new-{number}"), Instant(self.now))

    def plan(self, planner: Planner) -> list[float]:
        """One planning round: the milliseconds of each of its steps, between which requests are answered."""
        now = Now(Instant(self.now), self.now)
        look = planner.plan(self.ledger, MigrationPolicy(), RankingConfig(), now, lambda low, _: low)
        steps: list[float] = []
        done: list[bool] = []
        while not done:
            steps.append(_milliseconds(lambda: done.extend([] if next(look, self) is None else [True])))
        return steps


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


def _rounds(fleet: LargeFleet) -> tuple[list[float], list[float]]:
    """The steps of rounds in which no node is over its watermark, and of such in which one more is."""
    planner = Planner()
    quiet = [max(fleet.plan(planner)) for _ in range(ROUNDS // 5)]
    busy: list[float] = []
    for node in range(ROUNDS // 25):
        for number in range(node, len(fleet.vms), len(fleet.names)):
            fleet.ask(number, more=True)
        fleet.plan(planner)
        # Long enough for the pressure to have settled.
        fleet.now += 11
        busy += fleet.plan(planner)
    return quiet, busy


def main(
    nodes: Annotated[int, typer.Option(min=100)] = 5_000, vms: Annotated[int, typer.Option(help="On each node.")] = 20
) -> None:
    """Prints what a fleet of this size costs the ledger and the planner."""
    fleet = LargeFleet(nodes, vms)
    gc.freeze()
    print(f"{nodes:,} nodes, {len(fleet.vms):,} VMs: lists read within {fleet.reading / 1000:.1f} s of CPU time")
    numbers = [number * 7919 % len(fleet.vms) for number in range(ROUNDS)]
    asks = [_milliseconds(partial(fleet.ask, n, more=more)) for n in numbers for more in (True, False)]
    print(_percentiles("permit, its write included", asks))
    places = []
    for number in range(ROUNDS):
        places.append(_milliseconds(partial(fleet.place, number)))
        fleet.remove(number)
    print(_percentiles("filter, scores and bind of a pod, over all nodes", places))
    quiet, busy = _rounds(fleet)
    print(_percentiles("planning round, no node over its watermark", quiet))
    print(_percentiles("planning round, a step while nodes are", busy))
    peak = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
    print(f"memory: {int(peak) * 1024 / MIB:.0f} MiB")


if __name__ == "__main__":
    typer.run(main)
