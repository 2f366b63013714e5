"""The family hvpa: weights, thresholds, modes, windows and the recommenders' arithmetic (S1)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, time
from fractions import Fraction
from math import ceil
from typing import Any, Final

from protocol.units import Bytes, MilliCpu, Seconds
from scheduler_plugin.groups.core.hvpa.gates import (
    DEFAULT_MIN_CHANGE,
    Gates,
    ProposedChange,
    delay_passed,
    is_enough,
    threshold,
)
from scheduler_plugin.groups.core.hvpa.modes import (
    VerticalDelta,
    allowed,
    effective_weight,
    vpa_weight,
    weighted,
    weighted_replicas,
)
from scheduler_plugin.groups.core.hvpa.needs import ContainerNeed, planned_replicas, scale_in_boundary
from scheduler_plugin.groups.core.hvpa.policy import scaled_limit
from scheduler_plugin.groups.core.hvpa.spec import (
    NO_PARAMS,
    AxisRules,
    ChangeParams,
    DirectionRules,
    EffectiveIntervals,
    HvpaMode,
    HvpaSpec,
    Interval,
    MaintenanceWindow,
    Mixed,
    Preference,
    ScalingInterval,
    ScalingTimes,
)
from scheduler_plugin.groups.core.recommender.horizontal import ReplicaUse, is_tolerated, utilization_replicas
from scheduler_plugin.groups.core.workload import ReplicaBounds, Resource, ResourceList
from scheduler_plugin.groups.objects.hvpa.fields import parse_maintenance_time
from tests.vectors import hvpa_table
from tests.vectors.case import Case
from tests.vectors.registry import Check, Declined, Family

NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)


def exact(number: float) -> Fraction:
    return Fraction(str(number))


def _intervals(given: Mapping[str, Any]) -> list[Interval]:
    return [Interval(exact(one["w"]) / 100, one.get("s"), one.get("l")) for one in given["intervals"]]


def _bounds(given: Mapping[str, Any]) -> ReplicaBounds:
    return ReplicaBounds(given.get("min", 1), given["max"])


def weight_percent(case: Case) -> float:
    given, bounds = case.input, _bounds(case.input)
    current = given["current"]
    return float(100 * vpa_weight(_intervals(given), bounds, current, bounds.clamp(given["desired"])))


def effective_weight_percent(case: Case) -> float:
    given, bounds = case.input, _bounds(case.input)
    current = given["current"]
    weight = vpa_weight(_intervals(given), bounds, current, current)
    return float(100 * effective_weight(weight, current, bounds, given["vpa"] == "up"))


def replicas_by_weight(case: Case) -> int:
    given = case.input
    return weighted_replicas(given["current"], given["desired"], exact(given["vpa_weight_percent"]) / 100)


def request_by_weight(case: Case) -> float:
    given = case.input
    return float(weighted(exact(given["current"]), exact(given["target"]), exact(given["vpa_weight"])))


def _params(value: float | None, percentage: float | None) -> ChangeParams:
    return ChangeParams(None if value is None else exact(value), None if percentage is None else exact(percentage))


def min_change_threshold(case: Case) -> float:
    given = case.input
    params = _params(given.get("value"), given.get("percentage"))
    return float(
        threshold(params, exact(given["current"]), exact(given.get("default", DEFAULT_MIN_CHANGE["cpu"].value)))
    )


def min_change_passes(case: Case) -> bool:
    """The weighted change is what would be written, so it is compared."""
    given = case.input
    current = exact(given["current"])
    new = weighted(current, exact(given["target"]), exact(given["vpa_weight"]))
    params = _params(given.get("value"), given.get("percentage"))
    default = given.get("default", DEFAULT_MIN_CHANGE["cpu"].value)
    return is_enough(current, new, threshold(params, current, exact(default)))


def limit_of(case: Case) -> float | None:
    given = case.input
    gap = _params(given.get("gap_value"), given.get("gap_percentage"))
    return scaled_limit(given["original_limit"], given["original_request"], given["weighted_request"], gap)


def window_contains(case: Case) -> bool:
    given = case.input
    begin, end, at = (time(*given[name]) for name in ("begin", "end", "time"))
    return MaintenanceWindow(begin, end).contains(datetime.combine(NOW.date(), at, UTC))


def window_parse(case: Case) -> str:
    try:
        return f"{parse_maintenance_time(case.input['value']):%H:%M:%S} UTC"
    except ValueError:
        return "error"


def mode_choice(case: Case) -> str:
    given, bounds = case.input, _bounds(case.input)
    desired, vertical = bounds.clamp(given["hpa_desired"]), given["vpa"]
    deltas = [] if vertical is None else [VerticalDelta(1 if vertical == "up" else -1)]
    may = allowed(HvpaMode(given["mode"]), Mixed(), (given["current"], desired), bounds, deltas)
    if desired != given["current"] and may.horizontal:
        return "hpa"
    may_scale = {"up": may.up, "down": may.down}.get(vertical, False)
    return f"vpa-{vertical}" if may_scale else "none"


def mode_mixed(case: Case) -> str:
    given = case.input
    mixed = Mixed(given["x"], preference=Preference(given["preference"]))
    count, change = given["delta_replicas"], given["delta_request"]
    deltas = [VerticalDelta(change, given["y"], given["recommended_over_limit"])]
    vertical = deltas if change or deltas[0].over_limit else []
    may = allowed(HvpaMode.MIXED, mixed, (0, count), ReplicaBounds(0, 100), vertical)
    if count and may.horizontal:
        return "hpa"
    return "vpa" if vertical and may.up else "none"


def stabilization_allows_up(case: Case) -> bool:
    given = case.input
    at = {name: given[name] for name in ("last", "now") if given[name] is not None}
    moments = {name: datetime.fromtimestamp(seconds, UTC) for name, seconds in at.items()}
    delay = Seconds(float(given["delay"]))
    last, now = moments.get("last"), moments["now"]
    if "oom" not in given:
        return delay_passed(last, now, delay)
    spec = HvpaSpec(vertical=AxisRules(up=DirectionRules(delay=delay)))
    proposal = ProposedChange(10**9, 2 * 10**9, 2 * 10**9, "app", "memory")
    killed = frozenset({"app"}) if given["oom"] else frozenset()
    return Gates(spec, ScalingTimes(last), now, killed).blocked_by(proposal) is None


def effective_replicas(case: Case) -> int:
    """The totals of the case are milli-vCPUs and MiB; its intervals' totals are shared by their replicas."""
    given = case.input
    maxima: dict[Resource, dict[int, Fraction]] = {
        "cpu": {count: exact(total) * 1000 for count, total in given["cpu_max"]},
        "memory": {count: exact(total) * 1024 for count, total in given["mem_max"]},
    }
    counts = sorted(maxima["cpu"])
    intervals = EffectiveIntervals(
        tuple(
            ScalingInterval(
                count,
                ResourceList(
                    MilliCpu(ceil(maxima["cpu"][count] / count)), Bytes(ceil(maxima["memory"][count] / count))
                ),
            )
            for count in counts
        )
    )
    needs = (
        ContainerNeed("app", "cpu", 0, ceil(exact(given["total_cpu"]) * 1000)),
        ContainerNeed("app", "memory", 0, ceil(exact(given["total_mem_gi"]) * 1024)),
    )
    return planned_replicas(
        needs,
        lambda need, count: intervals.max_size(count)[need.resource],
        NO_PARAMS,
        counts[0],
        ReplicaBounds(counts[0], counts[-1]),
    )


def scale_down_boundary(case: Case) -> float:
    """At ``replicas`` the boundary to fewer is that of the interval before: the total that fits there, less overlap."""
    given = case.input
    if given["replicas"] < 2:
        raise Declined("the fewest replicas have no interval before them")
    overlap = _params(given.get("overlap_value"), given["overlap_percent"])
    return float(scale_in_boundary(exact(given["previous_interval_max"]), overlap))


def hpa_resource_replicas(case: Case) -> list[int] | None:
    """Replicas without metrics have requests but no level, and come last. Levels without a replica are ignored."""
    given = case.input
    requests, unready = list(given["reqs"]), list(given.get("unready", ()))
    levels = list(given["levels"])[: len(requests)]
    used = [*levels, *[None] * given.get("missing", len(requests) - len(levels))]
    replicas = [
        ReplicaUse(level, request, number not in unready)
        for number, (level, request) in enumerate(zip(used, requests, strict=True))
    ]
    tolerance = given.get("tolerance", 0.1)
    found = utilization_replicas(given["cur"], replicas, given["target"], tolerance)
    return None if found is None else list(found)


def hpa_tolerance(case: Case) -> int:
    given = case.input
    ratio = given["utilization"] / given["target"]
    current: int = given["current"]
    return current if is_tolerated(ratio, given.get("tolerance", 0.1)) else ceil(ratio * current)


def _one_of(name: str, other: str, reason: str) -> dict[str, Any]:
    return {"expected": lambda case: case.expected[name], "ignores": {f"expected.{other}": reason}}


FAMILY: Final = Family(
    "hvpa",
    groups={
        "vpa_weight_percent": weight_percent,
        "effective_vpa_weight_percent": effective_weight_percent,
        "weighted_replicas": Check(
            replicas_by_weight,
            **_one_of("upstream", "seed_ceil_always", "rounding up both ways can never leave 5 for 4 (S1.5)"),
        ),
        "weighted_request": request_by_weight,
        "min_change_threshold": min_change_threshold,
        "min_change_passes": Check(min_change_passes, **_one_of("upstream", "seed", "equality passes (S1.9)")),
        "scaled_limit": limit_of,
        "upstream_table": hvpa_table.answer,
        "maintenance_window_contains": window_contains,
        "maintenance_window_parse": window_parse,
        "mode_mixed": mode_mixed,
        "mode_choice": mode_choice,
        "stabilization_allows_up": stabilization_allows_up,
        "effective_interval_replicas": effective_replicas,
        "scale_down_boundary_total_cpu": scale_down_boundary,
        "hpa_resource_replicas": hpa_resource_replicas,
        "hpa_tolerance": Check(
            hpa_tolerance, **_one_of("current", "classic", "HPA as it is now includes both ends of its tolerance")
        ),
    },
)
