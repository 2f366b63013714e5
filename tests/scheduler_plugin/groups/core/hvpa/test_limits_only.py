"""A container with limits only: as in Kubernetes its requests default to them, so they are its present size (S1.1)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.units import Seconds
from scheduler_plugin.groups.core.hvpa.spec import AxisRules, DirectionRules, HvpaMode, HvpaSpec, ScalingTimes
from scheduler_plugin.groups.core.workload import (
    NOTHING,
    HorizontalRecommendation,
    Resource,
    Rule,
    SizedContainer,
)
from scheduler_plugin.groups.objects.writes import intent_of, progress
from tests.scheduler_plugin.groups.core.hvpa.stories import NOON, decided, requests, running, sized, spec_for, wanted

LIMITED = running(2, limits=sized(2000, 2000))


def slow(mode: HvpaMode, **delays: float) -> HvpaSpec:
    """A mode that waits so long after growing (``up``) and shrinking (``down``)."""
    rules = {name: DirectionRules(delay=Seconds(delay)) for name, delay in delays.items()}
    return replace(spec_for(mode), vertical=AxisRules(**rules))


@pytest.mark.parametrize("mode", [HvpaMode.EFFECTIVE_INTERVALS, HvpaMode.VPA_BIASED, HvpaMode.MIXED])
def test_a_fall_below_the_limit_shrinks(mode: HvpaMode) -> None:
    """From 2 vCPUs to 300m: the delay for shrinking holds it back, and the delay for growing does not."""
    target, lately = wanted(None, sized(300)), ScalingTimes(last_up=NOON, last_down=NOON)
    assert requests(decided(slow(mode, up=300), LIMITED, target, lately)) == sized(300)
    kept = decided(slow(mode, down=300), LIMITED, target, lately)
    assert (kept.changes, [each.rule for each in kept.withheld]) == (False, [Rule.DELAY])


def test_a_fall_waits_until_less_has_settled() -> None:
    spec = replace(spec_for(HvpaMode.EFFECTIVE_INTERVALS), settle=Seconds(900.0))
    assert decided(spec, LIMITED, wanted(None, sized(300))).changes is False


def test_a_target_at_the_limit_changes_nothing() -> None:
    assert decided(spec_for(HvpaMode.VPA_BIASED), LIMITED, wanted(None, sized(2000, 2000))).changes is False


def test_change_from_limit_needs_minimum() -> None:
    kept = decided(spec_for(HvpaMode.VPA_BIASED), LIMITED, wanted(None, sized(1900)))
    assert [each.rule for each in kept.withheld] == [Rule.MIN_CHANGE]


def test_use_is_measured_against_the_limit() -> None:
    """Use of 50 % more than the target at two limits of 2 vCPUs is a need of 6."""
    by_cpu: tuple[Resource, ...] = ("cpu",)
    spec = replace(spec_for(HvpaMode.EFFECTIVE_INTERVALS), desired_by_utilization=by_cpu)
    said = replace(wanted(3), horizontal=HorizontalRecommendation(3, 1, 10, ratios=(("cpu", 1.5),)))
    assert requests(decided(spec, LIMITED, said)) == sized(3000)


def test_what_is_written_says_from_which_size() -> None:
    decision = decided(spec_for(HvpaMode.VPA_BIASED), LIMITED, wanted(None, sized(300)))
    intent = intent_of(decision, LIMITED, "", {})
    assert intent is not None
    assert (intent.grows, str(intent)) == (False, "app: requests cpu 2 → 300m, limits cpu 2 → 300m")
    assert progress(intent, LIMITED).containers == decision.containers
    assert progress(intent, decision.applied(LIMITED)).containers == ()


def test_a_request_of_its_own_is_the_size() -> None:
    assert SizedContainer("app", sized(500), sized(2000, 64)).sizes == sized(500, 64)
    assert SizedContainer("app").sizes == NOTHING
