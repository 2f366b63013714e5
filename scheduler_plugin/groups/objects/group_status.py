"""The status of a VirtualMachineGroup: who its members are, what they do, and what is wrong (pure).

- Whatever changes all the time (sessions, ages) is left out, because each change of the status is a write.
- A primary that is gone stays remembered, so that no other is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protocol.kubernetes.conditions import condition, condition_of, stamped
from protocol.kubernetes.objects import Json, JsonObject, child, text, whole
from protocol.names import LABEL_GROUP, LABEL_ROLE
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.core.replicas.group_plan import GroupPlan
from scheduler_plugin.groups.core.replicas.members import Member, Role, primary_of, replicas_of
from scheduler_plugin.groups.objects.vm_group import VmGroup

ABLE: Final = "AbleToScale"
TAKEN: Final = "TargetTaken"


@dataclass(frozen=True, slots=True)
class _Verdict:
    """Condition: ``reason`` is one CamelCase word, ``message`` a sentence for people."""

    holds: bool
    reason: str
    message: str = ""


def group_status(  # noqa: PLR0913, PLR0917 - all parts of a status
    found: JsonObject,
    group: VmGroup,
    members: Sequence[Member],
    plan: GroupPlan,
    unwritten: str,
    rivals: Sequence[str],
    now: str,
) -> Json:
    """The whole status of the group ``found``, to be merged into the object.

    ``unwritten`` says what of the plan could not be written, empty if all was. ``rivals`` are who else writes the
    replicas of a group that scales itself. ``now`` is a Kubernetes timestamp.
    """
    going = {reasoned.member.name for reasoned in plan.drain}
    returning = {member.name for member in plan.stay}
    replicas = replicas_of(members)
    draining = [
        replica
        for replica in replicas
        if replica.name in going or replica.leaving or (replica.draining is not None and replica.name not in returning)
    ]
    primary = primary_of(members)
    verdict = _primary_ready(primary, plan)
    verdicts = {
        "Accepted": _Verdict(True, "Valid"),
        "PrimaryReady": verdict,
        "Ready": _ready(group, verdict, plan, unwritten),
        **({} if group.scaling is None else {ABLE: _able(rivals)}),
    }
    status: Json = {
        "observedGeneration": whole(found, "metadata", "generation"),
        "replicas": len(replicas) - len(draining),
        "readyReplicas": len(plan.serving),
        "drainingReplicas": len(draining),
        "selector": selector(group),
        "members": [_member(member, plan) for member in members],
        "conditions": [_condition(found, kind, outcome) for kind, outcome in verdicts.items()],
    }
    # A primary that is gone stays remembered, so that no empty one takes its place.
    if recorded := child(found, "status", "primary"):
        status["primary"] = recorded
    if primary is not None:
        status["primary"] = {"name": primary.name, "uid": primary.uid, "address": primary.address, "node": primary.node}
    return stamped(status, now)


def refused_status(found: JsonObject, fault: str, now: str) -> Json:
    """The fields of the status that change if the group cannot be read; all others stay."""
    refused = _Verdict(False, "InvalidSpec", fault)
    conditions = [_condition(found, kind, refused) for kind in ("Accepted", "Ready")]
    return stamped({"observedGeneration": whole(found, "metadata", "generation"), "conditions": conditions}, now)


def selector(group: VmGroup) -> str:
    """Selector of the replicas' pods for ``/scale``."""
    return f"{LABEL_GROUP}={group.name.name},{LABEL_ROLE}={Role.REPLICA}"


def taken_by(rivals: Sequence[str]) -> str:
    """The reason why a group does not scale itself, for people."""
    return texts.REPLICAS_CONTESTED.format(rivals=", ".join(rivals))


def _able(rivals: Sequence[str]) -> _Verdict:
    return _Verdict(False, TAKEN, taken_by(rivals)) if rivals else _Verdict(True, "ScalesItself")


def _member(member: Member, plan: GroupPlan) -> Json:
    # Later entries win: the reason for a deletion says more than that for not being listed.
    reasons = {reasoned.member.name: reasoned.because for reasoned in (*plan.held_back, *plan.delete)}
    serves = any(replica.name == member.name for replica in plan.serving)
    entry: Json = {"name": member.name, "role": member.role.value, "node": member.node, "address": member.address}
    if member.role is Role.REPLICA:
        entry.update(serving=serves, message=reasons.get(member.name, ""))
        entry["state"] = _state(member, plan, serves=serves)
    else:
        entry["state"] = "Running" if member.available else "Starting"
    return entry


def _state(member: Member, plan: GroupPlan, *, serves: bool) -> str:
    if member.leaving or any(reasoned.member.name == member.name for reasoned in plan.delete):
        return "Leaving"
    if plan.drains(member):
        return "Draining"
    return "Serving" if serves else "Starting"


def _primary_ready(primary: Member | None, plan: GroupPlan) -> _Verdict:
    if plan.fault:
        return _Verdict(False, "PrimaryMissing", plan.fault)
    if primary is None or not primary.available:
        return _Verdict(False, "PrimaryStarting", texts.PRIMARY_STARTS)
    return _Verdict(True, "Serves")


def _ready(group: VmGroup, primary: _Verdict, plan: GroupPlan, unwritten: str) -> _Verdict:
    wanted, serving = group.spec.replicas, len(plan.serving)
    # Most urgent first: a refused write needs people.
    if unwritten:
        return _Verdict(False, "NotWritten", unwritten)
    if not primary.holds:
        return primary
    count = texts.SERVING.format(serving=serving, wanted=wanted)
    if serving >= wanted:
        return _Verdict(True, "AllServe", count)
    waits = "; ".join(f"{reasoned.member.name}: {reasoned.because}" for reasoned in plan.held_back)
    return _Verdict(False, "ReplicasStarting", f"{count} ({waits})" if waits else count)


def _condition(found: JsonObject, kind: str, verdict: _Verdict) -> Json:
    return condition(found, kind, str(verdict.holds), verdict.reason, verdict.message)


def stopped_because(group: JsonObject) -> str:
    """The reason for which the group scales nothing, in one word; empty if it scales."""
    able = condition_of(group, ABLE)
    return text(able, "reason") if text(able, "status") == "False" else ""
