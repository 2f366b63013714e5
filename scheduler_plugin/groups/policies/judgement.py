"""What is to be done about one group now, from all that is known of it (S1.1, S1.11).

Rules that hold here:

- Whatever is wrong is said in a condition, and then nothing is scaled: a group that cannot be read, a target that is
  not there or another group's, an HPA that is another's.
- A scaling that was begun is finished before anything new is decided.
- After a scaling nothing is decided for a pause: no recommendation can have heard of it yet.
- The same facts give the same judgement; what it wants written is absolute, so that it can be written again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from protocol.kubernetes.conditions import condition, stamped
from protocol.kubernetes.objects import (
    Json,
    JsonObject,
    annotations_of,
    child,
    is_leaving,
    items,
    name_of,
    text,
    version_of,
    whole,
)
from protocol.kubernetes.resources import HORIZONTAL_AUTOSCALERS, VERTICAL_AUTOSCALERS
from protocol.kubernetes.timestamps import parse_timestamp, timestamp
from scheduler_plugin.groups.core.workload import Container, Decision, Kept, Workload
from scheduler_plugin.groups.objects.amounts import read_container, write_container
from scheduler_plugin.groups.objects.intents import Intent, intent_of, progress, read_intent, write_intent
from scheduler_plugin.groups.objects.ownership import ForeignObjectError, refuse_foreign, upkeep
from scheduler_plugin.groups.objects.targets import (
    TARGET_KINDS,
    InvalidTargetError,
    Shape,
    TargetKind,
    achievable,
    selector_of,
    workload_of,
)
from scheduler_plugin.groups.objects.writes import Write, difference
from scheduler_plugin.groups.policies.policy import Arrangement, GroupPolicy, InvalidSpecError, Ruling, Situation

ABLE: Final = "AbleToScale"
ACTIVE: Final = "ScalingActive"
LIMITED: Final = "ScalingLimited"
WRITABLE: Final = "TargetWritable"
"""False once a write was refused for good; it goes when a scaling has been carried out."""


@dataclass(frozen=True, slots=True)
class Facts:
    """One group and what is known of its surroundings. ``arrangement`` is None, and ``fault`` says why, where the group
    cannot be read.

    ``rival`` is the older group that scales the same target, ``others`` are HPAs beside the group's own that scale it;
    both empty where there are none. ``pause`` is how long a scaling is left alone.
    """

    group: JsonObject
    arrangement: Arrangement | None = None
    fault: str = ""
    target: JsonObject | None = None
    hpa: JsonObject | None = None
    vpa: JsonObject | None = None
    rival: str = ""
    others: tuple[str, ...] = ()
    pause: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why nothing is scaled: ``reason`` in CamelCase, ``message`` for people."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """What to do, in the order of the fields: objects beside the group are written, then the whole ``status``, then the
    ``intent`` is carried out, then the ``inbox`` is set. ``sizes`` are what running pods should have, where they are
    resized in place.
    """

    status: Json
    upkeep: tuple[Write, ...] = ()
    intent: Intent | None = None
    inbox: Write | None = None
    sizes: tuple[Container, ...] = ()
    problem: Problem | None = None


def judge(policy: GroupPolicy, facts: Facts, now: datetime) -> Judgement:
    """What to do about the group now."""
    try:
        found = _looked_at(facts)
        return _ruled(policy, facts, found, now)
    except _StopError as stop:
        return _stopped(facts, stop.problem, now)


class _StopError(Exception):
    """Nothing may be scaled."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(reason, message)


@dataclass(frozen=True, slots=True)
class _Found:
    """What could be read."""

    arrangement: Arrangement
    target: JsonObject
    kind: TargetKind
    template: Workload
    upkeep: tuple[Write, ...]


def _looked_at(facts: Facts) -> _Found:
    arrangement = facts.arrangement
    if arrangement is None:
        raise _StopError("InvalidSpec", facts.fault)
    reference = arrangement.target
    if facts.target is None:
        raise _StopError("TargetMissing", f"{reference} is not there")
    if is_leaving(facts.target):
        raise _StopError("TargetLeaving", f"{reference} is being deleted")
    if facts.rival:
        raise _StopError("TargetTaken", f"{reference} is scaled by {facts.rival}, which is older")
    if facts.others:
        raise _StopError(
            "ForeignAutoscaler", f"{reference} is scaled by HorizontalPodAutoscaler {', '.join(facts.others)} too"
        )
    kind = TARGET_KINDS[reference.group, reference.kind]
    try:
        template = workload_of(facts.target, kind)
        writes = _companions(facts, arrangement)
    except InvalidTargetError as error:
        raise _StopError("TargetUnreadable", str(error)) from None
    except ForeignObjectError as error:
        raise _StopError("ForeignAutoscaler", str(error)) from None
    return _Found(arrangement, facts.target, kind, template, writes)


def _companions(facts: Facts, arrangement: Arrangement) -> tuple[Write, ...]:
    pairs = (
        (HORIZONTAL_AUTOSCALERS, arrangement.hpa, facts.hpa),
        (VERTICAL_AUTOSCALERS, arrangement.vpa, facts.vpa),
    )
    writes = []
    for resource, companion, found in pairs:
        if companion is None:
            continue
        if companion.spec is not None:
            writes.append(upkeep(resource, found, facts.group, companion.name, companion.spec))
        elif found is None:
            raise _StopError("AutoscalerMissing", f"{resource.kind} {companion.name} is not there")
        else:
            refuse_foreign(found, resource)
    return tuple(write for write in writes if write is not None)


def _ruled(policy: GroupPolicy, facts: Facts, found: _Found, now: datetime) -> Judgement:
    status = child(facts.group, "status")
    sizes = _sizes(status, found)
    workload = Decision(containers=sizes).applied(found.template)
    begun = read_intent(status)
    if begun is not None and not progress(begun, found.template).is_overtaken:
        return Judgement({**status, **_mirror(found)}, found.upkeep, begun, sizes=sizes)
    if begun is None and _rests(status, facts.pause, now):
        return Judgement({**status, **_mirror(found)}, found.upkeep, inbox=_inbox(policy, facts, found), sizes=sizes)
    try:
        ruling = policy.rule(Situation(facts.group, workload, facts.hpa, facts.vpa, now))
    except InvalidSpecError as error:
        raise _StopError("InvalidSpec", str(error)) from None
    decision = replace(ruling.decision, containers=achievable(found.target, found.kind, ruling.decision.containers))
    before = sizes
    if found.arrangement.in_place and found.kind.shape is Shape.TEMPLATE:
        sizes = _merged(sizes, decision.containers)
        decision = replace(decision, containers=())
    intent = intent_of(decision, found.template, timestamp(now.timestamp()))
    is_unwritten = ruling.decision.changes and intent is None and sizes == before
    wanted: Json = {
        **(ruling.unwritten if is_unwritten else ruling.status),
        **_mirror(found),
        "kept": [_shown(each) for each in decision.kept],
    }
    wanted["explanation"] = list(decision.explanation)
    if intent is not None:
        wanted["intent"] = write_intent(intent)
    if sizes:
        wanted["sizes"] = {
            "inPlace": [write_container(each) for each in sizes],
            "template": [write_container(each) for each in found.template.containers],
        }
    conditions = _conditions(facts, found.arrangement, ruling)
    writes = (*found.upkeep, *_managed(facts, found, ruling))
    whole_status = _whole_status(facts, wanted, conditions, now)
    return Judgement(whole_status, writes, intent, _inbox(policy, facts, found), sizes)


def _rests(status: JsonObject, pause: timedelta, now: datetime) -> bool:
    """Whether the last scaling was so short a time ago that nothing is decided yet."""
    at = parse_timestamp(child(status, "lastScaled").get("at"))
    return at is not None and 0 <= now.timestamp() - at < pause.total_seconds()


def _mirror(found: _Found) -> Json:
    """What ``/scale`` of the group shows: an HPA that recommends to it looks there for pods and replicas."""
    if found.kind.shape is not Shape.TEMPLATE:
        return {"replicas": found.template.replicas}
    return {"replicas": found.template.replicas, "targetSelector": selector_of(found.target)}


def _managed(facts: Facts, found: _Found, ruling: Ruling) -> tuple[Write, ...]:
    """What a ruling sets beside the scaling: fields of the HPA, annotations of the target."""
    writes: list[Write] = []
    if ruling.hpa and facts.hpa is not None:
        known = {key: value for key, value in child(facts.hpa, "spec").items() if key in ruling.hpa}
        if patch := difference(known, ruling.hpa):
            body: Json = {"spec": patch}
            writes.append(
                Write("autoscaler", HORIZONTAL_AUTOSCALERS, name_of(facts.hpa), body, version=version_of(facts.hpa))
            )
    known = {key: value for key, value in annotations_of(found.target).items() if key in ruling.annotations}
    if patch := difference(known, ruling.annotations):
        body = {"metadata": {"annotations": patch}}
        writes.append(Write("annotations", found.kind.resource, name_of(found.target), body))
    return tuple(writes)


def _inbox(policy: GroupPolicy, facts: Facts, found: _Found) -> Write | None:
    """Sets the group's own ``/scale`` back to the replicas that there are: an HPA that recommends to the group reckons
    from there.
    """
    replicas = found.template.replicas
    recommends = found.arrangement.hpa is not None and found.arrangement.hpa_asks_group
    if not recommends or child(facts.group, "spec").get("replicas") == replicas:
        return None
    return Write("inbox", policy.kind, name_of(facts.group), {"spec": {"replicas": replicas}}, "scale")


def _sizes(status: JsonObject, found: _Found) -> tuple[Container, ...]:
    """What running pods were resized to, as long as the template is as it was then."""
    if not found.arrangement.in_place:
        return ()
    try:
        kept = tuple(read_container(each, "status.sizes") for each in items(status, "sizes", "inPlace"))
        template = tuple(read_container(each, "status.sizes") for each in items(status, "sizes", "template"))
    except ValueError:
        return ()
    return kept if template == found.template.containers else ()


def _merged(old: tuple[Container, ...], new: tuple[Container, ...]) -> tuple[Container, ...]:
    merged = {each.name: each for each in old}
    for each in new:
        before = merged.get(each.name, Container(each.name))
        merged[each.name] = Container(each.name, each.requests.over(before.requests), each.limits.over(before.limits))
    return tuple(merged[name] for name in sorted(merged))


def _shown(kept: Kept) -> Json:
    return {
        "subject": kept.subject,
        "wanted": str(kept.wanted),
        "kept": None if kept.kept is None else str(kept.kept),
        "rule": kept.rule.value,
        "message": kept.message,
    }


def _conditions(facts: Facts, arrangement: Arrangement, ruling: Ruling) -> list[Json]:
    group = facts.group
    kept = ruling.decision.kept
    active = ("False", "NoRecommendation", ruling.waits_for) if ruling.waits_for else ("True", "Recommended", "")
    limited = (
        ("True", kept[0].rule.value, f"{kept[0].subject}: {kept[0].message}") if kept else ("False", "AsWanted", "")
    )
    return [
        condition(group, ABLE, "True", "TargetFound", f"scales {arrangement.target}"),
        condition(group, ACTIVE, *active),
        condition(group, LIMITED, *limited),
        *(condition(group, kind, "True", reason, message) for kind, reason, message in arrangement.remarks),
        *(each for each in items(group, "status", "conditions") if text(each, "type") == WRITABLE),
    ]


def _stopped(facts: Facts, problem: Problem, now: datetime) -> Judgement:
    """Nothing is scaled: memory stays, and an intent is given up."""
    status = {key: value for key, value in child(facts.group, "status").items() if key != "intent"}
    conditions = [condition(facts.group, ABLE, "False", problem.reason, problem.message)]
    kept = [each for each in items(status, "conditions") if text(each, "type") != ABLE]
    return Judgement(_whole_status(facts, status, [*conditions, *kept], now), problem=problem)


def _whole_status(facts: Facts, status: Json, conditions: list[Json], now: datetime) -> Json:
    generation = whole(facts.group, "metadata", "generation")
    body: Json = {**status, "observedGeneration": generation, "conditions": conditions}
    return stamped(body, timestamp(now.timestamp()))
