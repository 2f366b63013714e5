"""Decoding of VirtualMachineGroups, and their status (pure).

- An invalid field raises ``InvalidGroupError`` with its path. This becomes a condition, and the group stays as it is.
- Templates are copied unchanged, but must result in a valid VM.
- The status has no values that change constantly (sessions, ages), because each change is a write.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from protocol.durations import DurationError, parse_duration
from protocol.field_errors import shown
from protocol.kubernetes.conditions import condition, condition_of, stamped
from protocol.kubernetes.objects import Json, JsonObject, child, integer, name_of, text, uid_of
from protocol.kubernetes.timestamps import parse_timestamp, timestamp
from protocol.messages import ObjectName
from protocol.names import KERNEL_PRIMARY, LABEL_GROUP, LABEL_ROLE
from protocol.units import MilliCpu, Seconds
from protocol.virtual_machine import InvalidObjectError, VirtualMachine, parse_virtual_machine
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.core.replicas.group_plan import GroupPlan
from scheduler_plugin.groups.core.replicas.members import GroupSpec, Member, Role, primary_of, replicas_of
from scheduler_plugin.groups.core.replicas.scaling import GroupScaling, ScalingDecision, ScalingMemory
from scheduler_plugin.groups.core.workload import ReplicaBounds
from scheduler_plugin.texts.explanations import named


class InvalidGroupError(ValueError):
    """An invalid VirtualMachineGroup; the message starts with the path of the field."""


def int_field(obj: JsonObject, path: tuple[str, ...], usual: int, minimum: int, maximum: int) -> int:
    """The integer at ``path`` of the spec, ``usual`` if missing. Raises ``InvalidGroupError``."""
    value = child(obj, "spec", *path[:-1]).get(path[-1])
    value = usual if value is None else value
    # A bool is an int.
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
        raise InvalidGroupError(
            f"spec.{'.'.join(path)}: expected a whole number from {minimum} to {maximum}, got {shown(value)}"
        )
    return value


def duration_field(obj: JsonObject, path: tuple[str, ...], usual: Seconds) -> Seconds:
    """The duration at ``path`` of the spec, ``usual`` if missing. Raises ``InvalidGroupError``."""
    value = child(obj, "spec", *path[:-1]).get(path[-1])
    try:
        return usual if value is None else parse_duration(value)
    except DurationError as error:
        raise InvalidGroupError(f"spec.{'.'.join(path)}: {error}") from None


MOST_REPLICAS: Final = 64
SHORTEST: Final = Seconds(10.0)

LONGEST: Final = Seconds(600.0)
"""A window needs at least two samples; a longer one reacts too late to a peak."""

_UTILIZATION: Final = 70
_TIMES: Final = {
    "lastScaleUp": "last_up",
    "lastScaleDown": "last_down",
    "fewerSince": "fewer_since",
}


def read_scaling(obj: JsonObject, max_cpu: MilliCpu) -> GroupScaling | None:
    """Scaling settings of the group; None if it does not scale itself. Raises ``InvalidGroupError``."""
    if not child(obj, "spec", "scaling"):
        return None
    minimum = int_field(obj, ("scaling", "minReplicas"), 1, 0, MOST_REPLICAS)
    maximum = int_field(obj, ("scaling", "maxReplicas"), max(1, minimum), 0, MOST_REPLICAS)
    if maximum < minimum:
        raise InvalidGroupError(f"spec.scaling.maxReplicas: expected at least minReplicas, {minimum}, got {maximum}")
    defaults = GroupScaling(ReplicaBounds(minimum, maximum), max_cpu)
    window = duration_field(obj, ("scaling", "window"), defaults.window)
    if not SHORTEST <= window <= LONGEST:
        raise InvalidGroupError(f"spec.scaling.window: expected {SHORTEST:g} s to {LONGEST:g} s, got {window:g} s")
    return replace(
        defaults,
        utilization=int_field(obj, ("scaling", "targetCPUUtilizationPercentage"), _UTILIZATION, 1, 100) / 100,
        up_delay=duration_field(obj, ("scaling", "scaleUpDelay"), defaults.up_delay),
        down_delay=duration_field(obj, ("scaling", "scaleDownDelay"), defaults.down_delay),
        window=window,
    )


def read_memory(obj: JsonObject) -> ScalingMemory:
    """Scaling history in the group's status; undecodable times are dropped."""
    times = {field: parse_timestamp(text(obj, "status", "scaling", name)) for name, field in _TIMES.items()}
    return ScalingMemory(**times)


def scaling_status(decision: ScalingDecision) -> Json:
    """Status of a decision: the desired and the present count, the rule (S1.11), and the scaling history."""
    times = {name: getattr(decision.memory, field) for name, field in _TIMES.items()}
    remembered = {name: timestamp(at) for name, at in times.items() if at is not None}
    status: Json = {"replicas": decision.replicas, "message": decision.reason, **remembered}
    if decision.desired is not None:
        status["wanted"] = decision.desired
    if decision.rule is not None:
        status["rule"] = decision.rule.value
    return status


POSTGRES: Final = 5432
_NAME: Final = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class VmGroup:
    """A VirtualMachineGroup.

    ``template`` and ``replica_template`` have the ``metadata`` and ``spec`` of VMs to create. ``port`` is the port of
    the read endpoint. ``scaling`` is None if the group does not scale itself; ``scaled`` is the scaling history in the
    status. ``primary_uid`` is the UID of the primary in the status, empty if there has been none.
    """

    name: ObjectName
    uid: str
    spec: GroupSpec
    template: Json
    replica_template: Json
    port: int
    scaling: GroupScaling | None
    scaled: ScalingMemory
    primary_uid: str


def parse_vm_group(obj: JsonObject) -> VmGroup:
    """Decode a VirtualMachineGroup. Raises ``InvalidGroupError``.

    >>> guest = {"cpus": {"min": 1, "max": 4}, "memorySlots": {"min": 1, "max": 8}}
    >>> spec = {"replicas": 2, "template": {"spec": {"guest": guest}}, "drain": {"gracePeriod": "1m"}}
    >>> group = parse_vm_group({"metadata": {"namespace": "default", "name": "shop"}, "spec": spec})
    >>> group.spec.replicas, group.spec.grace, group.port
    (2, 60.0, 5432)
    """
    name = name_of(obj)
    if not _NAME.fullmatch(name.name):
        raise InvalidGroupError(
            "metadata.name: expected at most 40 lower-case letters, digits and hyphens, beginning with a letter "
            f"(VMs and a Service are named after it), got {shown(name.name)}"
        )
    template, replica = _template(obj, name, "template")
    # Replicas have the template of the primary by default.
    replica_template = template
    if "replicaTemplate" in child(obj, "spec"):
        replica_template, replica = _template(obj, name, "replicaTemplate")
    return VmGroup(
        name=name,
        uid=uid_of(obj),
        spec=_spec(obj, name),
        template=template,
        replica_template=replica_template,
        port=int_field(obj, ("readEndpoint", "port"), POSTGRES, 1, 65_535),
        scaling=read_scaling(obj, replica.bounds.max.cpu),
        scaled=read_memory(obj),
        primary_uid=text(obj, "status", "primary", "uid"),
    )


def _spec(obj: JsonObject, name: ObjectName) -> GroupSpec:
    defaults = GroupSpec(name.name, 0)
    spec = GroupSpec(
        name=name.name,
        replicas=int_field(obj, ("replicas",), 1, 0, MOST_REPLICAS),
        max_lag=duration_field(obj, ("readEndpoint", "maxLag"), defaults.max_lag),
        grace=duration_field(obj, ("drain", "gracePeriod"), defaults.grace),
        drain_timeout=duration_field(obj, ("drain", "timeout"), defaults.drain_timeout),
    )
    if spec.drain_timeout < spec.grace:
        raise InvalidGroupError(
            f"spec.drain.timeout: expected at least the grace period of {spec.grace:g} s, got {spec.drain_timeout:g} s"
        )
    return spec


def _template(obj: JsonObject, name: ObjectName, field: str) -> tuple[Json, VirtualMachine]:
    """The template in ``field``, and an example of its VMs."""
    template = child(obj, "spec", field)
    spec = child(template, "spec")
    trial = {"metadata": {"namespace": name.namespace, "name": name.name}, "spec": spec}
    try:
        example = parse_virtual_machine(trial)
    except InvalidObjectError as error:
        raise InvalidGroupError(f"spec.{field}.{error}") from None
    if f"{KERNEL_PRIMARY}=" in text(spec, "guest", "appendKernelCmdline"):
        raise InvalidGroupError(
            f"spec.{field}.spec.guest.appendKernelCmdline: expected no {KERNEL_PRIMARY}: the group sets it for replicas"
        )
    return {"metadata": child(template, "metadata"), "spec": spec}, example


_Condition = tuple[bool, str, str]
"""Status, reason and message of a condition."""

ABLE: Final = "AbleToScale"
TAKEN: Final = "TargetTaken"

StopReason = Literal[
    "AutoscalerMissing",
    "AutoscalerTooLarge",
    "ForeignAutoscaler",
    "InvalidSpec",
    "SizedByAgents",
    "TargetLeaving",
    "TargetMissing",
    "TargetTaken",
    "TargetUnreadable",
]
"""Reasons why a group does not scale its target."""
_STOP_REASONS: Final = frozenset(get_args(StopReason))


def group_status(  # noqa: PLR0913, PLR0917 - all parts of a status
    obj: JsonObject,
    group: VmGroup,
    members: Sequence[Member],
    plan: GroupPlan,
    unwritten: str,
    rivals: Sequence[str],
    now: str,
) -> Json:
    """The whole status of the group ``obj``.

    ``unwritten`` says which part of the plan could not be written, and why; empty if none. ``rivals`` are other writers
    of the replicas of a self-scaling group. ``now`` is a Kubernetes timestamp.
    """
    going = {entry.member.name for entry in plan.drain}
    returning = {member.name for member in plan.undrain}
    replicas = replicas_of(members)
    draining = [
        replica
        for replica in replicas
        if replica.name in going or replica.leaving or (replica.draining is not None and replica.name not in returning)
    ]
    primary = primary_of(members)
    verdict = _primary_ready(primary, plan)
    verdicts: dict[str, _Condition] = {
        "Accepted": (True, "Valid", ""),
        "PrimaryReady": verdict,
        "Ready": _ready(group, verdict, plan, unwritten),
    }
    if group.scaling is not None:
        verdicts[ABLE] = (False, TAKEN, taken_by(rivals)) if rivals else (True, "ScalesItself", "")
    status: Json = {
        "observedGeneration": integer(obj, "metadata", "generation"),
        "replicas": len(replicas) - len(draining),
        "readyReplicas": len(plan.serving),
        "drainingReplicas": len(draining),
        "selector": selector(group),
        "members": [_member(member, plan) for member in members],
        "conditions": [condition(obj, kind, str(holds), *why) for kind, (holds, *why) in verdicts.items()],
    }
    # Keep a lost primary, so that no empty one replaces it.
    if recorded := child(obj, "status", "primary"):
        status["primary"] = recorded
    if primary is not None:
        status["primary"] = {"name": primary.name, "uid": primary.uid, "address": primary.address, "node": primary.node}
    return stamped(status, now)


def refused_status(obj: JsonObject, fault: str, now: str) -> Json:
    """The status fields that change if a group is invalid."""
    conditions = [condition(obj, kind, "False", "InvalidSpec", fault) for kind in ("Accepted", "Ready")]
    return stamped({"observedGeneration": integer(obj, "metadata", "generation"), "conditions": conditions}, now)


def selector(group: VmGroup) -> str:
    """Label selector of the replicas' pods for ``/scale``."""
    return f"{LABEL_GROUP}={group.name.name},{LABEL_ROLE}={Role.REPLICA}"


def taken_by(rivals: Sequence[str]) -> str:
    """A sentence on the writers that keep a group from scaling itself."""
    return texts.REPLICAS_CONTESTED.format(rivals=named(rivals))


def _member(member: Member, plan: GroupPlan) -> Json:
    # Deletions last, because their reason is more specific.
    reasons = {entry.member.name: entry.reason for entry in (*plan.excluded, *plan.delete)}
    serves = any(replica.name == member.name for replica in plan.serving)
    entry: Json = {"name": member.name, "role": member.role.value, "node": member.node, "address": member.address}
    if member.role is Role.REPLICA:
        entry.update(serving=serves, message=reasons.get(member.name, ""))
        entry["state"] = _state(member, plan, serves=serves)
    else:
        entry["state"] = "Running" if member.available else "Starting"
    return entry


def _state(member: Member, plan: GroupPlan, *, serves: bool) -> str:
    if member.leaving or any(entry.member.name == member.name for entry in plan.delete):
        return "Leaving"
    if plan.drains(member):
        return "Draining"
    return "Serving" if serves else "Starting"


def _primary_ready(primary: Member | None, plan: GroupPlan) -> _Condition:
    if plan.fault:
        return (False, "PrimaryMissing", plan.fault)
    if primary is None or not primary.available:
        return (False, "PrimaryStarting", texts.PRIMARY_STARTS)
    return (True, "Serves", "")


def _ready(group: VmGroup, primary: _Condition, plan: GroupPlan, unwritten: str) -> _Condition:
    desired, serving = group.spec.replicas, len(plan.serving)
    # Most urgent first.
    if unwritten:
        return (False, "NotWritten", unwritten)
    if not primary[0]:
        return primary
    count = texts.SERVING.format(serving=serving, desired=desired)
    if serving >= desired:
        return (True, "AllServe", count)
    waits = "; ".join(f"{entry.member.name}: {entry.reason}" for entry in plan.excluded)
    return (False, "ReplicasStarting", f"{count} ({waits})" if waits else count)


def stopped_because(group: JsonObject) -> str:
    """The reason why the group does not scale, a ``StopReason`` or ``Other``; empty if it scales."""
    able = condition_of(group, ABLE)
    reason = text(able, "reason") if text(able, "status") == "False" else ""
    # Others may write the status, and each reason becomes a series of a metric.
    return reason if not reason or reason in _STOP_REASONS else "Other"
