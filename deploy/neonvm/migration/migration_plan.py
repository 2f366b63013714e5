"""Plans the next step of one VirtualMachineMigration from observed state (pure; S4.12).

The plan is level-triggered: it depends on the objects and on which guest runs, never on history. A migration succeeds
in this order: the VM's own plan sets ``podName`` to the target, the VM becomes the owner of the target pod, the
migration is Succeeded, the source pod is deleted.
"""

from __future__ import annotations

from typing import Final

from deploy.neonvm.migration.migration_facts import (
    CONDITION,
    MigrationInputs,
    MigrationPlan,
    Sending,
    figures,
    pod_on,
    scheduling_failure,
    timeout_of,
)
from deploy.neonvm.objects.owners import is_owned_by
from deploy.neonvm.objects.pods import MOVED, pod_end
from deploy.neonvm.objects.vm_spec import (
    ENDED,
    FAILED,
    MIGRATING,
    PENDING,
    PRE_MIGRATING,
    RUNNING,
    SCALING,
    SUCCEEDED,
    finalizers_of,
    machine_of,
)
from deploy.neonvm.ports import PodRole
from deploy.neonvm.texts import controller as texts
from deploy.neonvm.texts.controller import Reasoned, reasoned
from protocol.guest.sleep import SLEEPING, WAKING, SleepState, is_asleep, sleep_report
from protocol.kubernetes.conditions import condition
from protocol.kubernetes.objects import Json, has_finished, is_terminating, node_of, pod_phase, text
from protocol.names import FINALIZER

_NOTHING: Final = MigrationPlan()
_HELD: Final = frozenset({PRE_MIGRATING, MIGRATING})
"""Phases of a VM that is not resized because of a migration."""
_ASLEEP: Final = frozenset({PodRole.ASLEEP, PodRole.WAKING})
_MOVED_IN: Final = frozenset({PodRole.RUNNING, PodRole.BOOTING})


def plan_migration(facts: MigrationInputs) -> MigrationPlan:
    """The actions due now; empty if there is nothing to do but wait."""
    phase = text(facts.migration, "status", "phase")
    has_finalizer = FINALIZER in finalizers_of(facts.migration)
    if phase in ENDED:
        return _clean_up(facts, phase, has_finalizer)
    if not phase:
        return _admit(facts, has_finalizer)
    # A deleted one, which another finalizer keeps, cannot get ours any more. It ends like any other.
    if not has_finalizer and not is_terminating(facts.migration):
        return MigrationPlan(add_finalizer=True)
    if phase == PENDING and facts.transfer.sending is Sending.NOT_BEGUN:
        return _prepare(facts)
    return _transfer(facts)


def _admit(facts: MigrationInputs, held: bool) -> MigrationPlan:
    if is_terminating(facts.migration):
        # Kept by another finalizer: without an end the VM's next migration would wait for it.
        return MigrationPlan(remove_finalizer=True) if held else _failed(facts, texts.MIGRATION_DELETED)
    # The finalizer comes before any decision, so that the outcome is always reported.
    if not held:
        return MigrationPlan(add_finalizer=True)
    if why := _unfit(facts):
        return _failed(facts, why)
    if waits_for := _waits_for(facts):
        if facts.is_overdue:
            return _failed(facts, reasoned(texts.NOT_BEGUN, time=timeout_of(facts.migration), what=waits_for))
        return _status(facts, "Unknown", reasoned(texts.WAITS_FOR, what=waits_for))
    source: Json = facts.source or {}
    name = text(source, "metadata", "name")
    return _status(
        facts,
        "Unknown",
        reasoned(texts.WAITS_FOR_PLACE, pod=name),
        phase=PENDING,
        sourcePodName=name,
        sourcePodIP=text(source, "status", "podIP"),
        sourceNode=node_of(source),
        # In the status before the pod is created, so that a restarted controller does not create a second one.
        targetPodName=facts.new_pod_name(),
    )


def _waits_for(facts: MigrationInputs) -> str:
    phase = text(facts.vm or {}, "status", "phase")
    if _sleeps(facts) and not _may_leave_asleep(facts):
        return texts.WAKING
    return facts.pending_cleanup or (texts.LAST_MIGRATION.format(phase=phase) if phase in _HELD else "")


def _sleeps(facts: MigrationInputs) -> bool:
    """Return True if the VM is asleep or waking, also if it wakes by a boot."""
    vm = facts.vm or {}
    is_lost = sleep_report(vm).state in {SleepState.WAKING, SleepState.RESTARTED}
    boots_after_sleep = is_lost and facts.source_role is PodRole.BOOTING
    return is_asleep(vm) or facts.source_role in _ASLEEP or boots_after_sleep


def _may_leave_asleep(facts: MigrationInputs) -> bool:
    """Return True if the VM is asleep or waiting to wake, and can be migrated without waking it."""
    # In any other phase its controller has decided to wake it.
    return facts.moves_asleep and facts.source_role in _ASLEEP and is_asleep(facts.vm or {})


def waits_for_guests(facts: MigrationInputs, names: str) -> MigrationPlan:
    """Plan for a migration that waits until the guests in the pods ``names`` have been polled."""
    return _status(facts, "Unknown", reasoned(texts.WAITS_FOR_ANSWER, pods=names))


def _unfit(facts: MigrationInputs) -> Reasoned | None:
    name = text(facts.migration, "spec", "vmName")
    if facts.fault:
        return texts.INVALID_SPEC, facts.fault
    if facts.vm is None or is_terminating(facts.vm):
        return reasoned(texts.NO_VM, vm=name)
    if facts.rival:
        return reasoned(texts.ALREADY_MIGRATING, rival=facts.rival)
    phase = text(facts.vm, "status", "phase")
    if phase not in {RUNNING, SCALING, *SLEEPING, *_HELD}:
        return reasoned(texts.VM_NOT_RUNNING, phase=phase or "new")
    return _unfit_guest(facts)


def _unfit_guest(facts: MigrationInputs) -> tuple[str, str] | None:
    if facts.source_role is PodRole.UNKNOWN:
        return reasoned(texts.GUEST_UNKNOWN, pod=pod_on(facts.source or {}))
    if facts.source_role is not PodRole.RUNNING and not _sleeps(facts):
        return reasoned(texts.GUEST_NOT_RUNNING, role=facts.source_role.value)
    return (
        reasoned(texts.NOT_MOVABLE, migration_obstacle=facts.migration_obstacle) if facts.migration_obstacle else None
    )


def _prepare(facts: MigrationInputs) -> MigrationPlan:
    """Phase Pending: create the target pod and wait until its QEMU is ready to receive."""
    if why := _broken(facts) or _cannot_send(facts):
        return _failed(facts, why)
    target = facts.target
    if target is None:
        own_source = facts.source is not None and not is_owned_by(facts.source, facts.migration)
        return MigrationPlan(own_source=own_source, create_target=True)
    node = node_of(target)
    if not node:
        # Until the target has a node, the VM keeps scaling.
        unplaced = scheduling_failure(target)
        return _status(facts, "Unknown", (texts.UNSCHEDULABLE, unplaced)) if unplaced else _NOTHING
    placed = {"targetNode": node}
    is_ready = pod_phase(target) == RUNNING and facts.target_role is PodRole.RECEIVING
    # The guest must not be resized during the transfer, and the VM's phase shows that to others.
    is_held = facts.is_quiet and text(facts.vm or {}, "status", "phase") == PRE_MIGRATING
    is_held = is_held or (_may_leave_asleep(facts) and not _wakes_here(facts))
    if not is_ready or not is_held:
        return _status(facts, "Unknown", reasoned(texts.PREPARING, node=node), **placed)
    address = text(target, "status", "podIP")
    sending = reasoned(texts.TRANSFERRING, node=node)
    begun = _status(facts, "Unknown", sending, phase=RUNNING, **placed, targetPodIP=address)
    return MigrationPlan(status=begun.status, send=True)


def _transfer(facts: MigrationInputs) -> MigrationPlan:
    """Phase Running: the transfer, until the guest runs in the target or cannot."""
    # Once the guest runs in the target the migration succeeds; cancel, timeout or deletion come too late.
    if facts.target_role in _MOVED_IN or _names(facts, "targetPodName"):
        return _arrived(facts)
    if facts.transfer.sending is Sending.ACTIVE:
        # There is no progress before the memory is sent, which takes no longer than a wake. The disk may take minutes.
        why = _broken(facts) if facts.transfer.info else _called_off(facts)
        return MigrationPlan(cancel=why is not None, status=_info(facts))
    # Another process may have started the transfer, which may be almost done.
    if facts.transfer.sending is Sending.NOT_BEGUN and _has_source(facts):
        return _resume_transfer(facts)
    if _may_have_arrived(facts):
        return _NOTHING
    return _failed(facts, _over(facts))


def _has_source(facts: MigrationInputs) -> bool:
    # Do not migrate the guest of a VM that is being deleted.
    is_wanted = facts.vm is not None and not is_terminating(facts.vm)
    return is_wanted and _names(facts, "sourcePodName") and facts.source_role is not PodRole.EMPTY


def _resume_transfer(facts: MigrationInputs) -> MigrationPlan:
    """Start the transfer, or continue where another process left it."""
    must_end = _called_off(facts) is not None or bool(facts.fault)
    is_held = facts.is_quiet or facts.source_role in {PodRole.UNKNOWN, *_ASLEEP}
    # A transfer that must end is resumed and cancelled immediately: the source then decides which end keeps the guest.
    return MigrationPlan(send=True, cancel=must_end) if must_end or is_held else _NOTHING


def _may_have_arrived(facts: MigrationInputs) -> bool:
    """Return True if the guest may already run in the target, unobserved; then the target is polled again."""
    if facts.vm is None or is_terminating(facts.vm) or facts.target is None or has_finished(facts.target):
        return False
    transfer = facts.transfer
    is_open = transfer.sending is not Sending.FAILED or transfer.reason == texts.CANCELLED
    # Nothing is known of a target that was not polled.
    if facts.target_role is PodRole.UNKNOWN:
        return is_open
    was_given = transfer.sending is Sending.DONE or (is_open and _has_left(facts.source) and not facts.is_overdue)
    return was_given and facts.target_role is PodRole.RECEIVING


def _has_left(source: Json | None) -> bool:
    """Return True if the source pod has ended because its guest was handed over."""
    return source is not None and has_finished(source) and pod_end(source)[0] == MOVED


def _over(facts: MigrationInputs) -> Reasoned:
    transfer, why = facts.transfer, _called_off(facts)
    if (
        transfer.sending is Sending.FAILED
        and transfer.reason != texts.CANCELLED
        and why in (None, _target_lost(facts), texts.WAKES_HERE)
    ):
        return transfer.reason, transfer.message  # the root cause: a failed transfer also ends its target
    if transfer.sending is Sending.NOT_BEGUN and facts.source_role is PodRole.EMPTY:
        return texts.RESTARTED
    if why is None and facts.target_role is PodRole.EMPTY and transfer.sending is Sending.DONE:
        why = texts.TARGET_ENDED
    return why or _cannot_send(facts) or (transfer.reason, transfer.message)


def _arrived(facts: MigrationInputs) -> MigrationPlan:
    """The guest runs in the target, or did when the VM was assigned to it: there is no way back."""
    if facts.vm is None or is_terminating(facts.vm):
        return _failed(facts, texts.VM_DELETED)
    if _names(facts, "sourcePodName"):
        return _NOTHING  # the VM's own plan first sets podName to the target
    if not _names(facts, "targetPodName"):
        return _failed(facts, reasoned(texts.RUNS_ELSEWHERE, pod=text(facts.vm, "status", "podName")))
    source, target = (text(facts.migration, "status", end) for end in ("sourceNode", "targetNode"))
    outcome = reasoned(texts.MIGRATED, source=source, target=target, figures=figures(facts.transfer))
    done = _status(facts, "True", outcome, phase=SUCCEEDED, **_info(facts))
    # While the migration owns the target, deleting the migration would delete the running pod.
    adopt = facts.target is not None and not is_owned_by(facts.target, facts.vm)
    return MigrationPlan(adopt_target=adopt, status=done.status)


def _names(facts: MigrationInputs, end: str) -> bool:
    """Return True if the VM's ``podName`` is the pod of this end."""
    current = text(facts.vm or {}, "status", "podName")
    return bool(current) and current == text(facts.migration, "status", end)


def _clean_up(facts: MigrationInputs, phase: str, held: bool) -> MigrationPlan:
    """The migration has ended: delete the pod that is not needed, then remove the finalizer."""
    if facts.transfer.sending is Sending.ACTIVE:
        return MigrationPlan(cancel=True)
    # Even without the finalizer: the target pod may have reached the cache only now.
    if phase == FAILED and facts.target is not None and not _names(facts, "targetPodName"):
        return MigrationPlan(delete_target=not is_terminating(facts.target))
    # The finalizer stays until that pod is gone.
    if not held or (phase == SUCCEEDED and facts.source is not None):
        return _NOTHING
    return MigrationPlan(record_outcome=True, remove_finalizer=True)


def _broken(facts: MigrationInputs) -> Reasoned | None:
    """Reason to abort, regardless of the guests; None if there is none."""
    if is_terminating(facts.migration):
        return texts.MIGRATION_DELETED
    if facts.vm is None or is_terminating(facts.vm):
        return texts.VM_DELETED
    if why := _target_lost(facts):
        return why
    if facts.is_overdue:
        is_placed = bool(text(facts.migration, "status", "targetNode"))
        waited = "" if is_placed else f"; {scheduling_failure(facts.target) or texts.NOT_SCHEDULED}"
        return reasoned(texts.NOT_DONE, time=timeout_of(facts.migration), waited=waited)
    return None


def _called_off(facts: MigrationInputs) -> Reasoned | None:
    """Reason to abort a transfer whose memory is not being sent yet."""
    return _broken(facts) or (texts.WAKES_HERE if _wakes_here(facts) else None)


def _wakes_here(facts: MigrationInputs) -> bool:
    """Return True if the sleeping VM is needed, and has a permit to wake in the source pod."""
    if facts.vm is None or facts.fault or not _may_leave_asleep(facts):
        return False
    machine = machine_of(facts.vm)
    return machine.phase == WAKING and machine.permit is not None and machine.wakes_with.within(machine.permit)


def _target_lost(facts: MigrationInputs) -> Reasoned | None:
    name, target = text(facts.migration, "status", "targetPodName"), facts.target
    if target is None:
        # A target that had a node is not created again: its reservation is gone.
        return reasoned(texts.TARGET_GONE, pod=name) if text(facts.migration, "status", "targetNode") else None
    if has_finished(target):
        return reasoned(texts.TARGET_POD_ENDED, pod=name, message=text(target, "status", "message"))
    return reasoned(texts.TARGET_LEAVES, pod=name) if is_terminating(target) else None


def _cannot_send(facts: MigrationInputs) -> Reasoned | None:
    """Reason why the guest cannot be sent; None if it can. Valid only while no transfer is active."""
    if facts.fault:
        return texts.INVALID_SPEC, facts.fault
    name = text(facts.migration, "status", "sourcePodName")
    if not _names(facts, "sourcePodName"):
        return reasoned(texts.LEFT_SOURCE, pod=name)
    if facts.source_role is not PodRole.EMPTY:
        return None
    message = text(facts.source or {}, "status", "message")
    return reasoned(texts.SOURCE_ENDED, pod=name, message=f": {message}" if message else "")


def _failed(facts: MigrationInputs, why: Reasoned) -> MigrationPlan:
    return _status(facts, "False", why, phase=FAILED, **_info(facts))


def _info(facts: MigrationInputs) -> Json:
    return {"info": facts.transfer.info} if facts.transfer.info else {}


def _status(facts: MigrationInputs, value: str, why: Reasoned, **status: object) -> MigrationPlan:
    new_condition = condition(facts.migration, CONDITION, value, *why)
    return MigrationPlan(status={**status, "conditions": [new_condition]})
