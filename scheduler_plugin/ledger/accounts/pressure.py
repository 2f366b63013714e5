"""Pressure of one node: when VMs should move away (S4.8).

Rules that hold here:

- Logical pressure is what is reserved above the watermark; capacity pressure is what VMs asked for and did not get,
  as far as it would not fit by now.
- Room below the watermark answers pressure before any migration does. Every difference stops at zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.units import Resources
from scheduler_plugin.placement import Room


@dataclass(frozen=True, slots=True)
class Pressure:
    """Amounts per resource. ``slack`` is the room below the watermark; ``migrating`` is already on its way out."""

    logical: Resources
    capacity: Resources
    migrating: Resources
    slack: Resources

    @classmethod
    def of(cls, room: Room, unmet: Resources, migrating: Resources) -> Pressure:
        """The pressure of a node with ``room``, whose VMs did not get ``unmet``."""
        return cls(
            logical=room.reserved.minus_or_zero(room.watermark),
            capacity=unmet.minus_or_zero(room.free),
            migrating=migrating,
            slack=room.watermark.minus_or_zero(room.reserved),
        )

    @property
    def due(self) -> Resources:
        """What has to leave the node, whether it is being migrated already or not."""
        return (self.logical + self.capacity).minus_or_zero(self.slack)

    @property
    def excess(self) -> Resources:
        """What still has to leave the node, beyond what is being migrated."""
        return self.due.minus_or_zero(self.migrating)

    @property
    def too_much(self) -> bool:
        """Whether more VMs should be chosen to migrate: CPU or memory has an excess."""
        return self.excess.any
