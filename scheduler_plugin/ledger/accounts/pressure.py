"""Pressure of one node: when VMs should move away (S4.8).

Rules that hold here:

- Logical pressure is what is reserved above the watermark; capacity pressure is what VMs asked for and did not get,
  as far as it would not fit now.
- Room below the watermark answers pressure before any migration does. Every difference stops at zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.units import ZERO, Resources
from scheduler_plugin.placement import Room


@dataclass(frozen=True, slots=True)
class Pressure:
    """Amounts per resource. ``slack`` is the room below the watermark; ``migrating`` is already on its way out."""

    logical: Resources
    capacity: Resources
    migrating: Resources
    slack: Resources

    @classmethod
    def of(
        cls, room: Room, unmet: Resources, migrating: Resources, *, waits: Resources = ZERO, asked: Resources = ZERO
    ) -> Pressure:
        """The pressure of a node with ``room``, whose VMs did not get ``unmet``.

        Pods still wait for ``waits`` of what is reserved. The part ``asked`` is what VMs may leave for: it counts as
        granted.
        """
        # What a pod's deferred resize waits for is no pressure, though it is reserved. If the pod asks for room, it
        # counts like a VM's wish.
        wanted = room.reserved.minus_or_zero(waits) + asked
        # A wish is logical pressure up to the node's total, and capacity pressure beyond.
        covered = wanted.at_most(room.total) if asked.any else wanted
        return cls(
            logical=covered.minus_or_zero(room.watermark),
            # Room may have come free since the agent was denied; it gets that with its next request.
            capacity=unmet.minus_or_zero(room.free) + wanted.minus_or_zero(covered),
            migrating=migrating,
            slack=room.watermark.minus_or_zero(covered),
        )

    @property
    def due(self) -> Resources:
        """Amount that must leave the node, including what is already being migrated."""
        return (self.logical + self.capacity).minus_or_zero(self.slack)

    @property
    def excess(self) -> Resources:
        """Amount that must still leave the node, beyond what is being migrated."""
        return self.due.minus_or_zero(self.migrating)

    @property
    def too_much(self) -> bool:
        """True if more VMs should be chosen to migrate: CPU or memory has an excess."""
        return self.excess.any
