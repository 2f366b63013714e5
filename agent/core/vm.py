"""The agent's view of its VirtualMachine object (S4.2), and the sizes that it may ask for (S4.6).

Rules that hold here:

- ``use`` is what the spec orders, ``actual`` what the status says the VM has. Neither is the agent's wish.
- ``version`` orders views of one object: an older view never replaces a newer one, unless the cluster's store was
  restored. If the outcome of a patch is unknown, only a version beyond its base settles whether it took effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import Final, TypeVar

from protocol.kubernetes.objects import number
from protocol.units import Amount, Bytes, ComputeUnit, Instant, Resources
from protocol.virtual_machine import Bounds, VirtualMachine

RESIZABLE_PHASES: Final = frozenset({"Running", "Scaling"})
"""In any other phase the controller refuses a resize, or there is nothing to resize."""

A = TypeVar("A", bound=Amount)


@dataclass(frozen=True, slots=True)
class VmFloor:
    """The least size until ``until``, from what the same hour needed before (S3.7)."""

    size: Resources
    until: Instant


@dataclass(frozen=True, slots=True)
class Vm:
    """One view of a VM. ``recorded_permit`` is the permit that a scheduler wrote on the object, if any.

    ``enabled`` is the opt-in label: a scheduler counts no permits of a VM without it.
    ``resizable`` is False while its phase forbids a resize, and without the opt-in label. ``ours`` is True while the VM
    names this agent's pod as the one that it runs in: of the two pods of a migration always exactly one, or none.
    """

    bounds: Bounds
    use: Resources
    actual: Resources
    slot_size: Bytes
    version: int
    resizable: bool = True
    recorded_permit: Resources | None = None
    ours: bool = True
    enabled: bool = True
    floor: VmFloor | None = None

    @property
    def holds(self) -> Resources:
        """The size to account for: the VM has it, or was ordered to have it."""
        return self.use.at_least(self.actual)

    def bounds_at(self, now: Instant) -> Bounds:
        """The bounds with the floor that holds at ``now`` as their least."""
        if self.floor is None or now >= self.floor.until:
            return self.bounds
        # A floor raises the least that autoscaling goes to, never the most.
        return Bounds(self.bounds.min.at_least(self.floor.size).at_most(self.bounds.max), self.bounds.max)

    def follows(self, version: int) -> bool:
        """Return True if this view is newer than ``version``; a view that cannot be ordered follows every other."""
        return self.version == 0 or self.version > version

    @property
    def unfinished_shrink(self) -> bool:
        """Return True if the VM still has more than was ordered."""
        return not self.actual.within(self.use)


def view(found: VirtualMachine, pod: str, floor: VmFloor | None = None) -> Vm:
    """The core's view of the object, for the agent of ``pod``. A status without sizes counts as equal to the spec.

    A resource version that is no number cannot be ordered and counts as 0: such views replace each other as they come.
    """
    return Vm(
        bounds=found.bounds,
        use=found.use,
        actual=found.actual or found.use,
        slot_size=found.slot_size,
        version=number(found.resource_version),
        resizable=found.enabled and found.phase in RESIZABLE_PHASES,
        recorded_permit=found.permit,
        ours=found.pod_name == pod,
        enabled=found.enabled,
        floor=floor,
    )


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that one VM may ask for: within its bounds, whole slots, and whole compute units of its node."""

    unit: ComputeUnit
    bounds: Bounds
    slot_size: Bytes

    def covering(self, need: Resources) -> Resources:
        """The least size that covers ``need`` with whole compute units, within the bounds."""
        # Bounds first, then steps: a minimum that is no multiple is rounded up as well.
        covered = (self.unit * need.units_up(self.unit)).at_least(self.bounds.min)
        return self.not_less(covered).at_most(self.bounds.max)

    def not_less(self, amounts: Resources) -> Resources:
        """Each amount up to a multiple, but not past the maximum unless the amount itself is past it."""
        most, mem_step = self.bounds.max, lcm(self.unit.mem.value, self.slot_size.value)
        return Resources(
            _stepped(amounts.cpu, self.unit.cpu.value, most.cpu), _stepped(amounts.mem, mem_step, most.mem)
        )


def whole_slots(amounts: Resources, slot_size: Bytes) -> Resources:
    """``amounts`` with memory rounded down to whole slots: a permit need not be a multiple."""
    return Resources(amounts.cpu, amounts.mem.down_to(slot_size))


def _stepped(amount: A, step: int, most: A) -> A:
    missing = -amount.value % step
    if not missing:
        return amount
    up = amount.value + missing
    # A maximum that is no multiple may be asked for exactly, so that all of it can be used.
    return most if amount.value <= most.value < up else type(amount)(up)
