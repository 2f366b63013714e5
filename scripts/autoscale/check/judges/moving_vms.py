"""VMs: their agents, permits, scheduling and migrations (pure)."""

from __future__ import annotations

from functools import partial
from typing import Final

from protocol.guest.sleep import SLEEPING
from protocol.kubernetes.objects import Json, integer, items, labels_of, name_of, node_of, text
from protocol.kubernetes.timestamps import parse_timestamp
from protocol.names import LABEL_ENABLED, LABEL_VM_NAME
from protocol.virtual_machine import InvalidObjectError, VirtualMachine, parse_virtual_machine
from scripts.autoscale.check.facts import CheckFacts, Observed, UnavailableError, require
from scripts.autoscale.check.finding import CheckProblem, CheckResult, CheckSection, Level, check_of
from scripts.autoscale.check.installed_programs import AGENT, pods_of, sidecar_pods, why_unscheduled

check = partial(check_of, CheckSection.VMS)

LATELY: Final = 60.0
"""Seconds; an agent sends a request every 15."""

_STUCK: Final = 60.0
"""Seconds beyond its timeout after which a migration counts as stuck."""

_ENDED: Final = frozenset({"Succeeded", "Failed"})


def _enabled(facts: CheckFacts) -> list[Json]:
    """Running VMs with autoscaling enabled. Raises ``UnavailableError`` if there are none."""
    enabled = [vm for vm in facts.vms.value if labels_of(vm).get(LABEL_ENABLED) == "true" and _runs(vm)]
    require(enabled, f"no running VM has the label {LABEL_ENABLED}=true")
    return enabled


def _runs(vm: Json) -> bool:
    return text(vm, "status", "phase") == "Running"


@check("vms-agents", "VMs have one agent each", "autoscale explain {subject}")
def have_agents(facts: CheckFacts) -> CheckResult:
    """A VM with the label `autoscaling.neon.tech/enabled: "true"` is sized by a sidecar in its pod or by its node's
    agent; without one it never grows.
    """
    # Labels contain only the VM's name, which is unique only within its namespace.
    sidecars = {(name_of(pod).namespace, labels_of(pod).get(LABEL_VM_NAME, "")) for pod in sidecar_pods(facts)}
    nodes = {node_of(pod) for pod in pods_of(facts, AGENT)}
    problems = list[CheckProblem]()
    for vm in _enabled(facts):
        name, has_node_agent = name_of(vm), text(vm, "status", "node") in nodes
        if (name.namespace, name.name) in sidecars and has_node_agent:
            message = f"VM {name} has two agents, a sidecar and its node's: the scheduler serves only one of them"
            problems.append(CheckProblem(str(name), message, Level.WARNING))
        elif (name.namespace, name.name) not in sidecars and not has_node_agent:
            problems.append(
                CheckProblem(str(name), f"VM {name} has no agent: no sidecar in its pod, and none on its node")
            )
    return CheckResult(f"{len(_enabled(facts))} VMs have one", problems)


@check("agents-answered", "the scheduler answers agents", "autoscale explain {subject}")
def agents_answered(facts: CheckFacts) -> CheckResult:
    """Each agent's `/explain` has the time of the scheduler's last answer; agents ask every 15 s. After a minute
    without an answer VMs do not grow. The line quotes the agent's reason (401: token; 403: `agents.nodeAgents`; 503:
    the API).
    """
    explanations, problems, up_to_date = facts.agents.value, list[CheckProblem](), 0
    require(explanations, f"no running VM has the label {LABEL_ENABLED}=true")
    for vm, explanation in sorted(explanations.items()):
        age = None if explanation is None else explanation.get("scheduler_answered_seconds")
        if explanation is None:
            problems.append(CheckProblem(vm, f"the agent of VM {vm} does not respond to /explain", Level.WARNING))
        # An agent that never received a response reports null.
        elif not isinstance(age, (int, float)) or age > LATELY:
            since = "has never answered" if not isinstance(age, (int, float)) else f"last answered {age:.0f} s ago"
            problems.append(
                CheckProblem(vm, f"agent of VM {vm}: the scheduler {since}{_scheduler_trouble(explanation)}")
            )
        else:
            up_to_date += 1
    return CheckResult(f"{up_to_date} agents got an answer in the last {LATELY:.0f} s", problems)


def _scheduler_trouble(explanation: Json) -> str:
    reasons = [
        text(trouble, "reason") for trouble in items(explanation, "troubles") if text(trouble, "with_") == "scheduler"
    ]
    return f": {reasons[-1]}" if reasons else ""


@check("vms-permits", "VMs stay within their permits", "autoscale explain {subject}")
def permits_hold(facts: CheckFacts) -> CheckResult:
    """A VM cannot be decoded, or is larger than its permit because a user or another autoscaler resized it."""
    problems, read = list[CheckProblem](), 0
    for manifest in facts.vms.value:
        try:
            vm = parse_virtual_machine(manifest)
        except InvalidObjectError as error:
            problems.append(CheckProblem(str(name_of(manifest)), f"cannot decode VM {name_of(manifest)}: {error}"))
            continue
        read += 1
        problems += [
            CheckProblem(str(vm.name), f"VM {vm.name}: {why}", Level.WARNING) for why in (*vm.problems, *_beyond(vm))
        ]
    if not read and not problems:
        raise UnavailableError("there are no VMs")
    return CheckResult(f"{read} VMs", problems)


def _beyond(vm: VirtualMachine) -> list[str]:
    # Without a permit or with autoscaling off, any size is the owner's choice. The spec of a sleeping VM is the size
    # with which it wakes.
    if vm.permit is None or not vm.enabled or vm.use.within(vm.permit) or vm.phase in SLEEPING:
        return []
    return [f"its size of {vm.use} exceeds its permit of {vm.permit}: another client resized it"]


@check(
    "vms-readable", "the scheduler can decode every object", "kubectl get events -A --field-selector reason=Unreadable"
)
def objects_are_read(facts: CheckFacts) -> CheckResult:
    """Objects that the scheduler cannot decode count at their maximum, so nodes seem fuller than they are."""
    unread = items(facts.ledger.value, "unreadable")
    problems = [
        CheckProblem(
            text(unread_object, "object"),
            f"{text(unread_object, 'kind')} {text(unread_object, 'object')}: {text(unread_object, 'reason')}",
            Level.WARNING,
        )
        for unread_object in unread
    ]
    return CheckResult("", problems)


@check("vms-placed", "pods are scheduled", "kubectl describe pod {subject}; autoscale top")
def are_placed(facts: CheckFacts) -> CheckResult:
    """kube-scheduler found no node for a pod."""
    problems = [
        CheckProblem(
            f"-n {name_of(pod).namespace} {name_of(pod).name}",
            f"pod {name_of(pod)} is not scheduled: {why}",
            Level.WARNING,
        )
        for pod in facts.waiting_pods.value
        if (why := why_unscheduled(pod))
    ]
    return CheckResult("", problems)


@check(
    "migrations-end",
    "migrations end",
    "kubectl describe neonvmm {subject}; kubectl get lease -n {namespace} neonvm-controller",
)
def moves_end(facts: CheckFacts) -> CheckResult:
    """A migration has exceeded its timeout or cannot be deleted, or VMs should move off a node and none can."""
    now = facts.server_now
    migrations = facts.migrations.value
    active = [migration for migration in migrations if text(migration, "status", "phase") not in _ENDED]
    problems = [
        CheckProblem(f"-n {name_of(migration).namespace} {name_of(migration).name}", why)
        for migration in migrations
        if (why := _hangs(migration, now))
    ]
    if isinstance(facts.ledger, Observed):
        problems += [
            CheckProblem(
                text(node, "name"), f"VMs should move off node {text(node, 'name')} but cannot: {why}", Level.WARNING
            )
            for node in items(facts.ledger.value, "nodes")
            if (why := text(node, "stuck"))
        ]
    return CheckResult(f"{len(active)} in progress", problems)


def _hangs(migration: Json, now: float) -> str:
    made = parse_timestamp(text(migration, "metadata", "creationTimestamp"))
    leaving = parse_timestamp(text(migration, "metadata", "deletionTimestamp"))
    longest = float(integer(migration, "spec", "completionTimeout") or 3600)
    # Only its controller removes the finalizer.
    if leaving is not None and now - leaving > _STUCK:
        return f"migration {name_of(migration)} has been terminating for {now - leaving:.0f} s: a finalizer remains"
    phase = text(migration, "status", "phase") or "not started"
    if phase not in _ENDED and made is not None and now - made > longest + _STUCK:
        return f"migration {name_of(migration)} is {phase} after {now - made:.0f} s; its timeout is {longest:.0f} s"
    return ""
