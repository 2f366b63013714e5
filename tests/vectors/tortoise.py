"""The family tortoise: slots, replicas, targets, sizes and phases, against the real policy (S3).

- Sizes are plain numbers of one resource; where a case has decimals, a unit is a part of one.
- What a case leaves out is as in upstream's tests: at least 100, at most 1000 and no buffer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from math import lcm
from typing import Final
from zoneinfo import ZoneInfo

from protocol.kubernetes.timestamps import parse_timestamp
from protocol.smoothing.histogram import GROWTH, DecayingHistogram, confidence_factor
from protocol.units import Amount, MilliCpu, Seconds
from scheduler_plugin.groups.core.tortoise import configuration as constants
from scheduler_plugin.groups.core.tortoise.autoscaler import Autoscaler, ContainerTarget, Place, Scaling
from scheduler_plugin.groups.core.tortoise.configuration import Configuration
from scheduler_plugin.groups.core.tortoise.horizontal import next_target, target_utilisation, with_targets
from scheduler_plugin.groups.core.tortoise.slots import Slot, SlotLayout, SlotMemory, SlotValue
from scheduler_plugin.groups.core.tortoise.tortoise_memory import (
    Phase,
    PhaseInputs,
    ResourcePhase,
    ResourceState,
    TortoiseMemory,
    TortoiseMode,
    capped,
    is_missing,
    maximum,
    next_phase,
    proposed,
    step_back,
)
from scheduler_plugin.groups.core.tortoise.vertical import ReplicaCounts, SizeFacts, container_size
from scheduler_plugin.groups.core.workload import ReplicaBounds, ResourceList, SizedContainer, Workload
from scheduler_plugin.groups.objects.tortoise.global_configuration import read_configuration
from tests.scheduler_plugin.groups.objects.tortoise.written_configuration import write_configuration
from tests.vectors.case import Case
from tests.vectors.registry import Declined, Family, chosen

UTC_ZONE: Final = ZoneInfo("UTC")
NOON: Final = datetime(2026, 5, 6, 12, tzinfo=UTC)
LATER_ALARM: Final = "an emergency lasts until its cause ends, and may begin on the way back (S3.6)"


def exact(number: float) -> Fraction:
    """A number exactly as written."""
    return Fraction(str(number))


def in_units(*numbers: float) -> tuple[int, list[int]]:
    """Whole numbers of a unit small enough for all of ``numbers``, and how many such units make one."""
    unit = lcm(*(exact(each).denominator for each in numbers))
    return unit, [int(exact(each) * unit) for each in numbers]


def min_max_replicas(case: Case) -> object:
    given = case.input
    if "slots" in given:
        slots = [Slot(*each) for each in given["slots"]]
        found = next(
            (slot for slot in slots if slot.overlaps(Slot(given["hour"], given["hour"] + 1, given["weekday"]))), None
        )
        return "error: no slot" if found is None else {"from": found.start, "to": found.end}
    configuration = Configuration(
        minimum_min_replicas=given["minimum_min"],
        min_replicas_recommendation_multiplier=exact(given["min_multiplier"]),
        max_replicas_recommendation_multiplier=exact(given["max_multiplier"]),
    )
    seen, last = proposed(given["replicas"], configuration), NOON - timedelta(hours=given["hours_since_slot_update"])
    return {
        name: learned(given[f"old_{name}"], last, value, exact(given["decay"]))
        for name, value in (("min", seen.min), ("max", seen.max))
    }


def learned(old: int, at: datetime, value: int, decay: Fraction) -> int | None:
    layout = SlotLayout(1, "daily", UTC_ZONE)
    memory = SlotMemory(layout, {layout.slot_at(NOON): SlotValue(old, at)})
    return memory.learned(value, decay, NOON).at(NOON)


def slot_count(case: Case) -> object:
    hours, period = case.input["range_hours"], case.input["period"]
    try:
        found = read_configuration(
            {"RangeOfMinMaxReplicasRecommendationHours": hours, "GatheringDataPeriodType": period}
        )
        return len(found.layout.slots())
    except ValueError:
        return "invalid"


def slot_for_time(case: Case) -> object:
    given = case.input
    layout = SlotLayout(given["range_hours"], given["period"], ZoneInfo(given["time_zone"]))
    slot = layout.slot_at(datetime.fromtimestamp(parse_timestamp(given["utc"]) or 0.0, UTC))
    found = {"weekday": slot.weekday, "from": slot.start, "to": slot.end}
    return {key: value for key, value in found.items() if key in case.expected or value is not None}


def target_utilization(case: Case) -> object:
    given = case.input
    if "maximum_max_replicas" in given:
        return _change_of_target(given["replicas"], given["maximum_max_replicas"])
    _, (recommended, request) = in_units(given["vpa_recommendation"], given["request"])
    configuration = Configuration(
        minimum_target_resource_utilization=given["minimum"], maximum_target_resource_utilization=given["maximum"]
    )
    return target_utilisation(MilliCpu(recommended), MilliCpu(request), given["current_target"], configuration)


def _change_of_target(replicas: int, maximum: int) -> str:
    """The next target if 70 % should become 80 %."""
    place: Place = ("app", "cpu")
    shape = SizedContainer("app", ResourceList(cpu=MilliCpu(10)))
    configuration = Configuration(maximum_max_replicas=maximum)
    memory = replace(
        TortoiseMemory.empty(configuration),
        policies={place: Scaling.HORIZONTAL},
        resources={place: ResourcePhase(ResourceState.WORKING, NOON)},
        recommended={"app": ResourceList(cpu=MilliCpu(9))},
    )
    before = Autoscaler(1, maximum, (ContainerTarget("app", "cpu", 70),))
    after = with_targets(before, configuration, Workload(replicas, containers=(shape,)), memory)
    return "no change" if after == before else "change"


def target_step_limit(case: Case) -> object:
    return next_target(case.input["current"], case.input["recommended"], case.input["max_increase"])


def size(case: Case) -> object:
    given = case.input
    amounts = given["req"], given["rec"], given.get("mn", 100), given.get("mx", 1000)
    unit, (request, recommended, low, high) = in_units(*amounts)
    several, target = given.get("multi", False), given.get("target")
    facts = SizeFacts(request, recommended, low, high, target, several=several)
    minimum, preferred = given.get("minmin", 3), given.get("pref", 30)
    numbers = ReplicaCounts(given["replicas"], given.get("hpamin"), minimum, preferred, given.get("scaled_up", False))
    configuration = Configuration(
        buffer_ratio_on_vertical_resource=exact(given.get("buffer", 0)),
        max_allowed_scaling_down_ratio=exact(given.get("ratio", 0)),
    )
    found = container_size(Scaling(given["policy"]), facts, numbers, configuration).size
    return found / unit if found == request else found // unit


def close_to_preferred(case: Case) -> object:
    return ReplicaCounts(case.input["replicas"], None, 1, case.input["preferred"]).are_close_to_too_many


def max_recommendation(case: Case) -> object:
    given = case.input
    unit, (old, target, upper) = in_units(given["old_max"], given["vpa_target"], given["vpa_upper"])
    return maximum(Amount(old), Amount(target), Amount(upper)).value / unit


def back_to_normal_step(case: Case) -> object:
    given = case.input
    minimum, is_over = step_back(given["current_min"], given["recommended_min"], exact(given["factor"]))
    return {"min": minimum, "phase": str(Phase.WORKING if is_over else Phase.BACK_TO_NORMAL)}


def replica_caps(case: Case) -> object:
    given, configuration = case.input, Configuration()
    minimum, maximum = given.get("recommended_min", 0), given.get("recommended_max", 10**9)
    configuration = replace(
        configuration,
        maximum_min_replicas=given.get("cluster_max_min", configuration.maximum_min_replicas),
        maximum_max_replicas=given.get("cluster_max", 10**9),
    )
    found = capped(ReplicaBounds(minimum, maximum), configuration, given.get("tortoise_max"))
    if "recommended_min" in given and "recommended_max" in given:
        return {"min": found.min, "max": found.max}
    return found.min if "recommended_min" in given else found.max


def phase(case: Case) -> object:
    given = case.input
    grace = timedelta(seconds=given.get("grace_s", Configuration().emergency_mode_grace_period.total_seconds()))
    failing = given.get("hpa_metrics_failed_s")
    missing = is_missing(None if failing is None else NOON - timedelta(seconds=failing), grace, NOON)
    resources = [ResourceState(each) for each in given.get("resources", ())]
    seen = PhaseInputs(
        TortoiseMode(given.get("mode", "Auto")), given.get("has_horizontal", True), metrics_missing=missing
    )
    now = Phase(given["phase"]) if given["phase"] else None
    found = str(next_phase(now, resources, seen))
    if case.semantics == "upstream" and found == "Emergency" != case.expected and now is not Phase.WORKING:
        raise Declined(LATER_ALARM)
    return found


SPELLED: Final = {
    "initial_hpa_target": constants.INITIAL_TARGET,
    "down_rollout_interval": "1h" if timedelta(hours=1) == constants.DOWN_INTERVAL else "",
    "preferred_grow_factor": float(constants.GROWTH),
    "preferred_grow_interval": "30m" if timedelta(minutes=30) == constants.GROWTH_INTERVAL else "",
}
"""The constants that upstream's configuration does not name."""


OPTIONAL: Final = frozenset(
    {
        "HPAExternalMetricExclusionRegex",
        "MinimumCPULimit",
        "ResourceLimitMultiplier",
    }
)
"""What a list of defaults need not have, because it is empty."""


def config_defaults(case: Case) -> object:
    defaults: Mapping[str, object] = {**write_configuration(Configuration()), **SPELLED}
    numbers = [each for each in fields(Configuration) if each.name != "ignored"]
    if len(defaults) != len(numbers) + len(SPELLED):
        raise ValueError("a number of the configuration is not written")
    return {} if case.input else chosen(case, defaults, [name for name in defaults if name not in OPTIONAL])


def vpa_confidence_multiplier(case: Case) -> object:
    given = case.input
    return given.get("base", 1) * confidence_factor(given["confidence_days"], given["multiplier"], given["exponent"])


def vpa_decaying_histogram(case: Case) -> object:
    """A bucket of the case, ``bucket`` wide, is one of ours: both hold a weight and know an upper end."""
    given, passed = case.input, 0.0
    histogram, width = DecayingHistogram(Seconds(1.0), 1.0), given["bucket"]
    for value, weight, half_lives in given["samples_value_weight_halflives"]:
        histogram.age(half_lives - passed)
        histogram.add(GROWTH ** (value // width - 0.5), weight)
        passed = half_lives
    found = histogram.percentile(given["percentile"])
    return next(bucket + 1 for bucket in range(512) if GROWTH**bucket >= found * 0.999) * width


FAMILY: Final = Family(
    "tortoise",
    groups={
        "min_max_replicas": min_max_replicas,
        "slot_count": slot_count,
        "slot_for_time": slot_for_time,
        "target_utilization": target_utilization,
        "target_step_limit": target_step_limit,
        "container_size": size,
        "close_to_preferred": close_to_preferred,
        "max_recommendation": max_recommendation,
        "back_to_normal_step": back_to_normal_step,
        "replica_caps": replica_caps,
        "phase": phase,
        "config_defaults": config_defaults,
        "vpa_confidence_multiplier": vpa_confidence_multiplier,
        "vpa_decaying_histogram": vpa_decaying_histogram,
    },
)
