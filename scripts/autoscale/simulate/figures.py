"""The results of one run: curves with one value per step, and a row of figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from scripts.autoscale.replay.recording import Floats

CURVES: Final = (
    "over_watermark",
    "utilisation",
    "busiest",
    "denied",
    "denied_cores",
    "migrations",
    "stuck",
    "demand",
    "short",
    "sharing",
)
"""Nodes over their watermark; mean and maximum utilisation of nodes; VMs and vCPUs denied; migrations started so far;
nodes under pressure that no VM can leave; vCPUs wanted, and those of them that no guest had; members of groups that
share a node with another one of their group."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one victim order over the hours counted.

    ``asked`` are growths: requests for more than the agent held, without repeats of denied ones. ``denied`` are those
    that got less than they asked for at first.
    ``in_place_percent`` is the share of them that was granted in full without a move, 100 if nothing was asked.
    ``denied_vm_seconds`` is how long VMs lacked what they had asked for, ``denied_vcpu_hours`` how much it was, and
    ``longest_denial_seconds`` the longest that one VM did without a break. ``unfairness_percent`` is the share of those
    VM-seconds that fell to ``worst_vm``, the VM that was denied for longest in all; 0 and empty if none was.
    ``gifts`` are shrinks of VMs on a node that is short, ``regrown_percent`` the share of them after which the VM asked
    for more within a minute.
    ``moved_again`` are migrations of VMs that had moved within the hour before. ``disturbed_vcpu_hours`` is the load of
    VMs while they migrate. ``stuck_node_hours`` is the time that nodes were under pressure while no VM could leave.
    Utilisation is reserved over reservable, of CPU or memory, whichever is more. ``short_percent`` is the share of the
    CPU demand (capped at the VMs' bounds) that guests had no CPU for. ``groups`` have ``replicas`` in all;
    ``sharing_percent`` is the share of their members' time beside another one of their group. ``violations`` must be 0.
    ``cpu_seconds`` is the time that the simulation took.
    """

    order: str
    hours: float
    asked: int
    granted: int
    in_place_percent: float
    denied: int
    denied_vm_seconds: float
    unfairness_percent: float
    worst_vm: str
    longest_denial_seconds: float
    denied_vcpu_hours: float
    gifts: int
    regrown_percent: float
    migrations: int
    migrations_per_hour: float
    moved_again: int
    failed: int
    copied_gib: float
    disturbed_vcpu_hours: float
    stuck_node_hours: float
    over_watermark_node_hours: float
    over_watermark_percent: float
    mean_utilisation: float
    peak_utilisation: float
    short_percent: float
    violations: int
    cpu_seconds: float
    groups: int = 0
    replicas: int = 0
    sharing_percent: float = 0.0


class Curves:
    """One value of each curve for every step played."""

    def __init__(self, steps: int) -> None:
        # Allocated at once, as the number of steps is known; `played` is how many of them have values.
        self._values = {name: np.zeros(steps) for name in CURVES}
        self.played = 0

    def add(self, **values: float) -> None:
        """The values of the next step."""
        for name, value in values.items():
            self._values[name][self.played] = value
        self.played += 1

    def since(self, begin: int) -> Mapping[str, Floats]:
        """The curves from step ``begin`` to the last one played."""
        return {name: values[begin : self.played] for name, values in self._values.items()}
