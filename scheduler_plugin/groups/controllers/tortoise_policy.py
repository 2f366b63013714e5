"""The policy of Tortoises: an HPA and a VPA that it manages, or the floor of a VM (S3.1, S3.7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from protocol.floors import encode_floor
from protocol.kubernetes.objects import Json, JsonObject, child, name_of
from protocol.kubernetes.resources import TORTOISES, Resource
from protocol.names import ANNOTATION_FLOOR
from protocol.virtual_machine import parse_virtual_machine
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.controllers.policies import Companion, DesiredState, GroupFacts, PolicyDecision
from scheduler_plugin.groups.core.tortoise.configuration import Configuration
from scheduler_plugin.groups.core.tortoise.decide import TortoiseDecision
from scheduler_plugin.groups.core.tortoise.decide import decide as decide_tortoise
from scheduler_plugin.groups.core.tortoise.floor import desired_floor, renewed
from scheduler_plugin.groups.core.tortoise.tortoise_memory import ObservedAutoscalers
from scheduler_plugin.groups.core.workload import VerticalRecommendation, Workload, WorkloadDecision
from scheduler_plugin.groups.objects.autoscalers import (
    metrics_missing_since,
    read_autoscaler,
    unusable_reason,
    vertical_of,
    vpa_spec,
    write_autoscaler,
)
from scheduler_plugin.groups.objects.instances import floor_in
from scheduler_plugin.groups.objects.targets import read_reference
from scheduler_plugin.groups.objects.tortoise.manifest import Tortoise, parse_tortoise
from scheduler_plugin.groups.objects.tortoise.tortoise_status import read_memory, read_peaks, write_peaks, write_status


class TortoisePolicy:
    """``GroupPolicy`` of Tortoises. ``configuration`` returns the present global configuration."""

    kind: Resource = TORTOISES

    def __init__(self, configuration: Callable[[], Configuration]) -> None:
        self._configuration = configuration

    def desired(self, group: JsonObject) -> DesiredState:
        """An HPA that scales the target, attached or its own, and its own VPA; neither for a VM."""
        tortoise = parse_tortoise(group, self._configuration())
        target = read_reference(tortoise.target, "spec.targetRefs.scaleTargetRef")
        if tortoise.is_vm:
            return DesiredState(target, hpa_targets_group=False)
        # Its own HPA exists only if the mode is not Off and something scales horizontally.
        hpa = Companion(
            tortoise.hpa, may_be_missing=tortoise.spec.autoscaler is None, deleted_with_group=tortoise.deletes_all
        )
        vpa = Companion(f"tortoise-monitor-{name_of(group).name}", vpa_spec({}, tortoise.target))
        ignored = texts.IGNORED.format(names=", ".join(tortoise.spec.configuration.ignored))
        remarks = (("ConfigurationIgnored", "NoEffect", ignored),) if tortoise.spec.configuration.ignored else ()
        return DesiredState(target, hpa, vpa, hpa_targets_group=False, allows_agents=False, remarks=remarks)

    def decide(self, facts: GroupFacts, workload: Workload, now: datetime) -> PolicyDecision:
        """Decide from the numbers of the time slots and the VPA's recommendation."""
        tortoise = parse_tortoise(facts.group, self._configuration())
        return _floored(tortoise, facts, now) if tortoise.is_vm else _scaled(tortoise, facts, workload, now)


def _scaled(tortoise: Tortoise, facts: GroupFacts, workload: Workload, now: datetime) -> PolicyDecision:
    hpa, configuration = facts.hpa, tortoise.spec.configuration
    autoscaler = None if hpa is None else read_autoscaler(hpa)
    vertical, missing = _recommended(facts.vpa)
    observed = ObservedAutoscalers(autoscaler, vertical, None if hpa is None else metrics_missing_since(hpa))
    # While its controller has not written a status, the target counts as ready.
    if not child(facts.target or {}, "status"):
        workload = replace(workload, ready=workload.replicas)
    memory = read_memory(child(facts.group, "status"), configuration)
    decided, after = decide_tortoise(tortoise.spec, workload, observed, memory, now)
    changes = decided.autoscaler is not None and decided.autoscaler != autoscaler
    return PolicyDecision(
        decided.decision,
        status=write_status(after, decided),
        hpa=write_autoscaler(decided.autoscaler) if changes and decided.autoscaler is not None else {},
        new_hpa=_new_hpa(tortoise, decided) if hpa is None else None,
        drops_hpa=decided.autoscaler is None and tortoise.spec.autoscaler is None,
        waits_for=missing,
        remarks=(("OutOfMemory", "NotAnswered", "; ".join(decided.unresolved_kills)),)
        if decided.unresolved_kills
        else (),
    )


def _floored(tortoise: Tortoise, facts: GroupFacts, now: datetime) -> PolicyDecision:
    configuration, target = tortoise.spec.configuration, facts.target or {}
    vm = parse_virtual_machine(target)
    peaks = read_peaks(child(facts.group, "status"), configuration).learned(vm.use, configuration.layout, now)
    floor = renewed(floor_in(target), desired_floor(peaks, tortoise.spec.mode, vm.bounds, now), now)
    explanation = texts.NO_FLOOR if floor is None else texts.FLOOR.format(size=floor.size)
    return PolicyDecision(
        WorkloadDecision(explanation=(explanation,)),
        status=write_peaks(peaks, tortoise.spec.mode),
        annotations={ANNOTATION_FLOOR: None if floor is None else encode_floor(floor)},
    )


def _new_hpa(tortoise: Tortoise, decided: TortoiseDecision) -> Json | None:
    """Spec of the Tortoise's own HPA, if it needs one; an attached one is never created."""
    if decided.autoscaler is None or tortoise.spec.autoscaler is not None:
        return None
    behavior = {"behavior": tortoise.behavior} if tortoise.behavior else {}
    return {**write_autoscaler(decided.autoscaler), **behavior, "scaleTargetRef": tortoise.target}


def _recommended(vpa: JsonObject | None) -> tuple[VerticalRecommendation | None, str]:
    """The VPA's recommendation, and why there is none, else an empty text."""
    try:
        recommendation = None if vpa is None else vertical_of(vpa)
    except ValueError as error:
        return None, str(error)
    why = "" if vpa is None else unusable_reason(vpa)
    return recommendation, "" if recommendation is not None else why or texts.VPA_SILENT
