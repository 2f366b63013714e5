"""The policies of the kinds of groups, each pure: an Hvpa with its HPA and VPA, and what both recommend (S1.1, S1.10);
a Tortoise with the HPA that it manages and its VPA, or a floor of a VM (S3.1, S3.7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import combinations
from typing import Final

from protocol.floors import Floor, decode_floor, encode_floor
from protocol.kubernetes.objects import Json, JsonObject, annotations_of, child, name_of, uid_of, whole
from protocol.kubernetes.resources import HVPAS, TORTOISES, Resource
from protocol.names import ANNOTATION_FLOOR
from protocol.virtual_machine import parse_virtual_machine
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.controllers.desired_state import (
    Companion,
    DesiredState,
    GroupFacts,
    PolicyDecision,
)
from scheduler_plugin.groups.core.hvpa.policy import decide as decide_hvpa
from scheduler_plugin.groups.core.hvpa.rules import HvpaMode
from scheduler_plugin.groups.core.hvpa.spec import HvpaSpec, ScalingTimes
from scheduler_plugin.groups.core.tortoise.configuration import Configuration
from scheduler_plugin.groups.core.tortoise.decide import TortoiseDecision
from scheduler_plugin.groups.core.tortoise.decide import decide as decide_tortoise
from scheduler_plugin.groups.core.tortoise.floor import renewed, wanted_floor
from scheduler_plugin.groups.core.tortoise.tortoise_memory import ObservedAutoscalers
from scheduler_plugin.groups.core.workload import Recommendations, VerticalRecommendation, Workload, WorkloadDecision
from scheduler_plugin.groups.objects.autoscalers import (
    horizontal_of,
    hpa_spec,
    metrics_missing_since,
    read_autoscaler,
    vertical_of,
    vpa_spec,
    why_blind,
    why_silent,
    write_autoscaler,
)
from scheduler_plugin.groups.objects.hvpa.decoding import Hvpa, decode
from scheduler_plugin.groups.objects.hvpa.memory_fields import memory_json, memory_of
from scheduler_plugin.groups.objects.targets import read_reference
from scheduler_plugin.groups.objects.tortoise.manifest import Tortoise, parse_tortoise
from scheduler_plugin.groups.objects.tortoise.tortoise_status import read_memory, read_peaks, write_peaks, write_status

REMEMBERED: Final = 10_000
"""At most this many decoded objects are cached."""

Span = tuple[int, int]
"""A range of replica counts, both ends included."""


class HvpaPolicy:
    """``GroupPolicy`` of Hvpas. Decoded specs are cached by generation, because decoding is slow."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._read: dict[str, tuple[int, Hvpa]] = {}

    @property
    def kind(self) -> Resource:
        """``hvpas.autoscaling.k8s.io``."""
        return HVPAS

    def desired(self, group: JsonObject) -> DesiredState:
        """An HPA and a VPA with the Hvpa's name, each if the Hvpa has a template for it."""
        hvpa, name = self._decoded(group), name_of(group).name
        return DesiredState(
            read_reference(hvpa.target, "spec.targetRef"),
            None if hvpa.hpa is None else Companion(name, hpa_spec(hvpa.hpa, group)),
            None if hvpa.vpa is None else Companion(name, vpa_spec(hvpa.vpa, hvpa.target)),
            in_place=hvpa.in_place,
            sizes=hvpa.vpa is not None or hvpa.spec.mode is HvpaMode.EFFECTIVE_INTERVALS,
            remarks=tuple(_overlapping(hvpa.spec)),
        )

    def decide(self, facts: GroupFacts, workload: Workload, now: datetime) -> PolicyDecision:
        """Combine both recommendations. One that cannot be decoded counts as missing."""
        hvpa, before = self._decoded(facts.group), memory_of(child(facts.group, "status"))
        recommendations, missing = _recommendations(hvpa, facts)
        decision, after = decide_hvpa(hvpa.spec, workload, recommendations, before, now)
        # For a decision that rounds to nothing: without a scaling the delays must not start.
        unscaled = replace(after, last_up=before.last_up, last_down=before.last_down)
        mode: Json = {"mode": hvpa.spec.mode.value}
        statuses = ({**mode, **_written(after)}, {**mode, **_written(unscaled)})
        differ = "" if workload.pods is None else workload.pods.difference
        return PolicyDecision(decision, *statuses, waits_for=missing, pods_differ=differ)

    def _decoded(self, group: JsonObject) -> Hvpa:
        uid, generation = uid_of(group), whole(group, "metadata", "generation")
        cached = self._read.get(uid)
        # A spec never changes without its generation.
        if cached is not None and cached[0] == generation:
            return cached[1]
        hvpa = decode(group)
        # Starting over is simpler than eviction: each object is decoded once more.
        if len(self._read) >= self._remembered:
            self._read.clear()
        self._read[uid] = (generation, hvpa)
        return hvpa


def _written(memory: ScalingTimes) -> Json:
    return {name: value for name, value in memory_json(memory).items() if value is not None}


def _recommendations(found: Hvpa, facts: GroupFacts) -> tuple[Recommendations, str]:
    """Recommendations of the HPA and the VPA, and what is missing if there are none."""
    hpa, vpa = facts.hpa, facts.vpa
    horizontal = None if hpa is None or found.hpa is None else horizontal_of(hpa)
    vertical, fault = None, ""
    if vpa is not None and found.vpa is not None:
        try:
            vertical = vertical_of(vpa)
        except ValueError as error:
            fault = str(error)
    if horizontal is not None or vertical is not None:
        return Recommendations(horizontal, vertical), ""
    reasons = (fault, "" if hpa is None else why_blind(hpa), "" if vpa is None else why_silent(vpa))
    why = "; ".join(reason for reason in reasons if reason)
    return Recommendations(), why or texts.NOTHING_YET


def _overlapping(spec: HvpaSpec) -> Iterator[tuple[str, str, str]]:
    """Remarks on a valid spec."""
    shared = next(overlaps([interval.within(spec.replicas) for interval in spec.intervals]), None)
    if shared is not None:
        (first, first_end), (second, second_end) = shared
        message = texts.INTERVALS_OVERLAP.format(one=f"{first}-{first_end}", other=f"{second}-{second_end}")
        yield "IntervalsOverlap", "FirstMatchWins", message


def overlaps(intervals: Sequence[Span]) -> Iterator[tuple[Span, Span]]:
    """Every two intervals that share a number of replicas.

    >>> list(overlaps([(1, 2), (3, 7), (7, 10)]))
    [((3, 7), (7, 10))]
    """
    for first, second in combinations(intervals, 2):
        if first[0] <= second[1] and second[0] <= first[1]:
            yield first, second


class TortoisePolicy:
    """``GroupPolicy`` of Tortoises. ``configuration`` gives the cluster's global configuration as it is now."""

    def __init__(self, configuration: Callable[[], Configuration]) -> None:
        self._configuration = configuration

    @property
    def kind(self) -> Resource:
        """``tortoises.autoscaling.mercari.com``."""
        return TORTOISES

    def desired(self, group: JsonObject) -> DesiredState:
        """An HPA, attached or of its own, that scales the target, and a VPA of its own; a VM has neither."""
        tortoise = parse_tortoise(group, self._configuration())
        target = read_reference(tortoise.target, "spec.targetRefs.scaleTargetRef")
        if tortoise.is_vm:
            return DesiredState(target, hpa_asks_group=False)
        # A Tortoise makes its own HPA only while its mode is not Off and something scales horizontally.
        hpa = Companion(tortoise.hpa, may_be_missing=tortoise.spec.autoscaler is None, goes_along=tortoise.deletes_all)
        vpa = Companion(f"tortoise-monitor-{name_of(group).name}", vpa_spec({}, tortoise.target))
        return DesiredState(target, hpa, vpa, hpa_asks_group=False, remarks=tuple(_remarks(tortoise)))

    def decide(self, facts: GroupFacts, workload: Workload, now: datetime) -> PolicyDecision:
        """Combine the memory of its slots and the VPA's recommendation."""
        tortoise = parse_tortoise(facts.group, self._configuration())
        return _floored(tortoise, facts, now) if tortoise.is_vm else _scaled(tortoise, facts, workload, now)


def _scaled(tortoise: Tortoise, facts: GroupFacts, workload: Workload, now: datetime) -> PolicyDecision:
    hpa, configuration = facts.hpa, tortoise.spec.configuration
    autoscaler = None if hpa is None else read_autoscaler(hpa)
    vertical, missing = _recommended(facts.vpa)
    observed = ObservedAutoscalers(autoscaler, vertical, None if hpa is None else metrics_missing_since(hpa))
    # A workload whose controller has never reported a status counts as ready.
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
        remarks=(("OutOfMemory", "NotAnswered", "; ".join(decided.unanswered)),) if decided.unanswered else (),
    )


def _floored(tortoise: Tortoise, facts: GroupFacts, now: datetime) -> PolicyDecision:
    configuration, target = tortoise.spec.configuration, facts.target or {}
    vm = parse_virtual_machine(target)
    peaks = read_peaks(child(facts.group, "status"), configuration).learned(vm.use, configuration.layout, now)
    floor = renewed(_floor(target), wanted_floor(peaks, tortoise.spec.mode, vm.bounds, now), now)
    explanation = texts.NO_FLOOR if floor is None else texts.FLOOR.format(size=floor.size)
    return PolicyDecision(
        WorkloadDecision(explanation=(explanation,)),
        status=write_peaks(peaks, tortoise.spec.mode),
        annotations={ANNOTATION_FLOOR: None if floor is None else encode_floor(floor)},
    )


def _remarks(found: Tortoise) -> Iterator[tuple[str, str, str]]:
    """Notes for people on an object without errors."""
    if ignored := found.spec.configuration.ignored:
        yield "ConfigurationIgnored", "NoEffect", texts.IGNORED.format(names=", ".join(ignored))


def _new_hpa(found: Tortoise, decided: TortoiseDecision) -> Json | None:
    """Spec of the Tortoise's own HPA, if there should be one; an attached one belongs to others and is never made."""
    if decided.autoscaler is None or found.spec.autoscaler is not None:
        return None
    behavior = {"behavior": found.behavior} if found.behavior else {}
    return {**write_autoscaler(decided.autoscaler), **behavior, "scaleTargetRef": found.target}


def _recommended(vpa: JsonObject | None) -> tuple[VerticalRecommendation | None, str]:
    """The VPA's recommendation, or the reason why it is not used."""
    try:
        recommendation = None if vpa is None else vertical_of(vpa)
    except ValueError as error:
        return None, str(error)
    why = "" if vpa is None else why_silent(vpa)
    return recommendation, "" if recommendation is not None else why or texts.VPA_SILENT


def _floor(vm: JsonObject) -> Floor | None:
    """The floor that the VM has; None if it has none, or one that cannot be read."""
    try:
        return decode_floor(annotations_of(vm)[ANNOTATION_FLOOR])
    except (KeyError, ValueError):
        return None
