"""The explanation of a database's size, with all its evidence, derived from the state.

The schema is documented in ``docs/operations-agent.md``; fields are added, never renamed.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.core.desired_size import desired_size, is_fresh, least_size
from agent.core.memory.memory_sentences import memory_sentences
from agent.core.monitor.monitor_side import MonitorSide
from agent.core.plan import plan, sleep_obstacles
from agent.core.pods.sentences import resize_state, sentences
from agent.core.sleep.sentences import sleep_state
from agent.core.state import State
from agent.core.vm import Vm
from protocol.kubernetes.objects import Json
from protocol.pod_database import PREFIX
from protocol.units import ZERO, Instant, Resources


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation: ``because`` is a one-line summary, the rest is the evidence."""

    vm: str
    pod: str
    because: str
    size: Json | None
    permit: Json | None
    ceiling: Json | None
    compute_unit: Json | None
    migrating: bool
    goal: Json | None
    parts: list[Json]
    shrink_guard: str
    metrics: Json | None
    denied: Json | None
    rejected_permits: int
    scheduler_answered_seconds: float | None
    troubles: list[Json]
    next_look_seconds: float | None
    smoothing: list[Json]
    working_set: tuple[str, ...]
    monitor: Json
    giving: Json
    resize: Json | None
    sleep: Json | None


def explain(state: State, vm_name: str, now: Instant) -> Explanation:
    """Explain the size of the database ``vm_name`` (``namespace/name``, in a pod ``namespace/pod/name``) at ``now``."""
    vm, scheduler, guest = state.vm.observed, state.scheduler, state.guest
    # Planning has no side effects, so this is the agent's own plan.
    planned = plan(state, now)
    return Explanation(
        vm=vm_name,
        pod=str(state.pod),
        because=_headline(state, planned.because, now),
        size=None if vm is None else _sizes(state, vm, now),
        permit=_size_or_null(scheduler.permit),
        ceiling=_size_or_null(state.ceiling),
        compute_unit=_size_or_null(scheduler.compute_unit),
        migrating=scheduler.migrate,
        goal=_size_or_null(guest.goal.need),
        parts=[{"name": part.name, "need": str(part.need), "because": part.because} for part in guest.goal.parts],
        shrink_guard=guest.stabilizer.explain(),
        metrics=_metrics(state, now),
        denied=_denial(state, now),
        rejected_permits=scheduler.rejected,
        scheduler_answered_seconds=None if scheduler.answered_at is None else _age(scheduler.answered_at, now),
        troubles=_failures(state, "pod" if f"/{PREFIX}" in vm_name else "VM", now),
        next_look_seconds=None if planned.wake_at is None else round(planned.wake_at - now, 3),
        smoothing=guest.stabilizer.steps(),
        working_set=_working_set(state, now),
        monitor=_monitor(state.monitor),
        giving=_giving(state, now),
        resize=resize_state(vm, state.vm.pauses, now),
        sleep=None if vm is None or vm.is_pod else _sleep(state, vm, now),
    )


def _sleep(state: State, vm: Vm, now: Instant) -> Json:
    sample = state.guest.observed.sample if state.guest.observed is not None and is_fresh(state, now) else None
    obstacles = sleep_obstacles(state, vm, desired_size(state, vm, now).size, now)
    return sleep_state(state.sleep, state.policy.sleep, vm, sample, obstacles, now)


def _giving(state: State, now: Instant) -> Json:
    giving = state.scheduler.give_back
    least = None if state.vm.observed is None else least_size(state, state.vm.observed.use, now)
    return {
        "asked": _size_or_null(ZERO if giving.asks_sleep else giving.shrink_to),
        "least": _size_or_null(least),
        "lean_seconds": round(giving.lean_until - now, 3) if giving.is_lean(now) else None,
    }


def _monitor(monitor: MonitorSide) -> Json:
    refusal = monitor.refusal
    return {
        "version": monitor.version,
        # ``known_mem`` is kept after a disconnect, but without a monitor nothing counts on that memory.
        "counts_on": None if monitor.version is None or monitor.known_mem is None else str(monitor.known_mem),
        "refused": None if refusal is None else str(refusal.target),
        "refused_because": None if refusal is None else refusal.status,
        "reports": None if monitor.alarm is None else monitor.alarm.because,
        "right_reports": monitor.right_alarms,
        "false_reports": monitor.false_alarms,
    }


def _working_set(state: State, now: Instant) -> tuple[str, ...]:
    observed, policy = state.guest.observed, state.policy.memory.cache
    if observed is None or state.vm.observed is None:
        return ()
    is_blind = not observed.sample.shows_rereading
    return tuple(memory_sentences(state.guest.probing, now, policy, is_blind=is_blind))


def _sizes(state: State, vm: Vm, now: Instant) -> Json:
    return {
        "has": _size(vm.actual),
        "ordered": _size(vm.use),
        "wished": _size(desired_size(state, vm, now).size),
        "least": _size(vm.bounds_at(now).min),
        "most": _size(vm.bounds.max),
    }


def _failures(state: State, kind: str, now: Instant) -> list[Json]:
    sources = {
        "scheduler": state.scheduler.failure,
        f"patching the {kind}": state.vm.failure,
        f"reading the {kind}": state.vm.lost,
        "metrics": state.guest.failure,
        "settings": state.settings_failure,
        "monitor": state.monitor_failure,
        "ordering sleep": state.sleep_failure,
    }
    return [
        {
            "with_": name,
            "fault": fail.fault.value,
            "reason": fail.reason,
            "since_seconds": _age(fail.since, now),
            "last_seconds": _age(fail.last, now),
            "times": fail.count,
        }
        for name, fail in sources.items()
        if fail is not None
    ]


def _headline(state: State, because: str, now: Instant) -> str:
    vm_state, denial = state.vm, state.scheduler.denial
    if vm_state.grows_from is not None and not vm_state.may_grow(now):
        # A refused growth takes precedence over a denial, because nothing is requested before the next try.
        left = vm_state.grows_from - now
        return f"{because}; the API server refused this growth; try {vm_state.refused + 1} in {left:.0f} s"
    because = "; ".join([because, *sentences(vm_state.observed, vm_state.pauses, now)])
    return because if denial is None else f"{because}; the scheduler granted {denial.granted} of {denial.wanted}"


def _denial(state: State, now: Instant) -> Json | None:
    denial = state.scheduler.denial
    if denial is None:
        return None
    sizes = {"wanted": _size(denial.wanted), "granted": _size(denial.granted)}
    return {"by": "scheduler", **sizes, "since_seconds": _age(denial.since, now), "times": denial.count}


def _metrics(state: State, now: Instant) -> Json | None:
    """The guest's last metrics; rates are means over the last interval, in cores or shares of time (0..1)."""
    observed, rates, guest = state.guest.observed, state.guest.rates, state.guest
    if observed is None:
        return None
    sample = observed.sample
    return {
        "age_seconds": _age(observed.last, now),
        "load1": sample.load1,
        "load5": sample.load5,
        "runnable": sample.runnable,
        "cores_busy": _rounded(rates.used),
        "cores_unknown": round(rates.unknown, 3),
        "cores_stolen": _rounded(rates.steal),
        "cores_in_iowait": _rounded(rates.iowait),
        "cores_in_kernel": _rounded(rates.kernel),
        "cpu_stall": _rounded(rates.cpu_stall),
        "mem_stall": _rounded(rates.mem_stall),
        "mem_used": None if sample.mem_used is None else str(sample.mem_used),
        "mem_total": None if sample.mem_total is None else str(sample.mem_total),
        "oom_kills": None if sample.oom_kills is None else int(sample.oom_kills),
        "oom_kills_seen": guest.kills.total,
        # Totals since the agent started: the difference between two responses gives an exact mean.
        "cpu_seconds": round(guest.counted.used, 3),
        "seen_seconds": round(guest.counted.observed, 3),
    }


def _size_or_null(amounts: Resources | None) -> Json | None:
    return None if amounts is None else _size(amounts)


def _size(amounts: Resources) -> Json:
    return {"cpu": str(amounts.cpu), "mem": str(amounts.mem)}


def _age(at: Instant, now: Instant) -> float:
    # Not a timestamp, because the agent's monotonic clock has no meaning elsewhere.
    return round(now - at, 3)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
