"""The actions due now: ask up, tell down (S4.5), and the time to look again.

Rules that hold here:

- A VM is never patched above the ceiling; before the first permit, not above what it has. It shrinks without asking.
- A request is never below what the VM has or may come to have, a patch of the same plan included.
- One request and one patch in flight, each with its own waits after failures.
"""

from __future__ import annotations

from agent.core.actions import Action, AskScheduler, PatchVm, Plan
from agent.core.desired_size import desired_size, in_use, least_size
from agent.core.goal import NOTHING
from agent.core.monitor.monitor_plan import kept_by, message_to
from agent.core.pods.requests import next_requests
from agent.core.state import State
from agent.core.vm import Vm, whole_slots
from protocol.messages import AgentRequest, Metrics
from protocol.units import Instant, Resources


def plan(state: State, now: Instant) -> Plan:
    """The actions that are due at ``now``, in the order in which they should start, and when to look again."""
    vm, least = state.vm.seen, state.held
    if vm is None or least is None:
        return Plan((), None, "the VM has not been seen yet")
    if not vm.ours:
        return Plan((), None, "the VM runs in another pod, whose agent looks after it")
    wanted, may_grow = desired_size(state, vm, now), state.vm.may_grow(now)
    # After a growth that the API refused for certain, no more is asked for until the next try: what cannot be used
    # must not stay reserved.
    size = wanted.size if may_grow else wanted.size.at_most(vm.use)
    patch = _patch(state, vm, size, now)
    patch_at = None if patch is None else _patch_at(state, vm, patch)
    patching = patch is not None and patch_at is not None and patch_at <= now
    # The patch of this plan may take effect before the answer, so the request must cover it.
    report = _report(state, vm, size, least.at_least(patch.target) if patch is not None and patching else least)
    ask_at = _ask_at(state, _in_slots(vm, size.at_least(least)), report, now)
    actions: list[Action] = [patch] if patch is not None and patching else []
    if ask_at is not None and ask_at <= now:
        actions.append(AskScheduler(_request(state, report, now), vm.slot_size))
    pauses = [pause.until for pause in state.vm.pauses.known]
    later = [at for at in (patch_at, ask_at, state.vm.grows_from, *pauses) if at is not None and at > now]
    message = message_to(state.monitor, vm, size, wanted.unasked, now)
    return Plan(tuple(actions), min(later, default=None), wanted.because, message)


def _patch(state: State, vm: Vm, size: Resources, now: Instant) -> PatchVm | None:
    """The patch that brings the VM as close to ``size`` as the permit allows; None if nothing changes."""
    target, puts_back = size.at_most(_limit(state, vm, now)), None
    if vm.is_pod:
        target, puts_back = next_requests(vm, target)
    return None if target == vm.use else PatchVm(target, vm.version, vm.slot_size, puts_back)


def _limit(state: State, vm: Vm, now: Instant) -> Resources:
    """The most that the VM may be patched to."""
    side = state.scheduler
    ceiling = vm.use if state.ceiling is None else whole_slots(state.ceiling, vm.slot_size)
    # If another writer has patched the VM above its permit and the request for that size was denied, the VM goes back
    # to the ceiling, though not below the memory in use.
    if side.denial is not None and vm.use.within(side.denial.wanted):
        least = kept_by(state.monitor, vm, now) if vm.is_pod else NOTHING.mem
        return ceiling.at_least(in_use(state, vm, now)).at_least(Resources(NOTHING.cpu, least))
    # The scheduler counts what a pod has for as long as the pod has it, whatever it requests.
    return ceiling.at_least(vm.holds if vm.is_pod else vm.use)


def _patch_at(state: State, vm: Vm, patch: PatchVm) -> Instant | None:
    """The time at which ``patch`` may start; None if only an event can release it."""
    side, timing = state.vm, state.policy.timing
    if side.patching is not None or side.stale_at is not None or not vm.resizable:
        return None
    # While the scheduler answers another agent of the VM, that one patches.
    if state.scheduler.migrate or state.scheduler.is_stood_back:
        return None
    waits = [state.begins_at, side.retry_at]
    # What is put back was never in force, so it is no shrink on top of another.
    is_shrink = patch.puts_back is None and not vm.use.within(patch.target)
    if is_shrink and vm.unfinished_shrink and side.shrunk_at is not None:
        waits.append(Instant(side.shrunk_at + timing.unfinished_shrink))
    return max(at for at in waits if at is not None)


def _report(state: State, vm: Vm, size: Resources, held: Resources) -> Resources:
    """The amounts to request: the wanted size, but no less than the VM holds, in whole compute units (S4.6)."""
    amounts, unit = size.at_least(held), state.scheduler.compute_unit
    return _in_slots(vm, amounts) if vm.is_pod or unit is None else vm.sizes(unit).not_less(amounts)


def _in_slots(vm: Vm, amounts: Resources) -> Resources:
    """What the scheduler can be asked for: it counts a pod's memory in whole slots, and knows the rest of it itself."""
    return whole_slots(amounts, vm.slot_size) if vm.is_pod else amounts


def _ask_at(state: State, wanted: Resources, report: Resources, now: Instant) -> Instant | None:
    """The time to send ``report``; None while a request is in flight."""
    side = state.scheduler
    if side.asking is not None:
        return None
    waits = [_due(state, wanted, report, now), state.begins_at, side.retry_at]
    return max(at for at in waits if at is not None)


def _due(state: State, wanted: Resources, report: Resources, now: Instant) -> Instant:
    """The time from which ``report`` is worth a request: at once if it is news, otherwise at the next tick."""
    side = state.scheduler
    # A VM that is opted out has no permit to win or lose.
    if state.vm.seen is not None and not state.vm.seen.enabled:
        return side.next_at
    ceiling = state.ceiling
    if ceiling is None or side.failure is not None:
        return now
    if not wanted.within(ceiling):
        # A denial delays only asking for more.
        return now if side.denial is None else min(side.next_at, max(now, side.denial.retry_at))
    less = not ceiling.within(report)
    # A denied size that is no longer wanted is reported at once, because the scheduler counts it as pressure.
    pressure_is_over = side.denial is not None and not side.migrate and report.within(ceiling)
    # Without a load the scheduler cannot tell an idle VM from a busy one.
    load_is_news = not side.knows_load and _metrics(state) is not None
    offer_is_news = side.giving.awaits_offer(now) and least_size(state, report, now) is not None
    return now if less or pressure_is_over or load_is_news or offer_is_news else side.next_at


def _request(state: State, report: Resources, now: Instant) -> AgentRequest:
    side = state.scheduler
    return AgentRequest(
        pod=state.pod,
        resources=report,
        last_permit=state.ceiling,
        compute_unit=side.compute_unit,
        metrics=_metrics(state),
        sequence=side.sequence,
        needs=least_size(state, report, now),
    )


def _metrics(state: State) -> Metrics | None:
    observed = state.guest.seen
    if observed is None:
        return None
    sample, load1 = observed.sample, observed.sample.load1
    # A control group has no load average: the cores that were busy are the nearest to it.
    if load1 is None and state.vm.seen is not None and state.vm.seen.is_pod:
        load1 = state.guest.rates.used
    return None if load1 is None else Metrics(load1, sample.load5, sample.mem_used)
