"""The influence of the guest's monitor on its VM's size, and the next message to it (B.8).

Rules that hold here:

- Before a shrink the agent asks the monitor, and the VM keeps its memory until the monitor agrees. A growth is only
  reported.
- Without a monitor, or a while after losing it, this module has no effect.
- A pod's monitor is the reclaimer on its node, which runs a trial before it agrees. Without it memory does not shrink.
"""

from __future__ import annotations

from agent.core.actions import MonitorMessage
from agent.core.goal import NOTHING
from agent.core.monitor.monitor_side import MonitorSide
from agent.core.vm import Sizes, Vm
from protocol.guest.monitor_messages import DownscaleRequest, UpscaleNotification
from protocol.units import Bytes, Instant, Resources


def requested_size(monitor: MonitorSide, vm: Vm, sizes: Sizes, now: Instant) -> tuple[Resources, str | None]:
    """The size, in whole compute units, that the monitor's messages ask for at ``now``, and the reason."""
    alarm, request, size = monitor.alarm, monitor.request, NOTHING
    reasons: list[str] = []
    if alarm is not None and now < alarm.until:
        size = size.at_least(sizes.covering(Resources(alarm.need, NOTHING.mem)))
        reasons.append(f"the guest's monitor reported load: {alarm.because}")
    if request is not None and now < request.until:
        size = size.at_least(sizes.covering(Resources(NOTHING.cpu, request.base + sizes.unit.mem)))
        reasons.append("the guest's monitor requested memory")
    return size.at_most(vm.bounds.max), " and ".join(reasons) or None


def retained_mem(monitor: MonitorSide, vm: Vm, now: Instant) -> Bytes:
    """The memory that the VM keeps at ``now`` until its monitor agrees to less."""
    if vm.is_pod:
        # Without a valid agreement the reclaimer no longer holds the memory down.
        has = vm.has_mem
        return has if monitor.agreed is None else min(has, monitor.agreed)
    if not monitor.keeps(now):
        return NOTHING.mem
    # A refusal holds at most the ordered memory, and only within the bounds.
    return min(vm.use.mem, vm.bounds.max.mem, vm.use.mem if monitor.known_mem is None else monitor.known_mem)


def mem_to_propose(monitor: MonitorSide, vm: Vm, sizes: Sizes, wanted: Bytes, now: Instant) -> Bytes:
    """The memory to propose to the monitor if the VM wants ``wanted``: after a refusal, half of that shrink.

    NeonVM's monitor accepts or refuses a shrink as a whole, and NeonVM's agent asks for one unit at a time.
    """
    refusal, current = monitor.refusal, retained_mem(monitor, vm, now)
    # A pod's trial costs page cache, so it is not repeated with a smaller shrink.
    if vm.is_pod or refusal is None or now >= refusal.retry_at or not wanted <= refusal.target < current:
        return wanted
    half = Bytes((refusal.target.value + current.value) // 2)
    smaller = sizes.not_less(Resources(NOTHING.cpu, half)).mem
    return smaller if smaller < current else wanted


def retention_reason(monitor: MonitorSide, vm: Vm) -> str:
    """The reason why memory does not shrink yet, in one line."""
    if vm.is_pod:
        return _retention_reason_of_pod(monitor)
    if monitor.version is None:
        return "keeping memory: lost the guest's monitor, which may reconnect"
    if monitor.refusal is None:
        return "waiting for the guest's monitor to agree to a shrink"
    return f"keeping memory: the guest's monitor refused {monitor.refusal.target}: {monitor.refusal.status}"


def _retention_reason_of_pod(monitor: MonitorSide) -> str:
    if monitor.version is None:
        return "keeping memory: no trial of less memory is possible yet"
    if monitor.refusal is None:
        return "trying a smaller memory size before shrinking to it"
    return f"keeping memory: the trial of {monitor.refusal.target} failed: {monitor.refusal.status}"


def message_to(
    monitor: MonitorSide, vm: Vm, size: Resources, proposed: Resources, now: Instant
) -> MonitorMessage | None:
    """The next message to the monitor. The VM gets ``size`` now, and ``proposed`` once the monitor agrees."""
    # The smaller of ordered and actual: memory that is being plugged or unplugged does not count.
    has = vm.has_mem
    if monitor.version is None:
        return None
    if monitor.in_flight is not None:
        # A trial takes a while. Cancel it once no memory is to be taken away any more.
        is_over = vm.is_pod and isinstance(monitor.in_flight, DownscaleRequest) and proposed.mem >= has
        return UpscaleNotification(Resources(vm.actual.cpu, has)) if is_over else None
    # A monitor that failed to apply a growth may count on less memory, so send the size again.
    is_unknown = monitor.failed_notice is not None and now >= monitor.failed_notice.retry_at
    if monitor.known_mem is None or is_unknown or min(has, size.mem) > monitor.known_mem:
        return UpscaleNotification(Resources(vm.actual.cpu, has))
    refusal = monitor.refusal
    # The monitor would refuse a smaller target, too.
    is_refused = refusal is not None and proposed.mem <= refusal.target and now < refusal.retry_at
    # Another trial would only disturb a pod's shrink that is in progress.
    is_shrinking = vm.is_pod and (vm.use.mem != vm.actual.mem or retained_mem(monitor, vm, now) < has)
    if proposed.mem >= retained_mem(monitor, vm, now) or is_refused or is_shrinking:
        return None
    return DownscaleRequest(proposed)
