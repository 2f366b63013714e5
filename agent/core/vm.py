"""The agent's view of a VirtualMachine (S4.2), and the sizes that it may request (S4.6).

A postgres pod (B.7) has the same view: ``use`` is its container's requests, ``actual`` its allocated resources.

Rules that hold here:

- ``use`` is the size in the spec, ``actual`` the size in the status. Neither is the agent's desired size.
- ``version`` orders the views of an object: an older view never replaces a newer one, unless the cluster's store was
  restored. If the outcome of a patch is unknown, only a version beyond its base settles it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import Final, TypeVar

import msgspec

from protocol.guest.sleep import ASLEEP, MAX_ORDER_LENGTH, SLEEPING, WAKING, SleepReport, SleepState
from protocol.kubernetes.objects import number
from protocol.names import ANNOTATION_SLEEP, LABEL_KEEP_AWAKE, LABEL_ROLE
from protocol.pod_database import PodDatabase, ResizeObjection
from protocol.units import ZERO, Amount, Bytes, ComputeUnit, Instant, Resources
from protocol.virtual_machine import Bounds, VirtualMachine

RUNNING: Final = "Running"
"""The only phase in which a VM may be ordered to sleep."""

RESIZABLE_PHASES: Final = frozenset({RUNNING, "Scaling"})
"""Phases in which the controller accepts a resize."""

NO_REPORT: Final = SleepReport()
"""The report of a VM that has never slept."""

A = TypeVar("A", bound=Amount)


@dataclass(frozen=True, slots=True)
class VmFloor:
    """The minimum size until ``until``, derived from earlier needs in the same hour (S3.7)."""

    size: Resources
    until: Instant


class Vm(msgspec.Struct, frozen=True, gc=False):
    """One view of a VM. ``recorded_permit`` is the permit stored on the object, if any.

    ``enabled``: it has the opt-in label, without which the scheduler counts no permit. ``resizable``: it has that label
    and its phase allows a resize. ``ours``: its status names this agent's pod; during a migration that is true for at
    most one of the two pods. ``is_pod``: a pod that is resized in place. ``objection``: why the kubelet does not apply
    its requests. ``mem_limit``: its memory limit, None if unlimited. ``order``: the order to sleep on the object.
    ``sleep``: the controller's report. ``never_sleeps``: why it must not sleep, empty if it may. ``growing_to``: the
    size that the guest may reach by resizes in progress, even if ``use`` has changed since; zero if there are none.
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
    mem_limit: Bytes | None = None
    phase: str = RUNNING
    order: str = ""
    sleep: SleepReport = NO_REPORT
    never_sleeps: str = ""
    growing_to: Resources = ZERO

    @property
    def is_asleep(self) -> bool:
        """Return True if the guest is suspended and nothing has woken it."""
        return self.phase == ASLEEP

    @property
    def is_waking(self) -> bool:
        """Return True if the guest resumes once a permit covers ``use``."""
        return self.phase == WAKING

    @property
    def is_starting(self) -> bool:
        """Return True if the VM has its permit to wake, but its guest does not run yet."""
        return _is_starting(self.phase, self.sleep)

    @property
    def sleeps(self) -> bool:
        """Return True if the VM is asleep or waking."""
        return self.phase in SLEEPING

    @property
    def is_ordered_to_sleep(self) -> bool:
        """Return True until the controller has carried out or refused the order."""
        return bool(self.order) and self.order != self.sleep.order

    @property
    def holds(self) -> Resources:
        """The size to account for: the largest of actual and ordered."""
        # While asleep, ``use`` is only the size to request on wake.
        return ZERO if self.is_asleep else self.use.at_least(self.actual).at_least(self.growing_to)

    @property
    def has_mem(self) -> Bytes:
        """The smaller of actual and ordered memory."""
        return min(self.use.mem, self.actual.mem)

    def up_to_limit(self, size: Resources) -> Resources:
        """``size`` with its memory raised to the limit if that is above the requests: a pod may use that much."""
        limit = self.mem_limit
        return size if limit is None or limit <= self.holds.mem else Resources(size.cpu, limit)

    def bounds_at(self, now: Instant) -> Bounds:
        """The bounds, with the minimum raised to the floor if one applies at ``now``."""
        if self.floor is None or now >= self.floor.until:
            return self.bounds
        # The floor never raises the maximum.
        return Bounds(self.bounds.min.at_least(self.floor.size).at_most(self.bounds.max), self.bounds.max)

    def follows(self, version: int) -> bool:
        """Return True if this view is newer than ``version``, or has no version."""
        return self.version == 0 or self.version > version

    def sizes(self, unit: ComputeUnit, bounds: Bounds | None = None, *, apart: bool = False) -> Sizes:
        """The sizes to request within ``bounds`` (default: its own) on a node with ``unit``."""
        return Sizes(unit, bounds or self.bounds, self.slot_size, self.is_pod, apart)

    @property
    def unfinished_shrink(self) -> bool:
        """Return True if the VM still has more than ordered."""
        return not self.actual.within(self.use)


def view(source: VirtualMachine, pod: str, floor: VmFloor | None = None) -> Vm:
    """The view of an object for the agent of ``pod``. A status without sizes counts as equal to the spec.

    A resourceVersion that is not a number counts as 0; such views replace each other in the order of arrival.
    """
    is_pod, order = isinstance(source, PodDatabase), source.annotations.get(ANNOTATION_SLEEP, "")
    sleeps, is_starting = source.phase in SLEEPING, _is_starting(source.phase, source.sleep)
    return Vm(
        bounds=_in_slots(source) if is_pod else source.bounds,
        use=source.wakes_with if sleeps else source.use,
        actual=ZERO if sleeps else source.actual or (source.wakes_with if is_starting else source.use),
        slot_size=source.slot_size,
        version=number(source.resource_version),
        resizable=source.enabled and source.phase in RESIZABLE_PHASES,
        recorded_permit=source.permit,
        ours=source.pod_name == pod,
        enabled=source.enabled,
        floor=floor,
        is_pod=is_pod,
        objection=source.objection if isinstance(source, PodDatabase) else None,
        mem_limit=source.mem_limit if isinstance(source, PodDatabase) else None,
        phase=source.phase,
        order=order if len(order) <= MAX_ORDER_LENGTH else "",
        sleep=source.sleep,
        never_sleeps=_never_sleeps(source),
        growing_to=ZERO if sleeps else source.growing_to,
    )


def _is_starting(phase: str, report: SleepReport) -> bool:
    return phase == RUNNING and report.state is SleepState.WAKING


def _never_sleeps(vm: VirtualMachine) -> str:
    if isinstance(vm, PodDatabase):
        return "a postgres in a pod cannot sleep"
    if vm.labels.get(LABEL_KEEP_AWAKE) == "true":
        return f"its label {LABEL_KEEP_AWAKE} keeps it awake"
    # The guest of a primary with standbys reports that itself, as a reason to stay awake.
    if vm.labels.get(LABEL_ROLE) == "replica":
        return "it is a standby"
    # Only this project's controller publishes the running machine and supports sleep.
    return "" if vm.machine is not None else "its controller does not support sleep"


def _in_slots(pod: VirtualMachine) -> Bounds:
    """The bounds of a pod in whole slots, in which the scheduler counts memory; a pod's current size is arbitrary."""
    low, high = pod.bounds.min.mem, pod.bounds.max.mem.down_to(pod.slot_size)
    low = low if pod.use.mem == low else low.up_to(pod.slot_size)
    # If no size in whole slots fits, the pod keeps its memory.
    if low > high:
        low = high = pod.use.mem
    return Bounds(Resources(pod.bounds.min.cpu, low), Resources(pod.bounds.max.cpu, high))


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that a VM may request: within its bounds, in whole slots and whole compute units of its node.

    A VM gets as many units of CPU as of memory, unless the cluster lacks headroom (``apart``): then one that needs
    its memory keeps no CPU that a neighbour lacks. A pod's CPU and memory are always independent, and its memory is in
    slots.
    """

    unit: ComputeUnit
    bounds: Bounds
    slot_size: Bytes
    is_pod: bool = False
    apart: bool = False

    @property
    def mem_step(self) -> Bytes:
        """Step between memory sizes."""
        return self.slot_size if self.is_pod else Bytes(lcm(self.unit.mem.value, self.slot_size.value))

    def covering(self, need: Resources) -> Resources:
        """The smallest size in whole steps that covers ``need``, within the bounds."""
        if self.is_pod:
            # The minimum is the owner's own choice, so a pod that needs no more gets exactly that.
            low = self.bounds.min
            steps = Resources(need.cpu.up_to(self.unit.cpu), need.mem.up_to(self.slot_size))
            return Resources(
                low.cpu if need.cpu <= low.cpu else steps.cpu, low.mem if need.mem <= low.mem else steps.mem
            ).at_most(self.bounds.max)
        covered = need if self.apart else self.unit * need.units_up(self.unit)
        # Bounds first, then steps, so that the minimum is rounded up to a step as well.
        covered = covered.at_least(self.bounds.min)
        return self.not_less(covered).at_most(self.bounds.max)

    def not_less(self, amounts: Resources) -> Resources:
        """Round each amount up to a step, but not beyond the maximum unless the amount itself exceeds it."""
        most = self.bounds.max
        return Resources(
            _stepped(amounts.cpu, self.unit.cpu.value, most.cpu), _stepped(amounts.mem, self.mem_step.value, most.mem)
        )


def whole_slots(amounts: Resources, slot_size: Bytes) -> Resources:
    """``amounts`` with memory rounded down to whole slots."""
    return Resources(amounts.cpu, amounts.mem.down_to(slot_size))


def _stepped(amount: A, step: int, most: A) -> A:
    missing = -amount.value % step
    if not missing:
        return amount
    up = amount.value + missing
    # The exact maximum may be requested even if it is not a multiple, so that all of it can be used.
    return most if amount.value <= most.value < up else type(amount)(up)
