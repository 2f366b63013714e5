"""Policy for the room that a node reserves for its sleeping VMs (B.18)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction
from heapq import nlargest
from typing import Final

from protocol.units import Bytes, MilliCpu, Resources


@dataclass(frozen=True, slots=True)
class WakeReserve:
    """Room reserved for sleeping VMs of a node: the needs of the ``sleepers`` largest (0: none), at most ``share`` (0
    to 1) of the node's allocatable room (B.18).
    """

    sleepers: int = 1
    # A large sleeping VM must not keep most of the node empty.
    share: Fraction = Fraction(1, 4)

    def of(self, missing: Collection[Resources], total: Resources) -> Resources:
        """Room to reserve on a node with ``total`` whose sleeping VMs lack ``missing``, for CPU and memory separately.

        >>> missing = [Resources.parse(1, "2Gi"), Resources.parse(2, "1Gi"), Resources.parse(9, "1Gi")]
        >>> str(WakeReserve(sleepers=2).of(missing, Resources.parse(20, "64Gi")))
        '5 cpu, 3Gi'
        """
        cpu = nlargest(self.sleepers, (amounts.cpu.value for amounts in missing))
        mem = nlargest(self.sleepers, (amounts.mem.value for amounts in missing))
        most = Resources(total.cpu.scaled(self.share), total.mem.scaled(self.share))
        return Resources(MilliCpu(sum(cpu)), Bytes(sum(mem))).at_most(most)


DEFAULT_RESERVE: Final = WakeReserve()
NO_RESERVE: Final = WakeReserve(sleepers=0)
