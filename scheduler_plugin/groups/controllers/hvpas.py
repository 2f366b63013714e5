"""An Hvpa behind the interface of all groups: its HPA and VPA, and what both recommend (S1.1, S1.10)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import combinations
from typing import Final

from protocol.kubernetes.objects import Json, JsonObject, child, name_of, uid_of, whole
from protocol.kubernetes.resources import HVPAS, Resource
from scheduler_plugin.groups.controllers.desired_state import (
    Companion,
    DesiredState,
    GroupFacts,
    InvalidSpecError,
    PolicyDecision,
)
from scheduler_plugin.groups.core.hvpa.modes import HvpaMode
from scheduler_plugin.groups.core.hvpa.policy import decide as decide_hvpa
from scheduler_plugin.groups.core.hvpa.spec import HvpaSpec, ScalingTimes
from scheduler_plugin.groups.core.workload import Recommendations, Workload
from scheduler_plugin.groups.objects.autoscalers import (
    horizontal_of,
    hpa_spec,
    vertical_of,
    vpa_spec,
    why_blind,
    why_silent,
)
from scheduler_plugin.groups.objects.hvpa.decoding import Hvpa, HvpaError, decode
from scheduler_plugin.groups.objects.hvpa.memory_fields import memory_json, memory_of
from scheduler_plugin.groups.objects.targets import InvalidTargetError, read_reference

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
        try:
            target = read_reference(hvpa.target, "spec.targetRef")
        except InvalidTargetError as error:
            raise InvalidSpecError(str(error)) from None
        return DesiredState(
            target,
            None if hvpa.hpa is None else Companion(name, hpa_spec(hvpa.hpa, group)),
            None if hvpa.vpa is None else Companion(name, vpa_spec(hvpa.vpa, hvpa.target)),
            in_place=hvpa.in_place,
            sizes=hvpa.vpa is not None or hvpa.spec.mode is HvpaMode.EFFECTIVE_INTERVALS,
            remarks=tuple(_remarks(hvpa.spec)),
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
        try:
            hvpa = decode(group)
        except HvpaError as error:
            raise InvalidSpecError(str(error)) from None
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
    return Recommendations(), why or "neither the HPA nor the VPA recommends anything yet"


def _remarks(spec: HvpaSpec) -> Iterator[tuple[str, str, str]]:
    """Remarks on a valid spec."""
    shared = next(overlaps([interval.within(spec.replicas) for interval in spec.intervals]), None)
    if shared is not None:
        (first, first_end), (second, second_end) = shared
        message = (
            f"at replicas in both {first}-{first_end} and {second}-{second_end} the interval that is listed first holds"
        )
        yield "IntervalsOverlap", "FirstMatchWins", message


def overlaps(intervals: Sequence[Span]) -> Iterator[tuple[Span, Span]]:
    """Every two intervals that share a number of replicas.

    >>> list(overlaps([(1, 2), (3, 7), (7, 10)]))
    [((3, 7), (7, 10))]
    """
    for first, second in combinations(intervals, 2):
        if first[0] <= second[1] and second[0] <= first[1]:
            yield first, second
