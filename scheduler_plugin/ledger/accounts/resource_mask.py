"""A choice among CPU and memory (pure)."""

from __future__ import annotations

from typing import Final, NamedTuple

from protocol.units import Resources


class ResourceMask(NamedTuple):
    """CPU, memory, both or neither."""

    cpu: bool = False
    mem: bool = False

    @classmethod
    def of_rise(cls, lower: Resources, upper: Resources) -> ResourceMask:
        """The resources of which ``upper`` has more than ``lower``."""
        return cls(lower.cpu < upper.cpu, lower.mem < upper.mem)

    def of(self, these: Resources, others: Resources) -> Resources:
        """The chosen amounts of ``these``, the rest of ``others``."""
        return Resources(these.cpu if self.cpu else others.cpu, these.mem if self.mem else others.mem)

    def among(self, others: ResourceMask) -> ResourceMask:
        """Those that ``others`` has, too."""
        return ResourceMask(self.cpu and others.cpu, self.mem and others.mem)

    def together(self, others: ResourceMask) -> ResourceMask:
        """Those of both."""
        return ResourceMask(self.cpu or others.cpu, self.mem or others.mem)

    @property
    def any(self) -> bool:
        """True if there is one."""
        return self.cpu or self.mem


NEITHER: Final = ResourceMask()
BOTH: Final = ResourceMask(cpu=True, mem=True)
