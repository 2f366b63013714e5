"""No replica is removed while the need of any sized resource is unknown (S1.12).

Eight replicas of 1 vCPU and 4 GB whose CPU would fit in one: what their memory needs decides, and nobody says it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler_plugin.groups.core.hvpa.spec import ContainerPolicy, HvpaMode
from scheduler_plugin.groups.core.workload import (
    ContainerRecommendation,
    HorizontalRecommendation,
    Recommendations,
    Resource,
    ResourceList,
    SizedContainer,
    VerticalRecommendation,
    Workload,
)
from tests.scheduler_plugin.groups.core.hvpa.stories import decided, sized, spec_for

BY_CPU: tuple[Resource, ...] = ("cpu",)
SPEC = replace(spec_for(HvpaMode.EFFECTIVE_INTERVALS, maximum=sized(8000, 32_000)), desired_by_utilization=BY_CPU)
MEASURED = HorizontalRecommendation(1, 1, 10, ratios=(("cpu", 0.125),))


def eight(*containers: SizedContainer) -> Workload:
    return Workload(8, 8, containers or (SizedContainer("app", sized(1000, 4000)),))


def recommended(**targets: ResourceList) -> Recommendations:
    found = tuple(ContainerRecommendation(name, target) for name, target in targets.items())
    return Recommendations(MEASURED, VerticalRecommendation(found))


@pytest.mark.parametrize(
    "known",
    [
        recommended(renamed=sized(125, 4000)),
        recommended(app=sized(125)),
        recommended(sidecar=sized(125, 4000)),
        recommended(),
        Recommendations(MEASURED),
    ],
    ids=["the container was renamed", "CPU only", "a sidecar only", "an empty recommendation", "a silent VPA"],
)
def test_replicas_stay_while_memory_is_unknown(known: Recommendations) -> None:
    decision = decided(SPEC, eight(), known)
    assert decision.replicas is None


def test_the_explanation_names_what_is_unknown() -> None:
    decision = decided(SPEC, eight(), recommended(app=sized(125)))
    assert "app/memory: its need is unknown, so no replica is removed" in decision.explanation


def test_one_unknown_container_of_two_suffices() -> None:
    pair = eight(SizedContainer("app", sized(1000, 4000)), SizedContainer("log", sized(100, 100)))
    assert decided(SPEC, pair, recommended(app=sized(125, 500))).replicas is None
    known = decided(SPEC, pair, recommended(app=sized(125, 500), log=sized(10, 10)))
    assert known.replicas is not None


def test_a_limit_is_a_size_too() -> None:
    limited = eight(SizedContainer("app", sized(1000), sized(memory=4000)))
    assert decided(SPEC, limited, recommended(app=sized(125))).replicas is None


def test_what_has_no_size_holds_nothing_back() -> None:
    assert decided(SPEC, eight(SizedContainer("app", sized(1000))), recommended(app=sized(125))).replicas is not None


def test_unsized_resources_do_not_block() -> None:
    pair = eight(SizedContainer("app", sized(1000, 4000)), SizedContainer("proxy", sized(memory=100)))
    spec = replace(SPEC, containers=(*SPEC.containers, ContainerPolicy("proxy", is_off=True)))
    assert decided(spec, pair, recommended(app=sized(125, 500))).replicas is not None


def test_unknown_need_allows_scale_out() -> None:
    busy = replace(MEASURED, desired=10, ratios=(("cpu", 9.0),))
    decision = decided(SPEC, eight(), replace(recommended(app=sized(125)), horizontal=busy))
    assert decision.replicas == 9


def test_lost_metrics_shrink_nothing() -> None:
    """Without its metrics-server a group that used all of its 8 vCPU fell to the 1 that its VPA knew from before."""
    known = replace(recommended(app=sized(125, 4000)), horizontal=None)
    decision = decided(SPEC, eight(), known)
    assert (decision.changes, decision.withheld) == (False, ())
    assert decision.explanation[-1] == (
        "the HPA recommends nothing, so no replica is removed, and no size that it measures shrinks"
    )
    by_requests = replace(SPEC, desired_by_utilization=())
    assert decided(by_requests, eight(), known).replicas is None


def test_lost_metrics_allow_growth() -> None:
    known = replace(recommended(app=sized(2000, 5000)), horizontal=None)
    (container,) = decided(SPEC, eight(), known).containers
    assert container.requests == sized(2000, 5000)
