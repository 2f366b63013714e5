"""Computes the writes for one group from its facts (S1.1, S1.11).

- A problem stops scaling and becomes a condition of the group.
- Equal facts give equal results. Writes have absolute values, so repeating them is safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from protocol.kubernetes.conditions import condition, condition_of, stamped
from protocol.kubernetes.objects import Json, JsonObject, child, integer, is_terminating, items, text
from protocol.kubernetes.resources import HORIZONTAL_AUTOSCALERS, VERTICAL_AUTOSCALERS, VIRTUAL_MACHINES, Resource
from protocol.kubernetes.timestamps import parse_timestamp, timestamp
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.controllers.companions import (
    ScalableTarget,
    StopError,
    TooLargeError,
    companions,
    hpa_changes,
    hpa_write,
    managed,
    reset_scale,
)
from scheduler_plugin.groups.controllers.policies import DesiredState, GroupFacts, GroupPolicy, PolicyDecision
from scheduler_plugin.groups.core.workload import (
    OutOfMemory,
    SizedContainer,
    WithheldChange,
    Workload,
    WorkloadDecision,
)
from scheduler_plugin.groups.objects.autoscalers import sizing_mode, target_of
from scheduler_plugin.groups.objects.pods import selector_of
from scheduler_plugin.groups.objects.targets import (
    TEMPLATED,
    InvalidSpecError,
    InvalidTargetError,
    oom_kills,
    read_container,
    running_pods,
    with_defaults,
    workload_of,
    write_container,
)
from scheduler_plugin.groups.objects.vm_group import ABLE
from scheduler_plugin.groups.objects.writes import (
    ForeignObjectError,
    Intent,
    Write,
    achievable,
    intent_of,
    progress,
    read_intent,
    scalable_owner,
    write_intent,
)


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """Writes in this order: ``companion_writes`` to HPA and VPA, the whole ``status``, the ``intent``, deletion of the
    HPA ``drop``, sizes of running pods, and the ``scale_reset``.

    ``sizes`` is empty unless running pods are resized in place. ``problem`` is why the group does not scale, if so.
    """

    status: Json
    companion_writes: tuple[Write, ...] = ()
    intent: Intent | None = None
    drop: JsonObject | None = None
    scale_reset: Write | None = None
    sizes: tuple[SizedContainer, ...] = ()
    problem: StopError | None = None


ACTIVE: Final = "ScalingActive"
LIMITED: Final = "ScalingLimited"

WRITABLE: Final = "TargetWritable"
"""False after a write was refused for good; removed once nothing is left to write."""

RESIZABLE: Final = "PodsResizable"
"""False while the API server refuses to resize a running pod."""

AS_ORDERED: Final = "PodsAsOrdered"
"""False while pods differ from their spec in number, readiness or size."""

CONTESTED: Final = "Contested"
"""True while another writer keeps overwriting the group's writes."""

SIZED: Final = "lastSized"
"""Time of the last change of sizes, in the template or of running pods."""


def reconcile(policy: GroupPolicy, facts: GroupFacts, now: datetime) -> ReconcileResult:
    """Compute the status of the group and the writes."""
    try:
        return _scalable(policy, facts, _target(facts), now)
    except StopError as problem:
        return _stopped(facts, problem, now)
    except TooLargeError as error:
        return _stopped(facts, StopError("AutoscalerTooLarge", texts.AUTOSCALER_KEPT.format(error=error)), now)


def _target(facts: GroupFacts) -> ScalableTarget:
    desired = facts.desired
    if desired is None:
        raise StopError("InvalidSpec", facts.fault)
    reference = desired.target
    if facts.target is None:
        raise StopError("TargetMissing", texts.NOT_FOUND.format(object=reference))
    if is_terminating(facts.target):
        raise StopError("TargetLeaving", texts.TARGET_LEAVING.format(target=reference))
    if facts.rivals:
        raise StopError("TargetTaken", texts.TARGET_SHARED.format(target=reference, rivals=texts.rivals(facts.rivals)))
    # A target that scales itself is another writer of its replicas.
    if child(facts.target, "spec", "scaling"):
        raise StopError("TargetTaken", texts.TARGET_SCALES_ITSELF.format(target=reference))
    if facts.others:
        raise StopError(
            "ForeignAutoscaler",
            texts.TARGET_SCALED_BY_OTHERS.format(target=reference, others=" and ".join(facts.others)),
        )
    kind = reference.resource
    if kind in TEMPLATED and (owner := scalable_owner(facts.target)):
        raise StopError("TargetTaken", texts.TARGET_OWNED.format(target=reference, owner=owner))
    try:
        template = workload_of(facts.target, kind)
        writes = companions(facts, desired)
    except InvalidTargetError as error:
        raise StopError("TargetUnreadable", str(error)) from None
    except ForeignObjectError as error:
        raise StopError("ForeignAutoscaler", str(error)) from None
    if desired.by_agents and not desired.allows_agents:
        raise StopError("SizedByAgents", texts.SIZED_BY_AGENTS_TOO.format(target=reference))
    template = replace(template, containers=()) if desired.by_agents else template
    sizes = resized(child(facts.group, "status"), desired, template.containers)
    return ScalableTarget(desired, facts.target, kind, template, writes, sizes)


def _scalable(policy: GroupPolicy, facts: GroupFacts, target: ScalableTarget, now: datetime) -> ReconcileResult:
    status = child(facts.group, "status")
    old_status: Json = {**status, **scale_status(target)}
    unfinished = read_intent(status)
    # Finish a started scaling first.
    if unfinished is not None and not progress(unfinished, target.template).is_overtaken:
        return ReconcileResult(old_status, target.companion_writes, unfinished, sizes=target.sizes)
    # Recommendations do not reflect the last scaling yet.
    if unfinished is None and _is_pausing(status, facts.pause, now):
        return ReconcileResult(
            old_status, target.companion_writes, scale_reset=reset_scale(policy.kind, facts, target), sizes=target.sizes
        )
    workload = _workload(facts, target, now)
    try:
        decision = policy.decide(facts, workload, now)
    except InvalidSpecError as error:
        raise StopError("InvalidSpec", str(error)) from None
    killed = (texts.OUT_OF_MEMORY.format(kill=kill) for kill in workload.out_of_memory)
    explanation = (*killed, *decision.decision.explanation)
    decision = replace(decision, decision=replace(decision.decision, explanation=explanation))
    return _decided(policy.kind, facts, target, decision, now)


def _workload(facts: GroupFacts, target: ScalableTarget, now: datetime) -> Workload:
    """The target as a workload with its desired sizes, and its present pods."""
    status = child(facts.group, "status")
    refused = bool(condition_of(facts.group, RESIZABLE))
    try:
        pods = running_pods(target.target, target.kind, facts.pods, target.sizes, refused=refused)
    except ValueError as error:
        raise StopError("TargetUnreadable", texts.POD_UNREADABLE.format(target=target, error=error)) from None
    # If pods are resized in place, sizes that the template lacks may be ours, not admission defaults.
    template = target.template if target.desired.in_place else with_defaults(target.template, facts.pods)
    workload = WorkloadDecision(containers=target.sizes).applied(_with_kills(template, facts.pods, status, now))
    return replace(workload, pods=pods)


def _with_kills(workload: Workload, pods: Iterable[JsonObject], status: JsonObject, now: datetime) -> Workload:
    """Add the OOM kills of each container after the last change of sizes."""
    # A future time comes from another clock, so count every kill.
    sized_at = parse_timestamp(status.get(SIZED)) or 0.0
    sized_at = sized_at if sized_at <= now.timestamp() else 0.0
    last: dict[str, dict[str, float]] = {}
    for kill in (kill for pod in pods for kill in oom_kills(pod)):
        if kill.at > sized_at and workload.container(kill.container) is not None:
            by_pod = last.setdefault(kill.container, {})
            by_pod[kill.pod] = max(kill.at, by_pod.get(kill.pod, 0.0))
    kills = (
        OutOfMemory(name, times[-1], times)
        for name, by_pod in sorted(last.items())
        if (times := tuple(datetime.fromtimestamp(at, UTC) for at in sorted(by_pod.values())))
    )
    return replace(workload, out_of_memory=tuple(kills))


def _decided(
    kind: Resource, facts: GroupFacts, target: ScalableTarget, decided: PolicyDecision, now: datetime
) -> ReconcileResult:
    sizes, group, at = target.sizes, facts.group, timestamp(now.timestamp())
    # Drop contested writes after the decision, so that the policy's memory still learns.
    decision, paused = decided.decision, _paused_writes(facts, target)
    containers = () if paused & {"requests", "bounds"} else achievable(target.target, target.kind, decision.containers)
    replicas = None if "replicas" in paused else decision.replicas
    decision = replace(decision, replicas=replicas, containers=containers)
    # Sizes of in-place resizes are in the status.
    if target.desired.in_place and target.kind in TEMPLATED:
        sizes = merged_sizes(sizes, decision.containers)
        decision = replace(decision, containers=())
    hpa = {} if "autoscaler" in facts.paused else hpa_changes(facts.hpa, decided.hpa)
    hpa_write(facts, hpa)  # only for its TooLargeError, before anything is written
    intent = intent_of(decision, target.template, at, hpa)
    # Rounding to steps may leave no change.
    is_unwritten = decided.decision.changes and intent is None and sizes == target.sizes
    carried_over = {name: value for name, value in child(group, "status").items() if name in ("lastScaled", SIZED)}
    if sizes != target.sizes:
        carried_over[SIZED] = at
    status: Json = {
        **carried_over,
        **(decided.unwritten if is_unwritten and decided.unwritten is not None else decided.status),
        **scale_status(target),
        **written_sizes(sizes, target.template.containers),
        **({} if intent is None else {"intent": write_intent(intent)}),
        "kept": [withheld_json(withheld) for withheld in decision.withheld],
        "explanation": list(decision.explanation),
    }
    return ReconcileResult(
        full_status(group, status, conditions(group, target.desired, decided, facts.disputes), now),
        (*target.companion_writes, *managed(facts, target, decided)),
        intent,
        facts.hpa if decided.drops_hpa else None,
        reset_scale(kind, facts, target),
        sizes,
    )


def _paused_writes(facts: GroupFacts, scaled: ScalableTarget) -> frozenset[str]:
    """Writes to leave out: those that another writer overwrites, and those that a contested HPA or VPA makes itself."""
    target, paused = scaled.desired.target, facts.paused
    # An HPA that scales the target itself writes the same replicas.
    if HORIZONTAL_AUTOSCALERS.kind in paused and facts.hpa is not None:
        paused |= {"replicas"} if target_of(facts.hpa, HORIZONTAL_AUTOSCALERS) == target else set()
    if VERTICAL_AUTOSCALERS.kind in paused and facts.vpa is not None:
        paused |= {"requests"} if sizing_mode(facts.vpa) else set()
    return paused


def _is_pausing(status: JsonObject, pause: timedelta, now: datetime) -> bool:
    """Return True if the last scaling, or in-place resize, was less than ``pause`` ago."""
    times = (parse_timestamp(moment) for moment in (child(status, "lastScaled").get("at"), status.get(SIZED)))
    # A future time comes from another clock and delays nothing.
    return any(at is not None and 0 <= now.timestamp() - at < pause.total_seconds() for at in times)


def _stopped(facts: GroupFacts, problem: StopError, now: datetime) -> ReconcileResult:
    """Report the problem, keep the memory, and drop the intent, which may no longer apply."""
    status = {key: value for key, value in child(facts.group, "status").items() if key != "intent"}
    able_condition = condition(facts.group, ABLE, "False", problem.reason, problem.message)
    others = [existing for existing in items(status, "conditions") if text(existing, "type") != ABLE]
    return ReconcileResult(full_status(facts.group, status, [able_condition, *others], now), problem=problem)


def scale_status(target: ScalableTarget) -> Json:
    """Status for the group's ``/scale``, from which an HPA that targets the group reads replicas and pods."""
    # A VM has no selector.
    selector = {} if target.kind is VIRTUAL_MACHINES else {"targetSelector": selector_of(target.target)}
    return {"replicas": target.template.replicas, **selector}


def resized(
    status: JsonObject, desired: DesiredState, template: tuple[SizedContainer, ...]
) -> tuple[SizedContainer, ...]:
    """Sizes to which running pods were resized; empty once the template has changed."""
    if not desired.in_place:
        return ()
    try:
        sizes, before = (
            tuple(read_container(container, "status.sizes") for container in items(status, "sizes", name))
            for name in ("inPlace", "template")
        )
    except ValueError:
        return ()
    # A changed template creates pods of other sizes.
    return sizes if before == template else ()


def merged_sizes(old: tuple[SizedContainer, ...], new: tuple[SizedContainer, ...]) -> tuple[SizedContainer, ...]:
    """``old`` updated by ``new``, by name."""
    merged = {container.name: container for container in old}
    for container in new:
        merged[container.name] = container.over(merged.get(container.name))
    return tuple(merged[name] for name in sorted(merged))


def written_sizes(sizes: tuple[SizedContainer, ...], template: tuple[SizedContainer, ...]) -> Json:
    """Status fields with the sizes to which running pods were resized, and the template at that time."""
    parts = {"inPlace": sizes, "template": template}
    written = {name: [write_container(container) for container in part] for name, part in parts.items()}
    return {"sizes": written} if sizes else {}


def withheld_json(change: WithheldChange) -> Json:
    """A withheld change in human-readable form (S1.11)."""
    return {
        "subject": change.subject,
        "wanted": str(change.desired),
        "kept": None if change.current is None else str(change.current),
        "rule": change.rule.value,
        "message": change.message,
    }


def conditions(
    group: JsonObject, desired: DesiredState, decided: PolicyDecision, disputes: Sequence[str] = ()
) -> list[Json]:
    """Conditions of a group that scales. ``disputes`` are sentences on disputes with other writers."""
    withheld = decided.decision.withheld
    active = ("False", "NoRecommendation", decided.waits_for) if decided.waits_for else ("True", "Recommended", "")
    limited = ("False", "AsWanted", "")
    if withheld:
        limited = ("True", withheld[0].rule.value, f"{withheld[0].subject}: {withheld[0].message}")
    return [
        condition(group, ABLE, "True", "TargetFound", texts.SCALES.format(target=desired.target)),
        condition(group, ACTIVE, *active),
        condition(group, LIMITED, *limited),
        *([condition(group, AS_ORDERED, "False", "PodsDiffer", decided.pods_differ)] if decided.pods_differ else []),
        *(
            condition(group, kind, "True", reason, message)
            for kind, reason, message in (*desired.remarks, *decided.remarks)
        ),
        *([condition(group, CONTESTED, "True", "Overwritten", "; ".join(disputes))] if disputes else []),
        # Keep the conditions that the controller sets after writes.
        *(
            existing
            for existing in items(group, "status", "conditions")
            if text(existing, "type") in ((WRITABLE, RESIZABLE) if desired.in_place else (WRITABLE,))
        ),
    ]


def full_status(group: JsonObject, status: Json, conditions: list[Json], now: datetime) -> Json:
    """Complete ``status`` with these conditions and the group's generation."""
    generation = integer(group, "metadata", "generation")
    body: Json = {**status, "observedGeneration": generation, "conditions": conditions}
    return stamped(body, timestamp(now.timestamp()))
