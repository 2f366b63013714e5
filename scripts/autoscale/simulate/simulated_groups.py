"""Groups of VMs in a simulated fleet: a primary and its read replicas, which would rather not share a node."""

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
_WEIGHT: Final = -100


@dataclass(frozen=True, slots=True)
class SimulatedGroups:
    """This many groups, each a primary with this many ``replicas`` (both >= 0)."""

    count: int = 0
    replicas: int = 0

    @property
    def size(self) -> int:
        """The members of one group."""
        return 1 + self.replicas

    @property
    def members(self) -> int:
        """The members of all groups: VMs 0 to this, the last not included."""
        return self.count * self.size

    def beside(self, vm: int) -> range:
        """All members of the group of ``vm``, itself included; none if it is in no group."""
        # The first VMs of the fleet are the groups' members, group by group, each primary before its replicas.
        first = vm // self.size * self.size
        return range(first, first + self.size) if vm < self.members else range(0)

    def constraints(self, vm: int) -> PodConstraints:
        """The VM's constraints on its node."""
        if vm >= self.members:
            return UNCONSTRAINED
        others = PodTerm(HOSTNAME, (Requirement(LABEL_GROUP, "In", (self._name(vm),)),))
        # A preference and no requirement, as for real members: a group has to run on too few nodes as well.
        return PodConstraints(preferred_pods=(Weighted(_WEIGHT, others),))

    def traits(self, vm: int) -> PodTraits:
        """The VM pod's properties that constraints of others see."""
        return PodTraits({LABEL_GROUP: self._name(vm)}) if vm < self.members else PLAIN_POD

    def _name(self, vm: int) -> str:
        return f"group-{vm // self.size}"

    def shared(self, table: VmTable) -> VmTable:
        """The table in which all replicas of a group are like its first."""
        if not self.members or self.replicas < 2:
            return table
        same = np.arange(len(table.base))
        places = np.arange(self.members) % self.size
        # Clients spread over the replicas of a group, so these play one recording at one time; the primary plays its
        # own.
        same[: self.members] -= np.where(places > 1, places - 1, 0)
        return replace(
            table,
            base=table.base[same],
            length=table.length[same],
            offset=table.offset[same],
            vcpus=table.vcpus[same],
            cpu_peak=table.cpu_peak[same],
            mem_peak=table.mem_peak[same],
        )

    def sharing(self, on: Ints) -> int:
        """The number of members beside another one of their group, if each VM is on the node ``on`` (a number)."""
        # Sorted, members on one node are neighbours.
        rows = np.sort(on[: self.members].reshape(self.count, self.size), axis=1)
        return int((rows[:, 1:] == rows[:, :-1]).sum())


NO_GROUPS: Final = SimulatedGroups()
"""A fleet of single VMs."""
