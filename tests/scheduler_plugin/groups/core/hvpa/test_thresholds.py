"""Least changes, limits, maintenance windows and update modes: what holds a proposal back, and what goes with it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, time, timedelta, timezone
from fractions import Fraction

import pytest

from protocol.units import Seconds
from scheduler_plugin.groups.core.hvpa.gates import is_enough, threshold
from scheduler_plugin.groups.core.hvpa.policy import scaled_limit
from scheduler_plugin.groups.core.hvpa.spec import (
    AxisRules,
    ChangeParams,
    ContainerPolicy,
    DirectionRules,
    HvpaMode,
    MaintenanceWindow,
    ResourceChangeParams,
    ScalingTimes,
    UpdateMode,
)
from scheduler_plugin.groups.core.workload import NOTHING, Rule, SizeBounds, SizedContainer, WithheldChange
from scheduler_plugin.groups.objects.autoscalers import is_usable
from scheduler_plugin.groups.objects.hvpa.fields import parse_maintenance_time
from tests.scheduler_plugin.groups.core.hvpa.stories import (
    NOON,
    decided,
    requests,
    running,
    sized,
    spec_for,
    wanted,
)

EIGHTY = Fraction(80)


@pytest.mark.parametrize(
    ("params", "current", "expected"),
    [
        (ChangeParams(500, EIGHTY), 200, 160),
        (ChangeParams(500, EIGHTY), 3500, 500),
        (ChangeParams(500), 10, 500),
        (ChangeParams(percentage=EIGHTY), 10, 8),
        (ChangeParams(), 10, 200),
        (ChangeParams(100, EIGHTY), 0, 0),
    ],
)
def test_smallest_threshold_or_default(params: ChangeParams, current: int, expected: int) -> None:
    assert threshold(params, current, 200) == expected


@pytest.mark.parametrize(("new", "enough"), [(39, True), (40, True), (41, False), (359, False), (360, True)])
def test_a_change_of_just_the_threshold_is_enough(new: int, enough: bool) -> None:
    assert is_enough(200, new, Fraction(160)) is enough


def test_defaults_are_200m_and_200_megabytes() -> None:
    workload = running(1, sized(1000, 1000))
    less, just = wanted(None, sized(1199, 801)), wanted(None, sized(1200, 800))
    spec = spec_for(HvpaMode.VPA_BIASED)
    assert [kept.rule for kept in decided(spec, workload, less).withheld] == [Rule.MIN_CHANGE, Rule.MIN_CHANGE]
    assert requests(decided(spec, workload, just)) == sized(1200, 800)


def test_first_request_is_always_written() -> None:
    spec = spec_for(HvpaMode.VPA_BIASED)
    percent = ResourceChangeParams(ChangeParams(100, EIGHTY), ChangeParams(100, EIGHTY))
    spec = replace(spec, vertical=AxisRules(up=DirectionRules(min_change=percent)))
    assert requests(decided(spec, running(1), wanted(None, sized(50, 10)))) == sized(50, 10)
    assert decided(spec, running(1), wanted(None, sized(0))).containers == ()
    assert decided(spec_for(HvpaMode.VPA_BIASED), running(1), wanted(None, sized(50))).withheld == (
        WithheldChange("app/cpu", sized(50)["cpu"] or 0, None, Rule.MIN_CHANGE, "the change is less than 200m"),
    )


@pytest.mark.parametrize(
    ("limit", "old", "new", "gap", "expected"),
    [
        (None, 200, 300, ChangeParams(), None),
        (0, 200, 300, ChangeParams(), None),
        (500, None, 300, ChangeParams(), 300),
        (500, 0, 300, ChangeParams(), 300),
        (500, 500, 340, ChangeParams(1000), 340),
        (5000, 200, 1320, ChangeParams(), 33000),
        (5000, 200, 1320, ChangeParams(1000, EIGHTY), 2376),
        (5000, 200, 500, ChangeParams(1000, EIGHTY), 1500),
        (5000, 200, 500, ChangeParams(percentage=EIGHTY), 900),
        (100, 200, 300, ChangeParams(), 300),
    ],
)
def test_limits_follow_requests(
    limit: int | None, old: int | None, new: int, gap: ChangeParams, expected: int | None
) -> None:
    assert scaled_limit(limit, old, new, gap) == expected


def test_limits_that_must_stay_hold_the_request() -> None:
    policy = ContainerPolicy("app", controls_limits=False)
    spec = replace(spec_for(HvpaMode.VPA_BIASED), containers=(policy,))
    decision = decided(spec, running(1, sized(memory=500), sized(memory=800)), wanted(None, sized(memory=2000)))
    assert decision.containers == (SizedContainer("app", sized(memory=800)),)


def test_uncontrolled_resources_are_left_alone() -> None:
    base, workload, target = spec_for(HvpaMode.VPA_BIASED), running(1, sized(500, 500)), wanted(None, sized(2000, 2000))
    off = replace(base, containers=(ContainerPolicy("app", is_off=True), ContainerPolicy()))
    memory = replace(base, containers=(ContainerPolicy(resources=("memory",)),))
    assert requests(decided(off, workload, target)) == NOTHING
    assert requests(decided(memory, workload, target)) == sized(memory=2000)


def test_bound_is_named_last() -> None:
    spec = spec_for(HvpaMode.VPA_BIASED, maximum=sized(2000))
    grown = decided(spec, running(1, sized(1000)), wanted(None, sized(2000), uncapped=sized(3000)))
    at_bound = decided(spec, running(1, sized(2000)), wanted(None, sized(2000), uncapped=sized(3000)))
    assert (requests(grown), grown.withheld) == (sized(2000), ())
    assert at_bound.withheld == (
        WithheldChange("app/cpu", sized(3000)["cpu"] or 0, sized(2000)["cpu"], Rule.BOUNDS, "at maxAllowed"),
    )
    assert SizeBounds(NOTHING, sized(2000)).clamp("cpu", 3000) == 2000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("220000+0100", time(21)),
        ("220000-0000", time(22)),
        ("003000+0100", time(23, 30)),
        ("233015-0545", time(5, 15, 15)),
    ],
)
def test_a_maintenance_time_is_read_into_utc(text: str, expected: time) -> None:
    assert parse_maintenance_time(text) == expected


@pytest.mark.parametrize(
    "text", ["", "22:00", "220000", "240000+0000", "226000+0000", "220060+0000", "220000+2400", "220000+0060", None, 22]
)
def test_what_is_no_maintenance_time_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="expected a time of day with a zone"):
        parse_maintenance_time(text)


@pytest.mark.parametrize(
    ("begin", "end", "at", "inside"),
    [
        (16, 19, time(15, 59, 59), False),
        (16, 19, time(16), True),
        (16, 19, time(19), True),
        (16, 19, time(19, 0, 1), False),
        (23, 1, time(22, 59, 59), False),
        (23, 1, time(23), True),
        (23, 1, time(0), True),
        (23, 1, time(1, 0, 0, 999_999), True),
        (23, 1, time(1, 0, 1), False),
    ],
)
def test_window_includes_ends_and_midnight(begin: int, end: int, at: time, inside: bool) -> None:
    moment = datetime.combine(datetime(2026, 1, 1, tzinfo=UTC), at, UTC)
    elsewhere = moment.astimezone(timezone(timedelta(hours=5)))
    window = MaintenanceWindow(time(begin), time(end))
    assert (window.contains(moment), window.contains(elsewhere)) == (inside, inside)
    assert str(MaintenanceWindow(time(22), time(5))) == "22:00:00 to 05:00:00 UTC"


@pytest.mark.parametrize(
    ("window", "rules"),
    [
        (MaintenanceWindow(time(11), time(13)), []),
        (MaintenanceWindow(time(13), time(15)), [Rule.MAINTENANCE_WINDOW, Rule.MAINTENANCE_WINDOW]),
        (None, [Rule.MAINTENANCE_WINDOW, Rule.MAINTENANCE_WINDOW]),
    ],
)
def test_scaling_waits_for_maintenance_window(window: MaintenanceWindow | None, rules: list[Rule]) -> None:
    waits = DirectionRules(UpdateMode.MAINTENANCE_WINDOW)
    spec = replace(spec_for(HvpaMode.VPA_BIASED), window=window, vertical=AxisRules(waits, waits))
    decision = decided(spec, running(1, sized(1000, 1000)), wanted(None, sized(2000, 100)))
    assert [kept.rule for kept in decision.withheld] == rules


@pytest.mark.parametrize(
    ("conditions", "believable"),
    [
        ({}, True),
        ({"RecommendationProvided": "True"}, True),
        ({"RecommendationProvided": "False"}, False),
        ({"ConfigUnsupported": "True"}, False),
        ({"ConfigDeprecated": "True", "RecommendationProvided": "True"}, False),
        ({"LowConfidence": "False"}, True),
    ],
)
def test_a_vpa_that_doubts_itself_recommends_nothing(conditions: dict[str, str], believable: bool) -> None:
    assert is_usable(conditions) is believable


def test_what_holds_a_wish_back_says_until_when() -> None:
    waits = DirectionRules(UpdateMode.MAINTENANCE_WINDOW)
    rules = {
        "until 12:02:00 UTC": DirectionRules(delay=Seconds(180.0)),
        "until the maintenance window, 13:00:00 to 14:00:00 UTC": waits,
        "there is no maintenance window": waits,
        "update mode Off": DirectionRules(UpdateMode.OFF),
        "the change is less than 300m": DirectionRules(min_change=ResourceChangeParams(ChangeParams(300))),
    }
    memory, told = ScalingTimes(NOON - timedelta(seconds=60), NOON - timedelta(seconds=60)), []
    for message, held in rules.items():
        window = MaintenanceWindow(time(13), time(14)) if "13:00" in message else None
        spec = replace(
            spec_for(HvpaMode.VPA_BIASED, minimum=sized(1000)), vertical=AxisRules(held, held), window=window
        )
        told += [
            kept.message for kept in decided(spec, running(1, sized(1800)), wanted(None, sized(2000)), memory).withheld
        ]
    assert told == list(rules)
    at_least = decided(
        spec_for(HvpaMode.VPA_BIASED, minimum=sized(1800)), running(1, sized(1800)), wanted(None, sized(20))
    )
    assert [kept.message for kept in at_least.withheld] == ["at minAllowed"]


def test_a_count_that_waits_says_so_too() -> None:
    spec = replace(spec_for(HvpaMode.HPA_BIASED), horizontal=AxisRules(up=DirectionRules(delay=Seconds(60.0))))
    kept = decided(spec, running(1), wanted(3), ScalingTimes(NOON)).withheld
    assert kept == (WithheldChange("replicas", 3, 1, Rule.DELAY, "until 12:01:00 UTC"),)
