"""How an Hvpa wants both recommendations brought together: its mode, and what that needs (S1.2-S1.7, S1.12).

The fields ``mode``, ``mixed`` and ``updateMode`` are this project's own; the document names the modes without fields.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from protocol.units import Seconds
from scheduler_plugin.groups.core.hvpa.effective import DEFAULT_OVERLAP, EffectiveIntervals, ScalingInterval
from scheduler_plugin.groups.core.hvpa.modes import HvpaMode, Interval, Mixed, Preference, stages
from scheduler_plugin.groups.core.hvpa.rules import NO_PARAMS, ChangeParams, ResourceChangeParams
from scheduler_plugin.groups.core.workload import ReplicaBounds
from scheduler_plugin.groups.objects.hvpa.autoscaler_fields import utilization_resources
from scheduler_plugin.groups.objects.hvpa.lenient_fields import MOST_REPLICAS, FieldError, Fields
from scheduler_plugin.groups.objects.hvpa.rule_fields import both_params

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
