"""Checks that no node is overcommitted, by the ledger's invariants and by the guests' actual sizes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from protocol.units import Seconds
from scheduler_plugin.ledger.invariants import VmTruth, overcommitted, violations, violations_on
from scripts.autoscale.simulate.fleet import SimulatedFleet
from scripts.autoscale.simulate.simulated_cluster import SimulatedCluster
from scripts.autoscale.simulate.simulated_vm import SimulatedVm

ALL_EVERY: Final = Seconds(3600.0)


class InvariantChecks:
    """The checks of a run; ``problems`` contains all violations with their times."""

    def __init__(self, cluster: SimulatedCluster, fleet: SimulatedFleet, vms: list[SimulatedVm]) -> None:
        self.problems: list[str] = []
        self._cluster, self._vms = cluster, vms
        self._step = fleet.settings.step
        self._all_every = max(1, round(ALL_EVERY / self._step))
        self._number = {name: number for number, name in enumerate(cluster.nodes)}
        self._total = fleet.total
        self._on = np.array([self._number[vm.node] for vm in vms])
        self._cpu = np.array([vm.use.cpu.value for vm in vms])
        self._mem = np.array([vm.use.mem.value for vm in vms], dtype=np.float64)

    def after_step(self, step: int, touched: Iterable[str], changed: list[SimulatedVm]) -> None:
        """Runs the checks. ``changed`` contains all VMs whose size or node may have changed in this step."""
        ledger = self._cluster.ledger
        # All nodes and VMs only once an hour, because that is slow; changes are checked at once.
        if step % self._all_every == 0:
            broken = violations(ledger, {vm.pod: VmTruth(vm.use, vm.held) for vm in self._vms})
        else:
            truth = {vm.pod: VmTruth(vm.use, vm.held) for vm in changed}
            broken = violations_on(ledger, touched, truth)
        # The ledger could be consistent and still exceed a node's total.
        broken += [f"{name}: over its total by {by}" for name, by in overcommitted(ledger).items()]
        # Guests may have more than the ledger knows, so sum their actual sizes, too.
        broken += self._guests(changed)
        self.problems += [f"{step * self._step:g} s: {what}" for what in broken]

    def _guests(self, changed: list[SimulatedVm]) -> list[str]:
        """Problems of nodes whose guests exceed the node."""
        for vm in changed:
            index, use = vm.index, vm.use
            self._on[index], self._cpu[index], self._mem[index] = self._number[vm.node], use.cpu.value, use.mem.value
        # `bincount` sums by node in C, because a loop over all VMs in each step would be slow.
        cpu = np.bincount(self._on, self._cpu, minlength=len(self._number))
        mem = np.bincount(self._on, self._mem, minlength=len(self._number))
        over = (cpu > self._total.cpu.value) | (mem > self._total.mem.value)
        return [f"the guests on {self._cluster.nodes[number]} exceed the node" for number in np.flatnonzero(over)]
