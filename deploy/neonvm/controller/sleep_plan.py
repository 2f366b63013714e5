"""Reconciles sleep and wake of one VirtualMachine (pure, B.18).

No guest runs without a permit. In the phases ``Asleep`` and ``Waking`` a VM reserves only its permit, so the phase is
set to ``Running`` *before* the guest is woken. That write carries the resourceVersion that has the permit, and so
conflicts with a concurrent reduction of the permit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from msgspec import structs

from deploy.neonvm.controller.vm_facts import VmObservation, VmPlan
from deploy.neonvm.objects.vm_spec import RUNNING, kernel_arguments
from deploy.neonvm.ports import GuestPhase
from deploy.neonvm.texts import controller as texts
from deploy.neonvm.texts.controller import Reasoned, reasoned
from protocol.guest.sleep import ASLEEP, SLEEPING, WAKING, SleepReport, SleepState, sleep_order, sleep_report
from protocol.kubernetes.conditions import condition
from protocol.kubernetes.objects import Json, items, text
from protocol.names import KERNEL_PRIMARY
from protocol.units import Resources, Seconds
from protocol.virtual_machine import VirtualMachine

LONGEST_SLEEP: Final = Seconds(20 * 86_400.0)
"""TCP timestamps of busy sessions wrap after about 24 days; then the session breaks."""


def sleeps(facts: VmObservation) -> bool:
    """Return True if the VM's guest is asleep or waking."""
    return facts.guest is not None and facts.guest.phase in SLEEPING


def plan_asleep(facts: VmObservation, machine: VirtualMachine, desired: Resources, rest: Json) -> VmPlan:
    """Plan for a VM without a running guest: stay asleep, wait for the permit, or wake and then resize it to
    ``desired``. ``rest`` are the other fields of the status, with further conditions.
    """
    report = _sleeping_report(facts, machine)
    # The guest has the size with which it fell asleep, even if the spec asks for less by now.
    needed = desired.at_least(report.size)
    if report.state is SleepState.ASLEEP:
        why = reasoned(texts.SLEEPS, sessions=report.sessions_in_words)
        return VmPlan(_status(facts, ASLEEP, report, rest, why), desired=desired)
    # The runner refuses to wake a guest whose memory is being sent. It runs on the target, or wakes afterwards.
    is_leaving = facts.active_migration is not None and facts.active_migration.is_transferring
    if is_leaving or not _may_wake(facts, machine, needed):
        why = reasoned(texts.WAITS_FOR_PERMIT, why=report.message, use=needed)
        return VmPlan(_status(facts, WAKING, report, rest, why), desired=desired)
    why = reasoned(texts.WAKES, why=report.message)
    return VmPlan(_status(facts, RUNNING, report, rest, why), desired=desired, wake=True)


def last_sleep_status(facts: VmObservation) -> Json:
    """``status.sleep`` of a running guest; empty if it never slept."""
    return _sleep_status(facts.vm, _running_report(facts))


def plan_sleep(plan: VmPlan, facts: VmObservation, machine: VirtualMachine, *, has_settled: bool) -> VmPlan:
    """Add to ``plan`` of a VM that runs or boots: the result of its last sleep, and a new order to sleep if the VM
    ``has_settled`` at the size of its spec.
    """
    report = _running_report(facts)
    order = sleep_order(facts.vm)
    if order and order != report.order:
        if why_not := _sleep_blocker(facts, machine):
            report = SleepReport(order, SleepState.REFUSED, message=why_not)
        elif has_settled and _may_sleep(facts):
            plan = replace(plan, sleep=order)
    return replace(plan, status={**plan.status, **_sleep_status(facts.vm, report)})


def lost_sleep_status(vm: Json) -> Json:
    """``status.sleep`` of a VM that gets a new pod after its pod ended during sleep; empty if it was awake."""
    before = sleep_report(vm)
    if before.state not in SLEEPING:
        return {}
    return _sleep_status(
        vm, structs.replace(before, state=SleepState.RESTARTED, message=texts.LOST_ASLEEP, seconds=0.0)
    )


def sleep_event(vm: Json, status: Mapping[str, object]) -> Reasoned | None:
    """The Event for a change of state between ``vm`` and ``status``; None if the state is the same."""
    report, before = sleep_report({"status": status}), sleep_report(vm)
    if report.state is None or (report.state, report.since) == (before.state, before.since):
        return None
    values = {"sessions": report.sessions_in_words, "mebibytes": report.saved >> 20, "seconds": report.seconds}
    return reasoned(_EVENTS[report.state], why=report.message, **values)


_EVENTS: Final[Mapping[SleepState, Reasoned]] = {
    SleepState.ASLEEP: texts.FELL_ASLEEP,
    SleepState.REFUSED: texts.SLEEP_REFUSED,
    SleepState.WAKING: texts.WAKES,
    SleepState.AWAKE: texts.WOKE,
    SleepState.RESTARTED: texts.RESTARTED_ASLEEP,
}


def _sleeping_report(facts: VmObservation, machine: VirtualMachine) -> SleepReport:
    """Report on a sleeping guest. Once it is waking, later orders do not stop it."""
    before, own, order = sleep_report(facts.vm), facts.sleeping, sleep_order(facts.vm)
    # If an earlier controller gave the order, only the status has its figures.
    has_figures = before.state in SLEEPING and not (own.saved or own.sessions)
    sessions, saved = (before.sessions, before.saved) if has_figures else (own.sessions, own.saved)
    # Keep the duration of the last wake, as an estimate for the next.
    report = SleepReport(order, SleepState.ASLEEP, sessions=sessions, saved=saved, seconds=before.seconds)
    # The status has the guest's size until the phase Asleep is written.
    size = machine.actual
    cpus, memory = (before.cpus, before.memory) if size is None else (size.cpu.quantity(), size.mem.quantity())
    report = structs.replace(report, cpus=cpus, memory=memory)
    if before.state is SleepState.WAKING:
        return structs.replace(report, order=before.order, state=SleepState.WAKING, message=before.message)
    if why := _wake_reason(facts, machine, order):
        # Keep a removed order in the status, because it was carried out.
        report = structs.replace(report, order=order or before.order or own.order, state=SleepState.WAKING, message=why)
    return report


def _wake_reason(facts: VmObservation, machine: VirtualMachine, order: str) -> str:
    """Reason to wake a sleeping guest; empty if there is none."""
    if facts.guest is not None and facts.guest.phase is GuestPhase.WAKING:
        return facts.sleeping.message or texts.CLIENT_PACKET
    if not order:
        return texts.ORDER_REMOVED
    if facts.migrates and not facts.moves_asleep:
        return texts.MIGRATION_WAITS
    return _sleep_blocker(facts, machine) or (texts.SLEEP_TOO_LONG if facts.is_sleep_over else "")


def _sleep_blocker(facts: VmObservation, machine: VirtualMachine) -> str:
    """Reason why this VM must not sleep at all; empty if it may."""
    if not machine.enabled:
        return texts.NOT_ENABLED
    # A standby would stop streaming from its primary. On a primary the guest itself refuses.
    is_standby = f"{KERNEL_PRIMARY}=" in kernel_arguments(facts.vm)
    return texts.IS_STANDBY if is_standby else ""


def _may_wake(facts: VmObservation, machine: VirtualMachine, needed: Resources) -> bool:
    # Once written, the phase reserves what the guest uses, so a later reduction of the permit does not matter.
    is_decided = (text(facts.vm, "status", "phase"), sleep_report(facts.vm).state) == (RUNNING, SleepState.WAKING)
    # A VM that is not enabled gets no permits; it reserves what its spec says, awake or not.
    return is_decided or not machine.enabled or (machine.permit is not None and needed.within(machine.permit))


def _may_sleep(facts: VmObservation) -> bool:
    is_running = facts.guest is not None and facts.guest.phase is GuestPhase.RUNNING
    # The result of the last sleep must be written first, or the two could not be told apart.
    is_written = text(facts.vm, "status", "phase") == RUNNING and sleep_report(facts.vm).state not in SLEEPING
    return is_running and is_written and not facts.migrates


def _running_report(facts: VmObservation) -> SleepReport:
    """Report on a running guest."""
    before, own = sleep_report(facts.vm), facts.sleeping
    if before.state in SLEEPING:
        # If an earlier controller woke it, the duration is unknown.
        state = own.state if own.state is SleepState.RESTARTED else SleepState.AWAKE
        moved = texts.MOVED_ASLEEP if before.state is SleepState.ASLEEP and facts.active_migration is not None else ""
        message = own.message if own.state is SleepState.RESTARTED else before.message or moved
        return structs.replace(before, state=state, message=message, seconds=own.seconds)
    is_news = own.order == sleep_order(facts.vm) != before.order and own.state not in {None, *SLEEPING}
    return own if is_news else before


def _status(facts: VmObservation, phase: str, report: SleepReport, rest: Json, why: Reasoned) -> Json:
    failed = texts.CANNOT_WAKE if report.state is SleepState.ASLEEP else texts.WAKE_FAILED
    # A sleeping VM is available: the next packet wakes it.
    reason = reasoned(failed, fault=facts.guest_fault) if facts.guest_fault else why
    available = condition(facts.vm, "Available", str(not facts.guest_fault), *reason)
    conditions = [available, condition(facts.vm, "Asleep", "True", *why), *items(rest, "conditions")]
    return {**rest, "phase": phase, "conditions": conditions, **_sleep_status(facts.vm, report)}


def _sleep_status(vm: Json, report: SleepReport) -> Json:
    """The report as ``status.sleep``, with every field: a merge patch keeps omitted ones. ``since`` is empty for a new
    state.
    """
    if report.state is None:
        return {}
    before = sleep_report(vm)
    is_same = report.state == before.state and (report.order == before.order or report.state in SLEEPING)
    return {"sleep": structs.asdict(structs.replace(report, since=before.since if is_same else ""))}
