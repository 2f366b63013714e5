"""Two nodes and the VMs that a test puts on them: the simulation's parts, moved by hand.

Each node has 64 compute units to reserve (16 vCPU, 64 GiB), and its watermark is at half of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from protocol.units import Bytes, Instant, Resources, Seconds
from protocol.virtual_machine import Bounds
from scheduler_plugin.ledger.events import VmSeen
from scheduler_plugin.ledger.invariants import VmTruth, overcommitted, violations
from scheduler_plugin.planner.plan import MigrationPolicy, MovePlan
from scripts.autoscale.simulate.fleet import SimulatedFleet, SimulationSettings
from scripts.autoscale.simulate.migration_model import SimulatedMigrations
from scripts.autoscale.simulate.recording_grid import RecordingGrid
from scripts.autoscale.simulate.simulated_cluster import SimulatedCluster
from scripts.autoscale.simulate.simulated_vm import SimulatedVm, agent_policy
from scripts.autoscale.simulate.vm_table import UNIT, VmTable

STEP = Seconds(15.0)
SETTLE = MigrationPolicy().settle
MOST = UNIT * 64
GIB = 1024**3


def a_fleet(vms: int, bandwidth: str = "256Mi") -> SimulatedFleet:
    """Two nodes for this many VMs, each of which may take a whole one, and plays nothing."""
    one, none = np.ones(1), np.zeros(vms, dtype=np.int64)
    grid = RecordingGrid(one, one, np.zeros(1, dtype=np.bool_), none[:1], none[:1] + 1, one)
    table = VmTable(grid, none, none + 1, none, none + 16, np.ones(vms), np.full(vms, 1.0 * GIB))
    half, speed = Fraction(1, 2), Bytes.parse(bandwidth)
    return SimulatedFleet(
        SimulationSettings(nodes=2, vms=vms, hours=1.0, step=STEP, watermark=half, bandwidth=speed), table, MOST
    )


class SimulationFixture:
    """VMs of this many compute units on each node: ``SimulationFixture([8, 8], [])``. Agents run on demand.

    ``cores`` and ``mem`` are what the VMs need: one vCPU and 1 GiB, until a test says otherwise.
    """

    def __init__(self, first: Sequence[int], second: Sequence[int], *, order: str, bandwidth: str = "256Mi") -> None:
        self.now = Instant(0.0)
        self.fleet = a_fleet(len(first) + len(second), bandwidth)
        self.cluster = SimulatedCluster(self.fleet)
        sizes = [(units, "node-0") for units in first] + [(units, "node-1") for units in second]
        self.vms = [self._begin(index, UNIT * units, node) for index, (units, node) in enumerate(sizes)]
        self.moves = SimulatedMigrations(self.cluster, self.fleet.settings, order)
        self.cores, self.mem = [1.0] * len(self.vms), [1.0 * GIB] * len(self.vms)

    def _begin(self, index: int, size: Resources, node: str) -> SimulatedVm:
        vm = SimulatedVm(index, Bounds(UNIT, MOST), size, agent_policy(STEP), node=node)
        self.cluster.vms[vm.name] = vm
        vm.start_agent(f"vm-{index}-0", self.now)
        self.cluster.ledger.apply(VmSeen(self.cluster.facts(vm)), self.now)
        assert self.cluster.bind(self.cluster.pod(vm, vm.pod), node, self.now)
        vm.act(self.cluster, self.now, 0.0)
        return vm

    def run_agent(self, vm: SimulatedVm) -> None:
        """Run the agent's own actions once."""
        vm.observe(self.cores[vm.index], self.mem[vm.index], self.now)
        vm.act(self.cluster, self.now, 0.0)

    def step(self, seconds: float = STEP) -> MovePlan:
        """Time passes: who has arrived, and what the planner does then. Nothing is over-committed ever."""
        self.now = Instant(self.now + seconds)
        for vm in self.moves.complete_due(self.now):
            self.run_agent(vm)
        _, plan = self.moves.reconcile(self.now, (self.cores, self.mem))
        assert self.problems() == []
        return plan

    def problems(self) -> list[str]:
        """Overcommitments, as text."""
        truth = {vm.pod: VmTruth(vm.use, vm.held) for vm in self.vms}
        found = violations(self.cluster.ledger, truth)
        return found + [f"{name}: {by}" for name, by in overcommitted(self.cluster.ledger).items()]

    def reserved(self) -> tuple[int, ...]:
        """Compute units reserved on each node."""
        rooms = self.cluster.ledger.rooms
        return tuple(rooms[name].reserved.cpu.value // UNIT.cpu.value for name in self.cluster.nodes)

    @property
    def nodes(self) -> list[str]:
        """The node of each VM."""
        return [vm.node for vm in self.vms]
