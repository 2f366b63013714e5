"""Groups in a simulated fleet: primaries and read replicas, which prefer different nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from protocol.names import LABEL_GROUP
from scheduler_plugin.constraints.model import (
    PLAIN_POD,
    UNCONSTRAINED,
    PodConstraints,
    PodTerm,
    PodTraits,
    Requirement,
    Weighted,
)
from scripts.autoscale.simulate.recording_grid import Ints
from scripts.autoscale.simulate.vm_table import VmTable

HOSTNAME: Final = "kubernetes.io/hostname"
# Negative weights are anti-affinity.
_WEIGHT: Final = -100


@dataclass(frozen=True, slots=True)
class SimulatedGroups:
    """``count`` groups (>= 0) of a primary and ``replicas`` (>= 0) each: the first VMs of the fleet."""

    count: int = 0
    replicas: int = 0

    @property
    def size(self) -> int:
        """Members per group."""
        return 1 + self.replicas

    @property
    def members(self) -> int:
        """Members of all groups: VMs 0 to ``members`` - 1."""
        return self.count * self.size

    def members_with(self, vm: int) -> range:
        """Members of the group of ``vm``, including itself; empty if it is in no group."""
        # Group by group, each primary before its replicas.
        first = vm // self.size * self.size
        return range(first, first + self.size) if vm < self.members else range(0)

    def constraints(self, vm: int) -> PodConstraints:
        """Placement constraints of the VM."""
        if vm >= self.members:
            return UNCONSTRAINED
        others = PodTerm(HOSTNAME, (Requirement(LABEL_GROUP, "In", (self._name(vm),)),))
        # Preferred, as for real members: a group must run on too few nodes, too.
        return PodConstraints(preferred_pods=(Weighted(_WEIGHT, others),))

    def traits(self, vm: int) -> PodTraits:
        """Labels of the VM's pod, which constraints of other pods match."""
        return PodTraits({LABEL_GROUP: self._name(vm)}) if vm < self.members else PLAIN_POD

    def _name(self, vm: int) -> str:
        return f"group-{vm // self.size}"

    def align_replicas(self, table: VmTable) -> VmTable:
        """Return ``table`` with all replicas of a group equal to its first one."""
        if not self.members or self.replicas < 2:
            return table
        source = np.arange(len(table.base))
        position = np.arange(self.members) % self.size
        # Clients are spread over replicas, so all replicas of a group have the same load.
        source[: self.members] -= np.where(position > 1, position - 1, 0)
        return replace(
            table,
            base=table.base[source],
            length=table.length[source],
            offset=table.offset[source],
            vcpus=table.vcpus[source],
            cpu_peak=table.cpu_peak[source],
            mem_peak=table.mem_peak[source],
        )

    def colocated(self, nodes: Ints) -> int:
        """Number of members on a node that another member of their group already uses; ``nodes``: node index per VM."""
        # Sorting makes members on one node adjacent.
        rows = np.sort(nodes[: self.members].reshape(self.count, self.size), axis=1)
        return int((rows[:, 1:] == rows[:, :-1]).sum())


NO_GROUPS: Final = SimulatedGroups()
"""No groups: single VMs only."""
