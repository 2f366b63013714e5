"""Pressure of one node: when VMs should move away (S4.8).

Rules that hold here:

- Logical pressure is what is reserved above the watermark; capacity pressure is what VMs asked for and did not get,
  as far as it would not fit by now.
- What a pod's deferred resize waits for is not logical pressure, though it is reserved. It is capacity pressure where
  the pod asks for room, as far as it would not fit by now.
- Room below the watermark answers pressure before any migration does. Every difference stops at zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.units import Resources
from scheduler_plugin.ledger.accounts.deferred import NONE_DEFERRED, DeferredResizes
from scheduler_plugin.placement import Room


@dataclass(frozen=True, slots=True)
class Pressure:
    """Amounts per resource. ``slack`` is the room below the watermark; ``migrating`` is already on its way out."""

    logical: Resources
    capacity: Resources
    migrating: Resources
    slack: Resources

    @classmethod
    def of(cls, room: Room, unmet: Resources, migrating: Resources, waits: DeferredResizes = NONE_DEFERRED) -> Pressure:
        """The pressure of a node with ``room``, whose VMs did not get ``unmet``, and whose pods wait for ``waits``."""
        held = room.reserved.minus_or_zero(waits.all)
        refused = waits.asked.minus_or_zero(room.total.minus_or_zero(held))
        return cls(
            logical=held.minus_or_zero(room.watermark),
            capacity=unmet.minus_or_zero(room.free) + refused,
            migrating=migrating,
            slack=room.watermark.minus_or_zero(held),
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
