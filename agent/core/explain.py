"""The explanation of a VM's size, with all its evidence, as data.

Rules that hold here:

- Everything is read from the state; nothing is remembered for the sake of explaining.
- The schema is documented in ``docs/operations-agent.md``; fields are added, never renamed.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.core.desired_size import desired_size, least_size
from agent.core.memory.memory_sentences import memory_sentences
from agent.core.monitor.monitor_side import MonitorSide
from agent.core.plan import plan
from agent.core.stabilizer import SmoothingStep
from agent.core.state import State
from agent.core.vm import Vm
from protocol.units import Instant, Resources


@dataclass(frozen=True, slots=True)
class SizeView:
    """CPU and memory as Kubernetes quantities."""

    cpu: str
    mem: str


@dataclass(frozen=True, slots=True)
class SizesView:
    """The VM's actual, ordered and wanted sizes, and its bounds."""

    has: SizeView
    ordered: SizeView
    wished: SizeView
    least: SizeView
    most: SizeView


@dataclass(frozen=True, slots=True)
class PartView:
    """One reason for a size."""

    name: str
    need: str
    because: str


@dataclass(frozen=True, slots=True)
class MetricsView:
    """The last metrics of the guest; rates are means over the last interval, in cores or shares of time (0..1).

    ``cpu_seconds`` counts the CPU that the guest was seen to use within ``seen_seconds``, since the agent began.
    """

    age_seconds: float
    load1: float | None
    load5: float | None
    runnable: float | None
    cores_busy: float | None
    cores_unknown: float
    cores_stolen: float | None
    cores_in_iowait: float | None
    cores_in_kernel: float | None
    cpu_stall: float | None
    mem_stall: float | None
    mem_used: str | None
    mem_total: str | None
    oom_kills: int | None
    oom_kills_seen: int
    cpu_seconds: float
    seen_seconds: float


@dataclass(frozen=True, slots=True)
class DenialView:
    """The scheduler granted less than the agent requested."""

    by: str
    wanted: SizeView
    granted: SizeView
    since_seconds: float
    times: int


@dataclass(frozen=True, slots=True)
class FailureView:
    """A failure: what fails, the party at fault, and since when."""

    with_: str
    fault: str
    reason: str
    since_seconds: float
    last_seconds: float
    times: int


@dataclass(frozen=True, slots=True)
class MonitorView:
    """The guest's monitor: protocol version, the memory it counts on, its last refusal and why, and the active report.

    ``right_reports`` and ``false_reports`` count reports that the guest's need afterwards confirmed or did not.
    """

    version: int | None
    counts_on: str | None
    refused: str | None
    refused_because: str | None
    reports: str | None
    right_reports: int
    false_reports: int


@dataclass(frozen=True, slots=True)
class GivingView:
    """Room for neighbours: the size that the scheduler asked for, the least that the VM can do with, and for how long
    it keeps no more than it needs. None: not asked, nothing to offer, as its policy says.
    """

    asked: SizeView | None
    least: SizeView | None
    lean_seconds: float | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The whole explanation. ``because`` sums it up in one line; the rest is the evidence."""

    vm: str
    pod: str
    because: str
    size: SizesView | None
    permit: SizeView | None
    ceiling: SizeView | None
    compute_unit: SizeView | None
    migrating: bool
    goal: SizeView | None
    parts: list[PartView]
    shrink_guard: str
    metrics: MetricsView | None
    denied: DenialView | None
    rejected_permits: int
    scheduler_answered_seconds: float | None
    troubles: list[FailureView]
    next_look_seconds: float | None
    smoothing: tuple[SmoothingStep, ...]
    working_set: tuple[str, ...]
    monitor: MonitorView
    giving: GivingView


def explain(state: State, vm_name: str, now: Instant) -> Explanation:
    """Explain the size of the VM ``vm_name`` (``namespace/name``) at ``now``."""
    vm, side, guest = state.vm.seen, state.scheduler, state.guest
    # Planning has no side effects, so what is explained is what is done.
    planned = plan(state, now)
    return Explanation(
        vm=vm_name,
        pod=str(state.pod),
        because=_headline(state, planned.because, now),
        size=None if vm is None else _sizes(state, vm, now),
        permit=_shown(side.permit),
        ceiling=_shown(state.ceiling),
        compute_unit=_shown(side.compute_unit),
        migrating=side.migrate,
        goal=_shown(guest.goal.need),
        parts=[PartView(part.name, str(part.need), part.because) for part in guest.goal.parts],
        shrink_guard=guest.stabilizer.explain(),
        metrics=_metrics(state, now),
        denied=_denial(state, now),
        rejected_permits=side.rejected,
        scheduler_answered_seconds=None if side.answered_at is None else _age(side.answered_at, now),
        troubles=_failures(state, now),
        next_look_seconds=None if planned.wake_at is None else round(planned.wake_at - now, 3),
        smoothing=guest.stabilizer.steps(),
        working_set=_working_set(state, now),
        monitor=_monitor(state.monitor),
        giving=_giving(state, now),
    )


def _giving(state: State, now: Instant) -> GivingView:
    giving = state.scheduler.giving
    lean = round(giving.lean_until - now, 3) if giving.is_lean(now) else None
    least = None if state.vm.seen is None else least_size(state, state.vm.seen.use, now)
    return GivingView(_shown(giving.shrink_to), _shown(least), lean)


def _monitor(side: MonitorSide) -> MonitorView:
    refusal = side.refusal
    return MonitorView(
        version=side.version,
        # ``told`` outlives the monitor, for its return; until then no monitor counts on that memory.
        counts_on=None if side.version is None or side.told is None else str(side.told),
        refused=None if refusal is None else str(refusal.target),
        refused_because=None if refusal is None else refusal.status,
        reports=None if side.alarm is None else side.alarm.because,
        right_reports=side.right_alarms,
        false_reports=side.false_alarms,
    )


def _working_set(state: State, now: Instant) -> tuple[str, ...]:
    observed, policy = state.guest.seen, state.policy.memory.cache
    if observed is None or state.vm.seen is None:
        return ()
    is_blind = not observed.sample.shows_rereading
    return tuple(memory_sentences(state.guest.probing, now, policy, is_blind=is_blind))


def _sizes(state: State, vm: Vm, now: Instant) -> SizesView:
    return SizesView(
        has=_size(vm.actual),
        ordered=_size(vm.use),
        wished=_size(desired_size(state, vm, now).size),
        least=_size(vm.bounds_at(now).min),
        most=_size(vm.bounds.max),
    )


def _failures(state: State, now: Instant) -> list[FailureView]:
    """Everything that fails at ``now``, each with the party at fault."""
    sources = {
        "scheduler": state.scheduler.failure,
        "patching the VM": state.vm.failure,
        "reading the VM": state.vm.lost,
        "metrics": state.guest.failure,
        "settings": state.settings_failure,
        "monitor": state.monitor_failure,
    }
    return [
        FailureView(name, fail.fault.value, fail.reason, _age(fail.since, now), _age(fail.last, now), fail.count)
        for name, fail in sources.items()
        if fail is not None
    ]


def _headline(state: State, because: str, now: Instant) -> str:
    side, denial = state.vm, state.scheduler.denial
    if side.grows_from is not None and not side.may_grow(now):
        # A refused growth outranks a denial: no more is asked for until the next try.
        left = side.grows_from - now
        return (
            f"{because}; the API refused this growth; no more is asked for until try {side.refused + 1} in {left:.0f} s"
        )
    return because if denial is None else f"{because}; the scheduler granted {denial.granted} of {denial.wanted}"


def _denial(state: State, now: Instant) -> DenialView | None:
    denial = state.scheduler.denial
    if denial is None:
        return None
    since = _age(denial.since, now)
    return DenialView("scheduler", _size(denial.wanted), _size(denial.granted), since, denial.count)


def _metrics(state: State, now: Instant) -> MetricsView | None:
    observed, rates = state.guest.seen, state.guest.rates
    if observed is None:
        return None
    sample = observed.sample
    return MetricsView(
        age_seconds=_age(observed.last, now),
        load1=sample.load1,
        load5=sample.load5,
        runnable=sample.runnable,
        cores_busy=_rounded(rates.used),
        cores_unknown=round(rates.unknown, 3),
        cores_stolen=_rounded(rates.steal),
        cores_in_iowait=_rounded(rates.iowait),
        cores_in_kernel=_rounded(rates.kernel),
        cpu_stall=_rounded(rates.cpu_stall),
        mem_stall=_rounded(rates.mem_stall),
        mem_used=None if sample.mem_used is None else str(sample.mem_used),
        mem_total=None if sample.mem_total is None else str(sample.mem_total),
        oom_kills=None if sample.oom_kills is None else int(sample.oom_kills),
        oom_kills_seen=state.guest.kills.total,
        cpu_seconds=round(state.guest.counted.used, 3),
        seen_seconds=round(state.guest.counted.seen, 3),
    )


def _shown(amounts: Resources | None) -> SizeView | None:
    return None if amounts is None else _size(amounts)


def _size(amounts: Resources) -> SizeView:
    # Kubernetes' spelling, as people write them in manifests.
    return SizeView(str(amounts.cpu), str(amounts.mem))


def _age(at: Instant, now: Instant) -> float:
    # An age, because the agent's clock means nothing to others.
    return round(now - at, 3)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
