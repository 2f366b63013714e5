"""The original controller's table of scenarios, answered by our policy with the same spec and target.

The target has two replicas with requests of 300m and 200M and limits of 2 and 5G; HPA has 1 to 3 replicas; the least
change is 100m or 80 % of CPU and 100M or 80 % of memory; where a case says so, limits stand 1 or 80 %, and 1G or 80 %,
above requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, time
from fractions import Fraction
from typing import Any, Final

from protocol.units import Bytes, MilliCpu
from scheduler_plugin.groups.core.hvpa.policy import decide
from scheduler_plugin.groups.core.hvpa.spec import (
    AxisRules,
    ChangeParams,
    ContainerPolicy,
    DirectionRules,
    HvpaMode,
    HvpaSpec,
    Interval,
    MaintenanceWindow,
    ResourceChangeParams,
    ScalingTimes,
    UpdateMode,
)
from scheduler_plugin.groups.core.workload import (
    ContainerRecommendation,
    HorizontalRecommendation,
    Recommendations,
    ReplicaBounds,
    ResourceList,
    Rule,
    SizedContainer,
    VerticalRecommendation,
    Workload,
    WorkloadDecision,
)
from scheduler_plugin.groups.objects.autoscalers import is_usable
from tests.vectors.case import Case
from tests.vectors.registry import Declined, chosen

MEGA: Final = 1_000_000
NOON: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)
REASONS: Final = {Rule.DELAY: "StabilizationWindow", Rule.UPDATE_MODE: "UpdatePolicy"}
"""Rules that the original calls otherwise."""

EIGHTY: Final = Fraction(80)
MIN_CHANGE: Final = ResourceChangeParams(ChangeParams(100, EIGHTY), ChangeParams(100 * MEGA, EIGHTY))
LIMIT_GAP: Final = ResourceChangeParams(ChangeParams(1000, EIGHTY), ChangeParams(1000 * MEGA, EIGHTY))


ALWAYS: Final = ("desired", "blocked", "resource_change")
SIZES: Final = ("mem_request_M", "mem_limit_M", "cpu_request_m")
FLAGS: Final = ("scaling_off", "scale_out_limited")


def workload_of(given: Mapping[str, Any]) -> Workload:
    """The table's target, with the amounts that the case gives otherwise; an amount of 0 is none."""
    memory, cpu = given.get("request_mem_M", 200), given.get("request_cpu_m", 300)
    limit = given.get("limit_mem_M", 5000)
    requests = ResourceList(MilliCpu(cpu) if cpu else None, Bytes(memory * MEGA) if memory else None)
    limits = ResourceList(MilliCpu(2000) if cpu else None, Bytes(limit * MEGA) if limit else None)
    replicas = given.get("replicas", 2)
    return Workload(replicas, replicas, (SizedContainer("app", requests, limits),))


def spec_of(given: Mapping[str, Any]) -> HvpaSpec:
    """The table's spec: one weight for all numbers of replicas."""
    rules = DirectionRules(UpdateMode(given.get("mode", "Auto")), min_change=MIN_CHANGE)
    axis = AxisRules(rules, rules)
    inside = given.get("in_window", False)
    return HvpaSpec(
        replicas=ReplicaBounds(1, 3),
        mode=HvpaMode.WEIGHT_BASED,
        intervals=(Interval(Fraction(str(given["weight"])) / 100),),
        horizontal=axis,
        vertical=axis,
        window=MaintenanceWindow(time(11), time(13)) if inside else MaintenanceWindow(time(15), time(16)),
        containers=(ContainerPolicy("app", controls_limits=given.get("controlled_values") != "RequestsOnly"),),
        limit_gap=LIMIT_GAP if given.get("limit_params", False) else ResourceChangeParams(),
    )


def recommendations_of(given: Mapping[str, Any]) -> Recommendations:
    """Recommendations of both; an unusable VPA recommends nothing."""
    target = ResourceList(MilliCpu(given["vpa_cpu_m"]), Bytes(given["vpa_mem_M"] * MEGA))
    kind, _, status = given.get("vpa_condition", "RecommendationProvided=True").partition("=")
    vertical = VerticalRecommendation((ContainerRecommendation("app", target),))
    horizontal = HorizontalRecommendation(given["hpa_desired"], 1, 3, given["scaling_limited"])
    return Recommendations(horizontal, vertical if is_usable({kind: status}) else None)


def answer(case: Case) -> dict[str, Any]:
    """The outcome in the terms of the original's table, as far as the case expects it."""
    given = case.input
    _decline_where_vertical_waits_for_hpa(given)
    spec, workload, recommendations = spec_of(given), workload_of(given), recommendations_of(given)
    decision, _ = decide(spec, workload, recommendations, ScalingTimes(), NOON)
    return chosen(case, _outcome(spec, decision, workload, recommendations), ALWAYS, SIZES, FLAGS)


def _decline_where_vertical_waits_for_hpa(given: Mapping[str, Any]) -> None:
    grows = given["vpa_mem_M"] > given.get("request_mem_M", 200) or given["vpa_cpu_m"] > given.get("request_cpu_m", 300)
    if grows and not given["scaling_limited"] and given["weight"] > 0 and given.get("mode", "Auto") == "Auto":
        raise Declined("the original grows sizes only where HPA is at its limit; weights apply to both here (S1.5)")


def _outcome(
    spec: HvpaSpec, decision: WorkloadDecision, workload: Workload, recommendations: Recommendations
) -> dict[str, Any]:
    after = decision.applied(workload).containers[0]
    horizontal = recommendations.horizontal
    reasons = {REASONS.get(kept.rule, kept.rule.value): None for kept in decision.withheld}
    held = {spec.horizontal.up.mode: spec.window is not None and spec.window.contains(NOON)}
    is_off = UpdateMode.OFF in held or held.get(UpdateMode.MAINTENANCE_WINDOW) is False
    return {
        "desired": decision.applied(workload).replicas,
        "mem_request_M": _value(after.requests, "memory") / MEGA,
        "mem_limit_M": _value(after.limits, "memory") / MEGA,
        "cpu_request_m": _value(after.requests, "cpu"),
        "cpu_limit_m": _value(after.limits, "cpu"),
        "blocked": list(reasons),
        "resource_change": bool(decision.containers),
        "scaling_off": is_off,
        "scale_out_limited": is_off or (horizontal is not None and horizontal.limited),
    }


def _value(amounts: ResourceList, resource: Any) -> int:
    amount = amounts[resource]
    return 0 if amount is None else amount.value
