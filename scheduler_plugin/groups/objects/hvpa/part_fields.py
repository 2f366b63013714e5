"""The HPA and the VPA inside an Hvpa, and what holds it back in each direction, in the spellings of the document and of
the original controller.

- HPA: ``hpaTemplate``, ``hpaSpec`` or ``hpa.template.spec``; the same for VPA. The results are in the form of today's
  ``autoscaling/v2`` and ``autoscaling.k8s.io/v1``.
- Rules from the weakest to the strongest: ``scaleUpDelay`` and ``minCpuChange`` of the Hvpa, its
  ``scaleUpStabilization``, its ``scaleUp``, and the ``scaleUp`` of its ``hpa`` or ``vpa``; the same for down.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import time
from typing import Final

from protocol.kubernetes.objects import Json
from scheduler_plugin.groups.core.hvpa.rules import (
    UNSET,
    ChangeParams,
    MaintenanceWindow,
    ResourceChangeParams,
    parse_maintenance_time,
)
from scheduler_plugin.groups.core.hvpa.spec import ANY_CONTAINER, AxisRules, ContainerPolicy, DirectionRules, UpdateMode
from scheduler_plugin.groups.core.workload import RESOURCES, Resource, SizeBounds
from scheduler_plugin.groups.objects.hvpa.lenient_fields import FieldError, Fields

_POLICY_KEYS: Final = ("containerName", "mode", "minAllowed", "maxAllowed", "controlledResources", "controlledValues")
_DEFAULT_UTILIZATION: Final = 80


def autoscaler(spec: Fields, kind: str) -> Fields | None:
    """The spec of the ``hpa`` or ``vpa`` inside an Hvpa; None if it has none, or does not deploy it."""
    wrapped = spec.fields(kind)
    if not wrapped.flag("deploy", otherwise=True):
        return None
    names = [name for name in (f"{kind}Template", f"{kind}Spec", kind) if spec.has(name)]
    # Two spellings may disagree, and nothing defines which one wins.
    if len(names) > 1:
        raise FieldError(f"{spec.at(names[1])}: expected nothing beside {names[0]}")
    if not names:
        return None
    return wrapped.fields("template").fields("spec") if names == [kind] else spec.fields(names[0])


def hpa_template(hpa: Fields) -> Json:
    """Spec of the HPA, without its target."""
    body: Json = {"minReplicas": hpa.count("minReplicas", 1) or 1, "maxReplicas": hpa.count("maxReplicas", 1)}
    body["metrics"] = [_metric(metric) for metric in hpa.each("metrics")]
    percentage = hpa.count("targetCPUUtilizationPercentage", 1)
    # The field of HPA v1 counts only without metrics.
    if not body["metrics"]:
        target = {"type": "Utilization", "averageUtilization": percentage or _DEFAULT_UTILIZATION}
        body["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
    if hpa.has("behavior"):
        body["behavior"] = dict(hpa.fields("behavior").found)
    return body


def _metric(metric: Fields) -> Json:
    """One metric; the targets that ``v2beta1`` has beside the name move to where v2 has them."""
    resource = metric.fields("resource")
    if resource.has("targetAverageUtilization"):
        target: Json = {"type": "Utilization", "averageUtilization": resource.get("targetAverageUtilization")}
    elif resource.has("targetAverageValue"):
        target = {"type": "AverageValue", "averageValue": resource.get("targetAverageValue")}
    else:
        return dict(metric.found)
    return {"type": "Resource", "resource": {"name": resource.text("name"), "target": target}}


def utilization_resources(hpa: Fields) -> tuple[Resource, ...] | None:
    """The resources of which use is measured against requests; None if other metrics stand beside them."""
    metrics = Fields(hpa_template(hpa), hpa.path).each("metrics")
    measured = [resource for metric in metrics if (resource := _utilized(metric)) is not None]
    # Then only part of the HPA's count follows from utilisation, and the total need cannot be computed from it.
    if measured and len(measured) < len(metrics):
        return None
    return tuple(resource for resource in RESOURCES if resource in measured)


def _utilized(metric: Fields) -> Resource | None:
    """The resource whose use the metric measures against requests, if it does. Raises ``FieldError``."""
    source = metric.fields("containerResource" if metric.has("containerResource") else "resource")
    target, name = source.fields("target"), source.text("name")
    for resource in RESOURCES:
        if resource == name:
            target.quantity("averageValue", resource)  # only for its ``FieldError``
            return resource if target.count("averageUtilization", 1) else None
    return None


def vpa_template(vpa: Fields) -> Json:
    """Spec of the VPA without its target and update policy, with keys as VPA spells them."""
    policies = [
        {key: policy.get(key) for key in _POLICY_KEYS if policy.has(key)}
        for policy in vpa.fields("resourcePolicy").each("containerPolicies")
    ]
    return {"resourcePolicy": {"containerPolicies": policies}} if policies else {}


def container_policies(vpa: Fields) -> tuple[ContainerPolicy, ...]:
    """Sizing policy of each container (S1.10)."""
    return tuple(_policy(policy) for policy in vpa.fields("resourcePolicy").each("containerPolicies"))


def _policy(policy: Fields) -> ContainerPolicy:
    bounds = SizeBounds(policy.amounts("minAllowed"), policy.amounts("maxAllowed"))
    for resource, least in bounds.least:
        most = bounds.most[resource]
        if most is not None and most < least:
            raise policy.error("maxAllowed", f"at least minAllowed.{resource} ({least})")
    return ContainerPolicy(
        name=policy.text("containerName") or ANY_CONTAINER,
        bounds=bounds,
        resources=_controlled(policy),
        controls_limits=policy.text("controlledValues") != "RequestsOnly",
        is_off=policy.text("mode") == "Off",
    )


def _controlled(policy: Fields) -> tuple[Resource, ...]:
    controlled = policy.get("controlledResources")
    if controlled is None:
        return RESOURCES
    if not isinstance(controlled, list):
        raise policy.error("controlledResources", "a list")
    # In the order of `RESOURCES`, whatever order the document has.
    return tuple(resource for resource in RESOURCES if resource in controlled)


_MOST_PERCENT: Final = 10_000
_RESOURCES: Final[tuple[Resource, Resource]] = ("cpu", "memory")


def axis_rules(spec: Fields, axis: str) -> AxisRules:
    """The rules of the ``hpa`` or ``vpa`` of an Hvpa."""
    up, down = (_direction(spec, axis, direction) for direction in ("Up", "Down"))
    return AxisRules(up, down)


def _direction(spec: Fields, axis: str, direction: str) -> DirectionRules:
    # From the weakest to the strongest: each line overrides the ones before.
    flat = _with_changes(DirectionRules(), spec, ("minCpuChange", "minMemChange"))
    delay = spec.duration(f"scale{direction}Delay")
    flat = flat if delay is None else replace(flat, delay=delay)
    stabilization = spec.fields(f"scale{direction}Stabilization")
    flat = _with_changes(flat, stabilization, ("minCpuChange", "minMemChange"))
    duration = stabilization.duration("duration")
    flat = flat if duration is None else replace(flat, delay=duration)
    own = _overridden(flat, spec.fields(f"scale{direction}"))
    return _overridden(own, spec.fields(axis).fields(f"scale{direction}"))


def _overridden(rules: DirectionRules, scale: Fields) -> DirectionRules:
    """``rules`` with what one ``scaleUp`` or ``scaleDown`` says otherwise."""
    mode = scale.fields("updatePolicy").choice("updateMode", UpdateMode)
    delay = scale.duration("stabilizationDuration")
    return _with_changes(
        replace(rules, mode=mode or rules.mode, delay=rules.delay if delay is None else delay),
        scale.fields("minChange"),
        ("cpu", "memory"),
    )


def _with_changes(rules: DirectionRules, found: Fields, names: tuple[str, str]) -> DirectionRules:
    return replace(rules, min_change=_params(found, names, rules.min_change))


def both_params(found: Fields, name: str, otherwise: ResourceChangeParams) -> ResourceChangeParams:
    """``cpu`` and ``memory`` of the object of that name, each ``otherwise`` if it is missing."""
    return _params(found.fields(name), _RESOURCES, otherwise)


def _params(found: Fields, names: tuple[str, str], otherwise: ResourceChangeParams) -> ResourceChangeParams:
    cpu, memory = (_change(found, name, resource) for name, resource in zip(names, _RESOURCES, strict=True))
    return ResourceChangeParams(otherwise.cpu if cpu is UNSET else cpu, otherwise.memory if memory is UNSET else memory)


def _change(found: Fields, name: str, resource: Resource) -> ChangeParams:
    params = found.fields(name)
    value, percentage = params.quantity("value", resource), params.number("percentage", _MOST_PERCENT)
    return UNSET if value is None and percentage is None else ChangeParams(value, percentage)


def maintenance_window(spec: Fields, *axes: AxisRules) -> MaintenanceWindow | None:
    """The maintenance window; one that an update mode waits for has to be there."""
    name = "maintenanceTimeWindow"
    if not spec.has(name):
        modes = {rules.mode for axis in axes for rules in (axis.up, axis.down)}
        # Without a window this mode would never scale.
        if UpdateMode.MAINTENANCE_WINDOW in modes:
            raise spec.error(name, "begin and end, which updateMode MaintenanceWindow needs")
        return None
    window = spec.fields(name)
    begin, end = (_time(window, part) for part in ("begin", "end"))
    return MaintenanceWindow(begin, end)


def _time(window: Fields, part: str) -> time:
    try:
        return parse_maintenance_time(window.get(part))
    except ValueError as error:
        raise FieldError(f"{window.at(part)}: {error}") from None
