"""What to do about one VirtualMachine, from what is true now: the controller's whole judgement (pure).

Rules that hold here:

- Level-triggered: the plan depends on the object, its pod and its guest alone, never on what happened before.
- ``status`` says what the guest has, as the guest says it; never what the spec wishes.
- The pod's name is in ``status`` before the pod is made, so that a controller that died in between makes no second one.
- A pod that has gone without ending (its node went, somebody deleted it) counts as failed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from deploy.local.kube.objects import Json, child, is_leaving, is_over, items, node_of, pod_phase, text, whole
from deploy.local.neonvm.machine import FINALIZER, restarts
from deploy.local.ports import GuestPhase, GuestState
from protocol.units import Resources
from protocol.virtual_machine import VirtualMachine

PENDING: Final = "Pending"
RUNNING: Final = "Running"
SCALING: Final = "Scaling"
FAILED: Final = "Failed"
_ENDED: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class Facts:
    """What is true now. ``machine`` is None where the spec is unusable, ``fault`` then says why.

    ``guest`` is what the guest has (None where none is known here); ``guest_fault`` the guest's last refusal.
    ``restart_due`` says that the pause before a restart is over. ``new_pod_name`` draws a name that was never used.
    """

    vm: Json
    machine: VirtualMachine | None
    fault: str
    pod: Json | None
    guest: GuestState | None
    guest_fault: str
    vm_address: str
    restart_due: bool
    new_pod_name: Callable[[], str]


@dataclass(frozen=True, slots=True)
class Plan:
    """``status`` is merged into the object's status where it differs; the rest is done in the order of the fields."""

    status: Json
    add_finalizer: bool = False
    create_pod: bool = False
    delete_pod: bool = False
    remove_finalizer: bool = False
    want: Resources | None = None
    wait_for_restart: bool = False


def plan(facts: Facts) -> Plan:
    """What to do now; nothing where all is well."""
    finalizers = child(facts.vm, "metadata").get("finalizers")
    held = isinstance(finalizers, list) and FINALIZER in finalizers
    if is_leaving(facts.vm):
        return _leave(facts) if held else Plan({})
    if not held:
        return Plan({}, add_finalizer=True)
    if facts.machine is None:
        return Plan({"conditions": [_condition(facts.vm, "Available", False, "InvalidSpec", facts.fault)]})
    if not text(facts.vm, "status", "podName"):
        return Plan({"phase": PENDING, "podName": facts.new_pod_name(), **_NO_GUEST})
    if facts.pod is None:
        return _without_pod(facts)
    return _ended(facts, facts.pod) if is_over(facts.pod) else _with_pod(facts, facts.machine, facts.pod)


_NO_GUEST: Final[Json] = {"podIP": None, "node": None, "cpus": None, "memorySize": None}


def _leave(facts: Facts) -> Plan:
    if facts.pod is None:
        return Plan({}, remove_finalizer=True)
    return Plan({}, delete_pod=not is_leaving(facts.pod))


def _without_pod(facts: Facts) -> Plan:
    phase = text(facts.vm, "status", "phase")
    if phase in {"", PENDING}:
        return Plan({}, create_pod=True)
    if phase not in _ENDED:
        gone = _condition(facts.vm, "Available", False, "PodGone", f"pod {text(facts.vm, 'status', 'podName')} is gone")
        return Plan({"phase": FAILED, "conditions": [gone], **_NO_GUEST})
    if not restarts(facts.vm, phase):
        return Plan({})
    if not facts.restart_due:
        return Plan({}, wait_for_restart=True)
    count = whole(facts.vm, "status", "restartCount") + 1
    return Plan({"phase": PENDING, "podName": facts.new_pod_name(), "restartCount": count, **_NO_GUEST})


def _ended(facts: Facts, pod: Json) -> Plan:
    reason = text(pod, "status", "reason") or "PodEnded"
    ended = _condition(facts.vm, "Available", False, reason, text(pod, "status", "message"))
    again = restarts(facts.vm, pod_phase(pod)) and not is_leaving(pod)
    return Plan({"phase": pod_phase(pod), "conditions": [ended], **_NO_GUEST}, delete_pod=again)


def _with_pod(facts: Facts, machine: VirtualMachine, pod: Json) -> Plan:
    if is_leaving(pod):
        return Plan({})
    if pod_phase(pod) != RUNNING or facts.guest is None or facts.guest.phase is GuestPhase.STOPPED:
        waiting = _condition(facts.vm, "Available", False, "PodPending", "the pod does not run yet")
        return Plan({"phase": PENDING, "conditions": [waiting], "node": node_of(pod) or None})
    guest = facts.guest
    scaling = guest.phase is GuestPhase.RUNNING and Resources(guest.cpu, guest.mem) != machine.use
    status: Json = {
        "phase": SCALING if scaling else RUNNING,
        "node": node_of(pod),
        "podIP": text(pod, "status", "podIP"),
        "extraNetIP": facts.vm_address,
        "cpus": guest.cpu.quantity(),
        "memorySize": guest.mem.quantity(),
        "conditions": [_available(facts, guest)],
    }
    return Plan(status, want=machine.use)


def _available(facts: Facts, guest: GuestState) -> Json:
    if guest.phase is GuestPhase.BOOTING:
        return _condition(facts.vm, "Available", False, "Booting", "the guest boots")
    reason = "ResizeRefused" if facts.guest_fault else "GuestRuns"
    return _condition(facts.vm, "Available", True, reason, facts.guest_fault)


def _condition(vm: Json, kind: str, value: bool, reason: str, message: str) -> Json:
    """The condition; its time of transition is left to the shell, which keeps it while the status stays."""
    status = "True" if value else "False"
    last = next((each for each in items(vm, "status", "conditions") if text(each, "type") == kind), {})
    kept = {"lastTransitionTime": last["lastTransitionTime"]} if text(last, "status") == status else {}
    return {"type": kind, "status": status, "reason": reason, "message": message, **kept}
