"""Decodes ``hvpas.autoscaling.k8s.io/v1alpha1``, in the spellings of the design document and of the original controller
(S1.10).

- Invalid fields raise ``InvalidSpecError`` with one sentence each; then nothing is scaled.
- ``mode``, ``mixed`` and ``updateMode`` are our own fields; the document describes modes, but has no fields for them.
- The spec of an HPA is in ``hpaTemplate``, ``hpaSpec`` or ``hpa.template.spec``; the same for a VPA.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from functools import partial
from typing import Final

from protocol.kubernetes.objects import Json, JsonObject, child
from protocol.kubernetes.resources import CNPG_CLUSTERS, VM_GROUPS
from protocol.names import VM_KIND
from protocol.units import Seconds
from scheduler_plugin.groups.core.hvpa.modes import stages
from scheduler_plugin.groups.core.hvpa.spec import (
    ANY_CONTAINER,
    DEFAULT_OVERLAP,
    NO_PARAMS,
    AxisRules,
    ChangeParams,
    ContainerPolicy,
    DirectionRules,
    EffectiveIntervals,
    HvpaMode,
    HvpaSpec,
    Interval,
    Mixed,
    Preference,
    ResourceChangeParams,
    ScalingInterval,
    UpdateMode,
)
from scheduler_plugin.groups.core.workload import RESOURCES, ReplicaBounds, Resource, SizeBounds
from scheduler_plugin.groups.objects.hvpa.fields import (
    MOST_REPLICAS,
    FieldError,
    FieldErrors,
    Fields,
    axis_rules,
    both_params,
    maintenance_window,
)
from scheduler_plugin.groups.objects.targets import InvalidSpecError

ANY_REPLICAS: Final = ReplicaBounds(1, MOST_REPLICAS)
"""Bounds without an HPA, so that the replica count stays."""

SETTLE: Final = Seconds(300.0)
"""How long less must be enough before shrinking, if a resize restarts nothing; HPA's default."""

SETTLE_RESTARTING: Final = Seconds(900.0)
"""The same if a resize restarts pods. In replays noise resized 67 replicas an hour without it, 42 with 5 minutes."""

_STAGE_ENDS: Final = ("stageTwoStartReplicaCount", "stageTwoStopReplicaCount")
_STAGE_WEIGHTS: Final = ("firstStageVpaWeight", "secondStageVpaWeight", "thirdStageVpaWeight")
_INTERVALS: Final = "weightBasedScalingIntervals"
_WHOLE_MEMORY: Final = ResourceChangeParams(memory=ChangeParams(percentage=Fraction(100)))


def replica_bounds(horizontal: Fields | None) -> ReplicaBounds:
    """The HPA's bounds. Raises ``FieldError``."""
    if horizontal is None:
        return ANY_REPLICAS
    minimum, maximum = horizontal.count("minReplicas", 1) or 1, horizontal.count("maxReplicas", 1)
    if maximum is None or maximum < minimum:
        raise horizontal.error("maxReplicas", f"a whole number, at least minReplicas ({minimum})")
    return ReplicaBounds(minimum, maximum)


def mode_of(spec: Fields, horizontal: Fields | None, vertical: Fields | None) -> HvpaMode:
    """``mode``, or the one implied by other fields. Raises ``FieldError``."""
    mode = spec.choice("mode", HvpaMode) or _implied_mode(spec, horizontal, vertical)
    if horizontal is None and mode in {HvpaMode.HPA_PREFERRED, HvpaMode.EFFECTIVE_INTERVALS}:
        raise spec.error("hpaTemplate", f"an object with maxReplicas, which mode {mode} needs")
    # With both kinds of targets the HPA's count would be neither a total need nor a minimum.
    if mode is HvpaMode.EFFECTIVE_INTERVALS and horizontal is not None and utilization_resources(horizontal) is None:
        raise FieldError(f"{horizontal.at('metrics')}: expected utilization or other targets in mode {mode}, got both")
    return mode


def _implied_mode(spec: Fields, horizontal: Fields | None, vertical: Fields | None) -> HvpaMode:
    # Only the weight-based mode has these fields.
    if spec.has(_INTERVALS, *_STAGE_ENDS, *_STAGE_WEIGHTS):
        return HvpaMode.WEIGHT_BASED
    if horizontal is None or vertical is None:
        return HvpaMode.VPA_BIASED if horizontal is None else HvpaMode.HPA_BIASED
    return HvpaMode.EFFECTIVE_INTERVALS


def weight_intervals(spec: Fields, bounds: ReplicaBounds) -> tuple[Interval, ...]:
    """Intervals with weights, from the list or from three stages. Raises ``FieldError``."""
    listed = spec.each(_INTERVALS)
    if not listed:
        return _stages(spec, bounds) if spec.has(*_STAGE_ENDS, *_STAGE_WEIGHTS) else ()
    if spec.has(*_STAGE_ENDS, *_STAGE_WEIGHTS):
        raise FieldError(f"{spec.at(_INTERVALS)}: cannot be combined with stages")
    intervals = []
    for source, weight in zip(listed, _weights([(interval, "vpaWeight") for interval in listed]), strict=True):
        # 0 counts as missing.
        start, last = (source.count(name) or None for name in ("startReplicaCount", "lastReplicaCount"))
        interval = Interval(weight, start, last)
        # Intervals may overlap (the first wins), but none may end before it begins.
        first, end = interval.within(bounds)
        if end < first:
            raise FieldError(
                f"{source.path}.lastReplicaCount: expected at least startReplicaCount ({first}), got {end}"
            )
        intervals.append(interval)
    return tuple(intervals)


def _weights(fields: list[tuple[Fields, str]]) -> list[Fraction]:
    """Weights from 0 to 1, or all in percent, as in later versions of the original. Raises ``FieldError``."""
    weights = [source.number(name, 100) or Fraction(0) for source, name in fields]
    if max(weights, default=Fraction(0)) <= 1:
        return weights
    for (source, name), weight in zip(fields, weights, strict=True):
        # A fraction of a percent is probably a mistake.
        if 0 < weight < 1:
            raise source.error(name, "a percentage like the other weights, or all of them from 0 to 1")
    return [weight / 100 for weight in weights]


def _stages(spec: Fields, bounds: ReplicaBounds) -> tuple[Interval, ...]:
    start, stop = (spec.count(name) or None for name in _STAGE_ENDS)
    if start and stop and stop < start:
        raise spec.error(_STAGE_ENDS[1], f"at least {_STAGE_ENDS[0]} ({start})")
    return stages(bounds, start, stop, _weights([(spec, name) for name in _STAGE_WEIGHTS]))


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
    """Delay before effective intervals shrink: ``scaleDownDelay``, or the default."""
    if mode is not HvpaMode.EFFECTIVE_INTERVALS:
        return Seconds(0.0)
    delay = spec.duration("scaleDownDelay")
    # If a resize restarts replicas, reacting to noise costs more than keeping the size.
    return (SETTLE_RESTARTING if restarts else SETTLE) if delay is None else delay


def effective_of(spec: Fields, of_databases: bool) -> EffectiveIntervals:
    """The effective intervals. Each replica of a database has the whole memory as base, unless set."""
    intervals = tuple(
        ScalingInterval(interval.count("maxReplicas", 1), interval.amounts("maxResources"))
        for interval in spec.each("scalingIntervals")
    )
    base = both_params(spec, "baseResourcesPerReplica", _WHOLE_MEMORY if of_databases else NO_PARAMS)
    return EffectiveIntervals(intervals, base, both_params(spec, "scalingIntervalsOverlap", DEFAULT_OVERLAP))


_OFF: Final = AxisRules(DirectionRules(UpdateMode.OFF), DirectionRules(UpdateMode.OFF))
_NOTHING: Final[Json] = {}
_AXES: Final = ("hpa", "vpa")


class Applied(StrEnum):
    """Way in which sizes reach running pods: by a new template, in place, or not at all."""

    TEMPLATE = "Template"
    IN_PLACE = "InPlace"
    OFF = "Off"


@dataclass(frozen=True, slots=True)
class Hvpa:
    """One Hvpa. ``target`` has apiVersion, kind and name; ``hpa`` and ``vpa`` are specs without a target."""

    spec: HvpaSpec
    target: Json
    hpa: Json | None
    vpa: Json | None
    in_place: bool = False


def decode(obj: JsonObject) -> Hvpa:
    """Decode the object. Raises ``InvalidSpecError``."""
    spec, parts = Fields(child(obj, "spec"), "spec"), FieldErrors()
    hpa, vpa = (parts.read(partial(autoscaler, spec, kind), None) for kind in _AXES)
    # Read all parts, to report every problem at once.
    target = parts.read(lambda: _target(spec, hpa), _NOTHING)
    applied = parts.read(lambda: spec.choice("updateMode", Applied), None)
    is_off, of_databases = applied is Applied.OFF, target.get("kind") in (VM_GROUPS.kind, CNPG_CLUSTERS.kind)
    policy = _policy_spec(spec, parts, (hpa, vpa), is_off=is_off, of_databases=of_databases)
    # Databases and in-place resizes are not restarted.
    restarts = applied is not Applied.IN_PLACE and not of_databases and target.get("kind") != VM_KIND
    decoded = Hvpa(
        spec=replace(policy, settle=parts.read(lambda: settle_of(spec, policy.mode, restarts), policy.settle)),
        target=target,
        hpa=None if hpa is None else parts.read(partial(hpa_template, hpa), _NOTHING),
        vpa=None if vpa is None else parts.read(partial(vpa_template, vpa), _NOTHING),
        in_place=applied is Applied.IN_PLACE,
    )
    if parts.problems:
        raise InvalidSpecError("; ".join(parts.problems))
    return decoded


def _policy_spec(
    spec: Fields,
    parts: FieldErrors,
    templates: tuple[Fields | None, Fields | None],
    *,
    is_off: bool,
    of_databases: bool,
) -> HvpaSpec:
    (hpa, vpa), gap = templates, "limitsRequestsGapScaleParams"
    bounds = parts.read(lambda: replica_bounds(hpa), ANY_REPLICAS)
    rules = [_OFF if is_off else parts.read(partial(axis_rules, spec, axis), AxisRules()) for axis in _AXES]
    return HvpaSpec(
        replicas=bounds,
        mode=parts.read(lambda: mode_of(spec, hpa, vpa), HvpaMode.WEIGHT_BASED),
        intervals=parts.read(lambda: weight_intervals(spec, bounds), ()),
        mixed=parts.read(lambda: mixed_of(spec), Mixed()),
        effective=parts.read(lambda: effective_of(spec, of_databases), EffectiveIntervals()),
        containers=parts.read(lambda: tuple(map(_policy, _policies(vpa))) if vpa else (), ()),
        horizontal=rules[0],
        vertical=rules[1],
        window=parts.read(lambda: maintenance_window(spec, *rules), None),
        limit_gap=parts.read(
            # The `vpa` part overrides the Hvpa.
            lambda: both_params(spec.fields("vpa"), gap, both_params(spec, gap, NO_PARAMS)),
            NO_PARAMS,
        ),
        desired_by_utilization=parts.read(lambda: (utilization_resources(hpa) or ()) if hpa else (), ()),
    )


def _target(spec: Fields, horizontal: Fields | None) -> Json:
    reference = spec.fields("targetRef")
    # In the original the target is in the HPA.
    if horizontal is not None and not spec.has("targetRef") and horizontal.has("scaleTargetRef"):
        reference = horizontal.fields("scaleTargetRef")
    target: Json = {name: reference.text(name) for name in ("apiVersion", "kind", "name")}
    for name in ("kind", "name"):
        if not target[name]:
            raise reference.error(name, f"the {name} of the target")
    return target


_POLICY_KEYS: Final = ("containerName", "mode", "minAllowed", "maxAllowed", "controlledResources", "controlledValues")
_DEFAULT_UTILIZATION: Final = 80


def autoscaler(spec: Fields, kind: str) -> Fields | None:
    """Spec of the ``hpa`` or ``vpa`` of an Hvpa; None if it is missing or has ``deploy: false``."""
    wrapped = spec.fields(kind)
    if not wrapped.flag("deploy", otherwise=True):
        return None
    names = [name for name in (f"{kind}Template", f"{kind}Spec", kind) if spec.has(name)]
    if not names:
        return None
    # Two spellings may disagree.
    if len(names) > 1:
        raise FieldError(f"{spec.at(names[1])}: cannot be combined with {names[0]}")
    return wrapped.fields("template").fields("spec") if names == [kind] else spec.fields(names[0])


def hpa_template(hpa: Fields) -> Json:
    """Spec of the HPA without its target."""
    body: Json = {"minReplicas": hpa.count("minReplicas", 1) or 1, "maxReplicas": hpa.count("maxReplicas", 1)}
    body["metrics"] = [_metric(metric) for metric in hpa.each("metrics")]
    percentage = hpa.count("targetCPUUtilizationPercentage", 1)
    # The field of HPA v1 applies only without metrics.
    if not body["metrics"]:
        target = {"type": "Utilization", "averageUtilization": percentage or _DEFAULT_UTILIZATION}
        body["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
    if hpa.has("behavior"):
        body["behavior"] = dict(hpa.fields("behavior").obj)
    return body


def _metric(metric: Fields) -> Json:
    """Convert a metric to ``v2``; in ``v2beta1`` the target is next to the name."""
    resource = metric.fields("resource")
    for kind, field in (("Utilization", "averageUtilization"), ("AverageValue", "averageValue")):
        old = f"target{field[0].upper()}{field[1:]}"
        if resource.has(old):
            target = {"type": kind, field: resource.get(old)}
            return {"type": "Resource", "resource": {"name": resource.text("name"), "target": target}}
    return dict(metric.obj)


def utilization_resources(hpa: Fields) -> tuple[Resource, ...] | None:
    """Resources measured against requests; None if there are other metrics too."""
    metrics = Fields(hpa_template(hpa), hpa.path).each("metrics")
    measured = [resource for metric in metrics if (resource := _utilized(metric)) is not None]
    # With other metrics the total need cannot be computed from utilization.
    if measured and len(measured) < len(metrics):
        return None
    return tuple(resource for resource in RESOURCES if resource in measured)


def _utilized(metric: Fields) -> Resource | None:
    """The resource that the metric measures against requests, if any. Raises ``FieldError``."""
    source = metric.fields("containerResource" if metric.has("containerResource") else "resource")
    target, name = source.fields("target"), source.text("name")
    resource = next((resource for resource in RESOURCES if resource == name), None)
    if resource is not None:
        target.quantity("averageValue", resource)  # only for its ``FieldError``
    return resource if resource and target.count("averageUtilization", 1) else None


def vpa_template(vpa: Fields) -> Json:
    """Spec of the VPA without target and update policy, in VPA's spelling."""
    policies = [{key: policy.get(key) for key in _POLICY_KEYS if policy.has(key)} for policy in _policies(vpa)]
    return {"resourcePolicy": {"containerPolicies": policies}} if policies else {}


def _policies(vpa: Fields) -> list[Fields]:
    return vpa.fields("resourcePolicy").each("containerPolicies")


def _policy(policy: Fields) -> ContainerPolicy:
    bounds = SizeBounds(policy.amounts("minAllowed"), policy.amounts("maxAllowed"))
    for resource, minimum in bounds.min:
        maximum = bounds.max[resource]
        if maximum is not None and maximum < minimum:
            raise policy.error("maxAllowed", f"at least minAllowed.{resource} ({minimum})")
    return ContainerPolicy(
        name=policy.text("containerName") or ANY_CONTAINER,
        bounds=bounds,
        resources=_controlled(policy),
        controls_limits=policy.text("controlledValues") != "RequestsOnly",
        is_off=policy.text("mode") == "Off",
    )


def _controlled(policy: Fields) -> tuple[Resource, ...]:
    controlled = policy.get("controlledResources")
    if not isinstance(controlled, list | None):
        raise policy.error("controlledResources", "a list")
    # In the order of `RESOURCES`.
    return RESOURCES if controlled is None else tuple(resource for resource in RESOURCES if resource in controlled)
