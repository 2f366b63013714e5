"""The HPA and the VPA inside an Hvpa, in the spellings of the document and of the original controller.

- HPA: ``hpaTemplate``, ``hpaSpec`` or ``hpa.template.spec``; the same for VPA.
- The results are in the form of today's ``autoscaling/v2`` and ``autoscaling.k8s.io/v1``.
"""

from __future__ import annotations

from typing import Final

from protocol.kubernetes.objects import Json
from scheduler_plugin.groups.core.hvpa.spec import ANY_CONTAINER, ContainerPolicy
from scheduler_plugin.groups.core.recommender.horizontal import MetricTarget
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
        body["metrics"] = [_cpu_utilization(percentage or _DEFAULT_UTILIZATION)]
    if hpa.has("behavior"):
        body["behavior"] = dict(hpa.fields("behavior").found)
    return body


def _cpu_utilization(percentage: int) -> Json:
    target: Json = {"type": "Utilization", "averageUtilization": percentage}
    return {"type": "Resource", "resource": {"name": "cpu", "target": target}}


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


def metric_targets(hpa: Fields) -> tuple[MetricTarget, ...]:
    """Targets of the HPA's CPU and memory metrics; other kinds are left out. Raises ``FieldError``."""
    return tuple(target for metric in _v2_metrics(hpa) for target in _targets(metric))


def _v2_metrics(hpa: Fields) -> list[Fields]:
    body = Fields(hpa_template(hpa), hpa.path)
    return body.each("metrics")


def _targets(metric: Fields) -> list[MetricTarget]:
    source = metric.fields("containerResource" if metric.has("containerResource") else "resource")
    target, name = source.fields("target"), source.text("name")
    return [
        MetricTarget(resource, target.count("averageUtilization", 1), target.quantity("averageValue", resource) or None)
        for resource in RESOURCES
        if resource == name
    ]


def utilization_resources(hpa: Fields) -> tuple[Resource, ...] | None:
    """The resources of which use is measured against requests; None if other metrics stand beside them."""
    metrics = _v2_metrics(hpa)
    measured = [target.resource for metric in metrics for target in _targets(metric) if target.utilization]
    # Then only part of the HPA's count follows from utilisation, and the total need cannot be computed from it.
    if measured and len(measured) < len(metrics):
        return None
    return tuple(resource for resource in RESOURCES if resource in measured)


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
