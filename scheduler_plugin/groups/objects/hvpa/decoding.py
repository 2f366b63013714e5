"""``hvpas.autoscaling.k8s.io/v1alpha1``: the document's manifests, and the original controller's, as one spec (S1.10).

Rules that hold here:

- Whatever cannot be used raises ``InvalidSpecError`` with one sentence for each part that is wrong; then nothing is
  scaled.
- The fields ``mode``, ``mixed`` and ``updateMode`` are this project's own; the document names the modes without fields.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from functools import partial
from typing import Final, TypeVar

from protocol.kubernetes.objects import Json, JsonObject, child
from protocol.names import VM_KIND
from protocol.units import Seconds
from scheduler_plugin.groups.core.hvpa.rules import (
    NO_PARAMS,
    ChangeParams,
    HvpaMode,
    Interval,
    Mixed,
    Preference,
    ResourceChangeParams,
    stages,
)
from scheduler_plugin.groups.core.hvpa.spec import (
    DEFAULT_OVERLAP,
    AxisRules,
    DirectionRules,
    EffectiveIntervals,
    HvpaSpec,
    ScalingInterval,
    UpdateMode,
)
from scheduler_plugin.groups.core.workload import ReplicaBounds
from scheduler_plugin.groups.objects.hvpa.lenient_fields import MOST_REPLICAS, FieldError, Fields, Parts
from scheduler_plugin.groups.objects.hvpa.part_fields import (
    autoscaler,
    axis_rules,
    both_params,
    container_policies,
    hpa_template,
    maintenance_window,
    utilization_resources,
    vpa_template,
)
from scheduler_plugin.groups.objects.targets import InvalidSpecError

ANY_REPLICAS: Final = ReplicaBounds(1, MOST_REPLICAS)
"""Without an HPA: replicas stay as they are."""

SETTLE: Final = Seconds(300.0)
"""HPA's own window: how long less must have been enough if resizing restarts nothing."""

SETTLE_RESTARTING: Final = Seconds(900.0)
"""The same if it does: in replay, noise of seconds resizes 67 replicas an hour without it, 42 with five minutes."""

_STAGE_ENDS: Final = ("stageTwoStartReplicaCount", "stageTwoStopReplicaCount")
_STAGE_WEIGHTS: Final = ("firstStageVpaWeight", "secondStageVpaWeight", "thirdStageVpaWeight")
_INTERVALS: Final = "weightBasedScalingIntervals"
_WHOLE_MEMORY: Final = ResourceChangeParams(memory=ChangeParams(percentage=Fraction(100)))


def replica_bounds(horizontal: Fields | None) -> ReplicaBounds:
    """The HPA's bounds. Raises ``FieldError``."""
    if horizontal is None:
        return ANY_REPLICAS
    least, most = horizontal.count("minReplicas", 1) or 1, horizontal.count("maxReplicas", 1)
    if most is None or most < least:
        raise horizontal.error("maxReplicas", f"a whole number from minReplicas ({least}) on")
    return ReplicaBounds(least, most)


def mode_of(spec: Fields, horizontal: Fields | None, vertical: Fields | None) -> HvpaMode:
    """The mode that is named, or the one that the other fields mean. Raises ``FieldError``."""
    mode = spec.choice("mode", HvpaMode) or _meant(spec, horizontal, vertical)
    if horizontal is None and mode in {HvpaMode.HPA_PREFERRED, HvpaMode.EFFECTIVE_INTERVALS}:
        raise spec.error("hpaTemplate", f"an object with maxReplicas, which mode {mode} needs")
    # With both kinds of targets the HPA's count is neither a total need nor a minimum.
    if mode is HvpaMode.EFFECTIVE_INTERVALS and horizontal is not None and utilization_resources(horizontal) is None:
        raise FieldError(f"{horizontal.at('metrics')}: expected utilization or other targets in mode {mode}, got both")
    return mode


def _meant(spec: Fields, horizontal: Fields | None, vertical: Fields | None) -> HvpaMode:
    # Only the weight-based mode has these fields.
    if spec.has(_INTERVALS, *_STAGE_ENDS, *_STAGE_WEIGHTS):
        return HvpaMode.WEIGHT_BASED
    if horizontal is None or vertical is None:
        return HvpaMode.VPA_BIASED if horizontal is None else HvpaMode.HPA_BIASED
    return HvpaMode.EFFECTIVE_INTERVALS


def weight_intervals(spec: Fields, bounds: ReplicaBounds) -> tuple[Interval, ...]:
    """The intervals with their weights, from the list or from three stages. Raises ``FieldError``."""
    listed = spec.each(_INTERVALS)
    if not listed:
        return _stages(spec, bounds) if spec.has(*_STAGE_ENDS, *_STAGE_WEIGHTS) else ()
    if spec.has(*_STAGE_ENDS, *_STAGE_WEIGHTS):
        raise FieldError(f"{spec.at(_INTERVALS)}: expected nothing beside stages")
    weights = _weights([(interval, "vpaWeight") for interval in listed])
    intervals = tuple(
        # 0 counts as left out.
        Interval(weight, interval.count("startReplicaCount") or None, interval.count("lastReplicaCount") or None)
        for interval, weight in zip(listed, weights, strict=True)
    )
    _refuse_backwards(listed, intervals, bounds)
    return intervals


def _weights(fields: list[tuple[Fields, str]]) -> list[Fraction]:
    """Weights from 0 to 1, or all of them percentages, as in later versions of the original. Raises ``FieldError``.

    A fraction beside a percentage is refused: nobody means half a percent.
    """
    weights = [source.number(name, 100) or Fraction(0) for source, name in fields]
    # None is above 1, so they are no percentages.
    if max(weights, default=Fraction(0)) <= 1:
        return weights
    for (source, name), weight in zip(fields, weights, strict=True):
        if 0 < weight < 1:
            raise source.error(name, "a percentage like the other weights, or all of them from 0 to 1")
    return [weight / 100 for weight in weights]


def _stages(spec: Fields, bounds: ReplicaBounds) -> tuple[Interval, ...]:
    start, stop = (spec.count(name) or None for name in _STAGE_ENDS)
    if start is not None and stop is not None and stop < start:
        raise spec.error(_STAGE_ENDS[1], f"at least {_STAGE_ENDS[0]} ({start})")
    return stages(bounds, start, stop, _weights([(spec, name) for name in _STAGE_WEIGHTS]))


def _refuse_backwards(listed: list[Fields], intervals: tuple[Interval, ...], bounds: ReplicaBounds) -> None:
    """Intervals may overlap, the first that matches wins; none may end before it begins."""
    for source, interval in zip(listed, intervals, strict=True):
        start, last = interval.within(bounds)
        if last < start:
            raise FieldError(
                f"{source.path}.lastReplicaCount: expected at least startReplicaCount ({start}), got {last}"
            )


def mixed_of(spec: Fields) -> Mixed:
    """Mixed mode's thresholds and preference. Raises ``FieldError``."""
    mixed, plain = spec.fields("mixed"), Mixed()
    replicas = mixed.count("replicasThreshold")
    return Mixed(
        plain.x if replicas is None else replicas,
        mixed.amounts("requestsThreshold").over(plain.y),
        mixed.choice("preference", Preference) or plain.preference,
    )


def settle_of(spec: Fields, mode: HvpaMode, restarts: bool) -> Seconds:
    """Time for which less must have been enough before effective intervals shrink: ``scaleDownDelay``, or the default.

    ``restarts``: a resize restarts replicas, so reacting to noise costs more than keeping the size for longer.
    """
    if mode is not HvpaMode.EFFECTIVE_INTERVALS:
        return Seconds(0.0)
    delay = spec.duration("scaleDownDelay")
    if delay is not None:
        return delay
    return SETTLE_RESTARTING if restarts else SETTLE


def effective_of(spec: Fields, is_vm_group: bool) -> EffectiveIntervals:
    """The effective intervals. A group of VMs has its whole memory in each replica unless it says otherwise."""
    intervals = tuple(
        ScalingInterval(interval.count("maxReplicas", 1), interval.amounts("maxResources"))
        for interval in spec.each("scalingIntervals")
    )
    base = both_params(spec, "baseResourcesPerReplica", _WHOLE_MEMORY if is_vm_group else NO_PARAMS)
    return EffectiveIntervals(intervals, base, both_params(spec, "scalingIntervalsOverlap", DEFAULT_OVERLAP))


T = TypeVar("T")

VM_GROUP: Final = "VirtualMachineGroup"
"""The kind of target whose replicas are VMs."""

_OFF: Final = AxisRules(DirectionRules(UpdateMode.OFF), DirectionRules(UpdateMode.OFF))
_NO_RULES: Final = AxisRules()
_NOTHING: Final[Json] = {}
_AXES: Final = ("hpa", "vpa")


class Applied(StrEnum):
    """The way sizes reach running pods: through the template, in place, or not at all."""

    TEMPLATE = "Template"
    IN_PLACE = "InPlace"
    OFF = "Off"


@dataclass(frozen=True, slots=True)
class Hvpa:
    """An Hvpa as its policy and its controller need it.

    ``target`` has apiVersion, kind and name. ``hpa`` and ``vpa`` are what these objects' specs are to have beside their
    targets; None if there is to be none.
    """

    spec: HvpaSpec
    target: Json
    hpa: Json | None
    vpa: Json | None
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class _Autoscalers:
    """The HPA's and the VPA's part of the object; None if it has none."""

    hpa: Fields | None
    vpa: Fields | None


def decode(found: JsonObject) -> Hvpa:
    """Reads the object. Raises ``InvalidSpecError``."""
    spec, parts = Fields(child(found, "spec"), "spec"), Parts()
    found_in = _Autoscalers(*(parts.read(partial(autoscaler, spec, kind), None) for kind in _AXES))
    # Read all parts before raising anything, so that people see every problem at once.
    target = parts.read(lambda: _target(spec, found_in.hpa), _NOTHING)
    applied = parts.read(lambda: spec.choice("updateMode", Applied), None)
    is_vm_group, is_off = target.get("kind") == VM_GROUP, applied is Applied.OFF
    policy = _policy_spec(spec, parts, found_in, is_off=is_off, is_vm_group=is_vm_group)
    # VMs, and pods in place, are resized without a restart.
    restarts = applied is not Applied.IN_PLACE and target.get("kind") not in (VM_GROUP, VM_KIND)
    decoded = Hvpa(
        spec=replace(policy, settle=parts.read(lambda: settle_of(spec, policy.mode, restarts), policy.settle)),
        target=target,
        hpa=None if found_in.hpa is None else parts.read(partial(hpa_template, found_in.hpa), _NOTHING),
        vpa=None if found_in.vpa is None else parts.read(partial(vpa_template, found_in.vpa), _NOTHING),
        in_place=applied is Applied.IN_PLACE,
    )
    if parts.problems:
        raise InvalidSpecError("; ".join(parts.problems))
    return decoded


def _policy_spec(spec: Fields, parts: Parts, found: _Autoscalers, *, is_off: bool, is_vm_group: bool) -> HvpaSpec:
    bounds = parts.read(lambda: replica_bounds(found.hpa), ANY_REPLICAS)
    rules = [_OFF if is_off else parts.read(partial(axis_rules, spec, axis), _NO_RULES) for axis in _AXES]
    return HvpaSpec(
        replicas=bounds,
        mode=parts.read(lambda: mode_of(spec, found.hpa, found.vpa), HvpaMode.WEIGHT_BASED),
        intervals=parts.read(lambda: weight_intervals(spec, bounds), ()),
        mixed=parts.read(lambda: mixed_of(spec), Mixed()),
        effective=parts.read(lambda: effective_of(spec, is_vm_group), EffectiveIntervals()),
        containers=parts.read(lambda: () if found.vpa is None else container_policies(found.vpa), ()),
        horizontal=rules[0],
        vertical=rules[1],
        window=parts.read(lambda: maintenance_window(spec, *rules), None),
        limit_gap=parts.read(lambda: _limit_gap(spec), NO_PARAMS),
        desired_by_utilization=parts.read(lambda: (utilization_resources(found.hpa) or ()) if found.hpa else (), ()),
    )


def _limit_gap(spec: Fields) -> ResourceChangeParams:
    name = "limitsRequestsGapScaleParams"
    # The `vpa` part overrides the Hvpa's own value.
    return both_params(spec.fields("vpa"), name, both_params(spec, name, NO_PARAMS))


def _target(spec: Fields, horizontal: Fields | None) -> Json:
    reference = spec.fields("targetRef")
    # The original controller's documents name the target only in the HPA.
    if horizontal is not None and not spec.has("targetRef") and horizontal.has("scaleTargetRef"):
        reference = horizontal.fields("scaleTargetRef")
    target: Json = {name: reference.text(name) for name in ("apiVersion", "kind", "name")}
    for name in ("kind", "name"):
        if not target[name]:
            raise reference.error(name, f"the {name} of what is scaled")
    return target
