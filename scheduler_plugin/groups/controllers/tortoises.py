"""A Tortoise behind the interface of all groups: the HPA that it manages, its VPA, or a VM's floor (S3.1, S3.7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from protocol.floors import Floor, decode_floor, encode_floor
from protocol.kubernetes.objects import JsonObject, annotations_of, child, name_of
from protocol.kubernetes.resources import TORTOISES, Resource
from protocol.names import ANNOTATION_FLOOR
from protocol.virtual_machine import parse_virtual_machine
from scheduler_plugin.groups.controllers.desired_state import (
    Companion,
    DesiredObjects,
    InvalidSpecError,
    NewHpa,
    PolicyDecision,
    PolicyInput,
)
from scheduler_plugin.groups.core.tortoise.configuration import Configuration
from scheduler_plugin.groups.core.tortoise.decide import TortoiseDecision, decide
from scheduler_plugin.groups.core.tortoise.floor import renewed, wanted_floor
from scheduler_plugin.groups.core.tortoise.tortoise_memory import ObservedAutoscalers
from scheduler_plugin.groups.core.workload import VerticalRecommendation, Workload, WorkloadDecision
from scheduler_plugin.groups.objects.autoscalers import (
    metrics_missing_since,
    read_autoscaler,
    vertical_of,
    vpa_spec,
    why_silent,
    write_autoscaler,
)
from scheduler_plugin.groups.objects.targets import InvalidTargetError, read_reference
from scheduler_plugin.groups.objects.tortoise.manifest import InvalidTortoiseError, Tortoise, parse_tortoise
from scheduler_plugin.groups.objects.tortoise.tortoise_status import read_memory, read_peaks, write_peaks, write_status


class TortoisePolicy:
    """``GroupPolicy`` of Tortoises. ``configuration`` gives the cluster's global configuration as it is now."""

    def __init__(self, configuration: Callable[[], Configuration]) -> None:
        self._configuration = configuration

    @property
    def kind(self) -> Resource:
        """``tortoises.autoscaling.mercari.com``."""
        return TORTOISES

    def arrangement(self, group: JsonObject) -> DesiredObjects:
        """An HPA, attached or of its own, that scales the target, and a VPA of its own; a VM has neither."""
        tortoise = self._parsed(group)
        reference = _reference(tortoise)
        try:
            target = read_reference(reference, "spec.targetRefs.scaleTargetRef")
        except InvalidTargetError as error:
            raise InvalidSpecError(str(error)) from None
        if tortoise.target.is_vm:
            return DesiredObjects(target, hpa_asks_group=False)
        # A Tortoise makes its own HPA only while its mode is not Off and something scales horizontally.
        hpa = Companion(tortoise.hpa, may_be_missing=tortoise.spec.autoscaler is None)
        vpa = Companion(f"tortoise-monitor-{name_of(group).name}", vpa_spec({}, reference))
        return DesiredObjects(target, hpa, vpa, hpa_asks_group=False, remarks=tuple(_remarks(tortoise)))

    def rule(self, situation: PolicyInput) -> PolicyDecision:
        """Combine the memory of its slots and the VPA's recommendation."""
        tortoise = self._parsed(situation.group)
        return self._floored(tortoise, situation) if tortoise.target.is_vm else self._scaled(tortoise, situation)

    def _parsed(self, group: JsonObject) -> Tortoise:
        try:
            return parse_tortoise(group, self._configuration())
        except InvalidTortoiseError as error:
            raise InvalidSpecError(str(error)) from None

    def _scaled(self, found: Tortoise, situation: PolicyInput) -> PolicyDecision:
        status, hpa, configuration = child(situation.group, "status"), situation.hpa, found.spec.configuration
        autoscaler = None if hpa is None else read_autoscaler(hpa)
        vertical, missing = _recommended(situation)
        observed = ObservedAutoscalers(autoscaler, vertical, None if hpa is None else metrics_missing_since(hpa))
        memory = read_memory(status, configuration)
        decided, after = decide(found.spec, _reported(situation), observed, memory, situation.now)
        changes = decided.autoscaler is not None and decided.autoscaler != autoscaler
        return PolicyDecision(
            decided.decision,
            status=write_status(after, decided),
            hpa=write_autoscaler(decided.autoscaler) if changes and decided.autoscaler is not None else {},
            new_hpa=_new_hpa(found, decided) if hpa is None else None,
            drops_hpa=decided.autoscaler is None and found.spec.autoscaler is None,
            waits_for=missing,
            remarks=(("OutOfMemory", "NotAnswered", "; ".join(decided.unanswered)),) if decided.unanswered else (),
        )

    def _floored(self, found: Tortoise, situation: PolicyInput) -> PolicyDecision:
        status, configuration = child(situation.group, "status"), found.spec.configuration
        vm = parse_virtual_machine(situation.target)
        peaks = read_peaks(status, configuration).learned(vm.use, configuration.layout, situation.now)
        size = wanted_floor(peaks, found.spec.mode, vm.bounds, situation.now)
        floor = renewed(_floor(situation.target), size, situation.now)
        floor_text = "no floor" if floor is None else f"a floor of {floor.size}"
        return PolicyDecision(
            WorkloadDecision(explanation=(f"{floor_text}, from what this hour needed before",)),
            status=write_peaks(peaks, found.spec.mode),
            annotations={ANNOTATION_FLOOR: None if floor is None else encode_floor(floor)},
        )


def _remarks(found: Tortoise) -> Iterator[tuple[str, str, str]]:
    """Notes for people on an object without errors."""
    if ignored := found.spec.configuration.ignored:
        yield "ConfigurationIgnored", "NoEffect", f"the global configuration has {', '.join(ignored)}: no effect here"


def _reported(situation: PolicyInput) -> Workload:
    """The workload; if its controller has never reported a status, all replicas count as ready."""
    workload = situation.workload
    return workload if child(situation.target, "status") else replace(workload, ready=workload.replicas)


def _reference(found: Tortoise) -> dict[str, object]:
    return {"apiVersion": found.target.api_version, "kind": found.target.kind, "name": found.target.name}


def _new_hpa(found: Tortoise, decided: TortoiseDecision) -> NewHpa | None:
    """The Tortoise's own HPA, if there should be one; an attached one belongs to others and is never made."""
    if decided.autoscaler is None or found.spec.autoscaler is not None:
        return None
    behavior = {"behavior": found.behavior} if found.behavior else {}
    spec = {**write_autoscaler(decided.autoscaler), **behavior, "scaleTargetRef": _reference(found)}
    return NewHpa(spec, found.deletes_all)


def _recommended(situation: PolicyInput) -> tuple[VerticalRecommendation | None, str]:
    """The VPA's recommendation, or the reason why it is not used."""
    try:
        recommendation = None if situation.vpa is None else vertical_of(situation.vpa)
    except ValueError as error:
        return None, str(error)
    why = "" if situation.vpa is None else why_silent(situation.vpa)
    return recommendation, "" if recommendation is not None else why or "the VPA recommends nothing yet"


def _floor(vm: JsonObject) -> Floor | None:
    """The floor that the VM has; None if it has none, or one that cannot be read."""
    try:
        return decode_floor(annotations_of(vm)[ANNOTATION_FLOOR])
    except (KeyError, ValueError):
        return None
