"""Checks that no node is overcommitted, with the ledger's invariants and the guests' actual sizes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from protocol.units import Seconds
from scheduler_plugin.ledger.invariants import VmTruth, overcommitted, violations, violations_on
from scripts.autoscale.simulate.fleet import SimulatedFleet
from scripts.autoscale.simulate.simulated_cluster import SimulatedCluster
from scripts.autoscale.simulate.simulated_vm import SimulatedVm

FULL_CHECK_INTERVAL: Final = Seconds(3600.0)


class InvariantChecks:
    """Checks one run. ``problems``: all violations, with their times."""

    def __init__(self, cluster: SimulatedCluster, fleet: SimulatedFleet, vms: list[SimulatedVm]) -> None:
        self.problems: list[str] = []
        self._cluster, self._vms = cluster, vms
        self._step = fleet.settings.step
        self._full_check_steps = max(1, round(FULL_CHECK_INTERVAL / self._step))
        self._node_index = {name: number for number, name in enumerate(cluster.nodes)}
        self._total = fleet.total
        self._node_of_vm = np.array([self._node_index[vm.node] for vm in vms])
        self._cpu = np.array([vm.use.cpu.value for vm in vms])
        self._mem = np.array([vm.use.mem.value for vm in vms], dtype=np.float64)

    def after_step(self, step: int, touched: Iterable[str], changed: list[SimulatedVm]) -> None:
        """Check the nodes ``touched`` and the VMs ``changed`` in this step; once an hour, check all."""
        ledger = self._cluster.ledger
        # Checking everything in each step would be too slow.
        if step % self._full_check_steps == 0:
            broken_rules = violations(ledger, {vm.pod: VmTruth(vm.use, vm.held) for vm in self._vms})
        else:
            truth = {vm.pod: VmTruth(vm.use, vm.held) for vm in changed}
            broken_rules = violations_on(ledger, touched, truth)
        # A consistent ledger can still exceed a node's total.
        broken_rules += [f"{name}: over its total by {by}" for name, by in overcommitted(ledger).items()]
        # Guests may exceed their permits, so add up their actual sizes, too.
        broken_rules += self._overfull_nodes(changed)
        self.problems += [f"{step * self._step:g} s: {violation}" for violation in broken_rules]

    def _overfull_nodes(self, changed: list[SimulatedVm]) -> list[str]:
        """Nodes whose guests together exceed the node, as text."""
        for vm in changed:
            index, use = vm.index, vm.use
            self._node_of_vm[index] = self._node_index[vm.node]
            self._cpu[index], self._mem[index] = use.cpu.value, use.mem.value
        # `bincount` adds up by node in C: a loop over all VMs in each step would be slow.
        cpu = np.bincount(self._node_of_vm, self._cpu, minlength=len(self._node_index))
        mem = np.bincount(self._node_of_vm, self._mem, minlength=len(self._node_index))
        over = (cpu > self._total.cpu.value) | (mem > self._total.mem.value)
        return [f"the guests on {self._cluster.nodes[number]} exceed the node" for number in np.flatnonzero(over)]
