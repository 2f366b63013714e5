"""``hvpas.autoscaling.k8s.io/v1alpha1``: the document's manifests, and the original controller's, as one spec (S1.10).

Rules that hold here:

- Whatever cannot be used raises ``HvpaError`` with one sentence for each part that is wrong; then nothing is scaled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Final, TypeVar

from protocol.kubernetes.objects import Json, JsonObject, child
from protocol.names import VM_KIND
from scheduler_plugin.groups.core.hvpa.effective import EffectiveIntervals
from scheduler_plugin.groups.core.hvpa.modes import HvpaMode, Mixed
from scheduler_plugin.groups.core.hvpa.rules import NO_PARAMS, ResourceChangeParams
from scheduler_plugin.groups.core.hvpa.spec import AxisRules, DirectionRules, HvpaSpec, UpdateMode
from scheduler_plugin.groups.core.recommender.horizontal import MetricTarget
from scheduler_plugin.groups.core.workload import Resource
from scheduler_plugin.groups.objects.hvpa.autoscaler_fields import (
    autoscaler,
    container_policies,
    hpa_template,
    metric_targets,
    utilization_resources,
    vpa_template,
)
from scheduler_plugin.groups.objects.hvpa.lenient_fields import FieldError, Fields
from scheduler_plugin.groups.objects.hvpa.mode_fields import (
    ANY_REPLICAS,
    effective_of,
    mixed_of,
    mode_of,
    replica_bounds,
    settle_of,
    weight_intervals,
)
from scheduler_plugin.groups.objects.hvpa.rule_fields import axis_rules, both_params, maintenance_window

T = TypeVar("T")

VM_GROUP: Final = "VirtualMachineGroup"
"""The kind of target whose replicas are VMs."""

_OFF: Final = AxisRules(DirectionRules(UpdateMode.OFF), DirectionRules(UpdateMode.OFF))
_NO_RULES: Final = AxisRules()
_NOTHING: Final[Json] = {}
_AXES: Final = ("hpa", "vpa")


class HvpaError(ValueError):
    """An Hvpa that cannot be used; the message names every field that is wrong."""


class Applied(StrEnum):
    """The way sizes reach running pods: through the template, in place, or not at all."""

    TEMPLATE = "Template"
    IN_PLACE = "InPlace"
    OFF = "Off"


@dataclass(frozen=True, slots=True)
class Hvpa:
    """An Hvpa as its policy and its controller need it.

    ``target`` has apiVersion, kind and name. ``hpa`` and ``vpa`` are what these objects' specs are to have beside their
    targets; None if there is to be none. ``metrics`` are the HPA's targets of CPU and memory.
    """

    spec: HvpaSpec
    target: Json
    hpa: Json | None
    vpa: Json | None
    in_place: bool = False
    metrics: tuple[MetricTarget, ...] = ()


@dataclass(frozen=True, slots=True)
class _Autoscalers:
    """The HPA's and the VPA's part of the object; None if it has none."""

    hpa: Fields | None
    vpa: Fields | None


class _Parts:
    """Reads an object part by part and collects what is wrong with each."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def read(self, part: Callable[[], T], otherwise: T) -> T:
        """Value of ``part``, or ``otherwise`` if it cannot be decoded."""
        try:
            return part()
        except FieldError as error:
            # Several parts may read the same field and fail in the same way.
            if str(error) not in self.problems:
                self.problems.append(str(error))
            return otherwise


def decode(found: JsonObject) -> Hvpa:
    """Reads the object. Raises ``HvpaError``."""
    spec, parts = Fields(child(found, "spec"), "spec"), _Parts()
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
        metrics=() if found_in.hpa is None else parts.read(partial(metric_targets, found_in.hpa), ()),
    )
    if parts.problems:
        raise HvpaError("; ".join(parts.problems))
    return decoded


def _policy_spec(spec: Fields, parts: _Parts, found: _Autoscalers, *, is_off: bool, is_vm_group: bool) -> HvpaSpec:
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
        desired_by_utilization=parts.read(lambda: _by_utilization(found.hpa), ()),
    )


def _limit_gap(spec: Fields) -> ResourceChangeParams:
    name = "limitsRequestsGapScaleParams"
    # The `vpa` part overrides the Hvpa's own value.
    return both_params(spec.fields("vpa"), name, both_params(spec, name, NO_PARAMS))


def _by_utilization(horizontal: Fields | None) -> tuple[Resource, ...]:
    return () if horizontal is None else utilization_resources(horizontal) or ()


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
