"""The agent's view of its VirtualMachine object (S4.2), and the sizes that it may ask for (S4.6).

A pod with a postgres (B.7) is seen as one, too: what its container requests is ``use``, what it has is ``actual``.

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
from protocol.pod_database import PodDatabase, ResizeObjection
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
    ``is_pod``: a pod that is resized in place by its requests. ``objection``: why the kubelet does not apply them.
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
    is_pod: bool = False
    objection: ResizeObjection | None = None

    @property
    def holds(self) -> Resources:
        """The size to account for: the VM has it, or was ordered to have it."""
        return self.use.at_least(self.actual)

    @property
    def has_mem(self) -> Bytes:
        """The memory that can be counted on: the VM has it, and keeps it."""
        return min(self.use.mem, self.actual.mem)

    def bounds_at(self, now: Instant) -> Bounds:
        """The bounds with the floor that holds at ``now`` as their least."""
        if self.floor is None or now >= self.floor.until:
            return self.bounds
        # A floor raises the least that autoscaling goes to, never the most.
        return Bounds(self.bounds.min.at_least(self.floor.size).at_most(self.bounds.max), self.bounds.max)

    def follows(self, version: int) -> bool:
        """Return True if this view is newer than ``version``; a view that cannot be ordered follows every other."""
        return self.version == 0 or self.version > version

    def sizes(self, unit: ComputeUnit, bounds: Bounds | None = None) -> Sizes:
        """The sizes to ask for within ``bounds`` (None: its own) on a node with ``unit``."""
        return Sizes(unit, bounds or self.bounds, self.slot_size, self.is_pod)

    @property
    def unfinished_shrink(self) -> bool:
        """Return True if the VM still has more than was ordered."""
        return not self.actual.within(self.use)


def view(found: VirtualMachine, pod: str, floor: VmFloor | None = None) -> Vm:
    """The core's view of the object, for the agent of ``pod``. A status without sizes counts as equal to the spec.

    A resource version that is no number cannot be ordered and counts as 0: such views replace each other as they come.
    """
    is_pod = isinstance(found, PodDatabase)
    return Vm(
        bounds=_in_slots(found) if is_pod else found.bounds,
        use=found.use,
        actual=found.actual or found.use,
        slot_size=found.slot_size,
        version=number(found.resource_version),
        resizable=found.enabled and found.phase in RESIZABLE_PHASES,
        recorded_permit=found.permit,
        ours=found.pod_name == pod,
        enabled=found.enabled,
        floor=floor,
        is_pod=is_pod,
        objection=found.objection if isinstance(found, PodDatabase) else None,
    )


def _in_slots(pod: VirtualMachine) -> Bounds:
    """The bounds of a pod in whole slots, in which the scheduler counts memory; what it has now may be any size."""
    low, high = pod.bounds.min.mem, pod.bounds.max.mem.down_to(pod.slot_size)
    low = low if pod.use.mem == low else low.up_to(pod.slot_size)
    # No size of whole slots fits, so the pod keeps its memory.
    if low > high:
        low = high = pod.use.mem
    return Bounds(Resources(pod.bounds.min.cpu, low), Resources(pod.bounds.max.cpu, high))


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that one VM may ask for: within its bounds, whole slots, and whole compute units of its node.

    Of a pod, CPU and memory move each by its own: in steps of the unit's CPU, and in slots.
    """

    unit: ComputeUnit
    bounds: Bounds
    slot_size: Bytes
    is_pod: bool = False

    @property
    def mem_step(self) -> Bytes:
        """The step of memory."""
        return self.slot_size if self.is_pod else Bytes(lcm(self.unit.mem.value, self.slot_size.value))

    def covering(self, need: Resources) -> Resources:
        """The least size that covers ``need`` with whole steps, within the bounds."""
        if self.is_pod:
            # The floor is the owner's own size, so a pod that needs no more keeps exactly that.
            low = self.bounds.min
            steps = Resources(need.cpu.up_to(self.unit.cpu), need.mem.up_to(self.slot_size))
            return Resources(
                low.cpu if need.cpu <= low.cpu else steps.cpu, low.mem if need.mem <= low.mem else steps.mem
            ).at_most(self.bounds.max)
        # Bounds first, then steps: a minimum that is no multiple is rounded up as well.
        covered = (self.unit * need.units_up(self.unit)).at_least(self.bounds.min)
        return self.not_less(covered).at_most(self.bounds.max)

    def not_less(self, amounts: Resources) -> Resources:
        """Each amount up to a multiple, but not past the maximum unless the amount itself is past it."""
        most = self.bounds.max
        return Resources(
            _stepped(amounts.cpu, self.unit.cpu.value, most.cpu), _stepped(amounts.mem, self.mem_step.value, most.mem)
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
