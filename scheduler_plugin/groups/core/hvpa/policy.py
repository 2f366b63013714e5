"""The policy of an Hvpa: both recommendations applied in tandem, in whichever mode it asks for (S1.1-S1.12)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from scheduler_plugin.groups.core.hvpa.answers import GatedRecommendation, by_mode, by_weight, written
from scheduler_plugin.groups.core.hvpa.gates import Gates
from scheduler_plugin.groups.core.hvpa.limits import scaled_limit
from scheduler_plugin.groups.core.hvpa.modes import HvpaMode
from scheduler_plugin.groups.core.hvpa.past_targets import remembered
from scheduler_plugin.groups.core.hvpa.plan import ScalingPlan, by_plan, planned
from scheduler_plugin.groups.core.hvpa.settling import with_waiting
from scheduler_plugin.groups.core.hvpa.spec import HvpaSpec, ScalingTimes
from scheduler_plugin.groups.core.hvpa.wishes import Recommendation, VerticalWishes, replica_wish, vertical_wishes
from scheduler_plugin.groups.core.running_pods import waits_for
from scheduler_plugin.groups.core.workload import (
    Recommendations,
    Rule,
    SizedContainer,
    Workload,
    WorkloadDecision,
    amount,
)

SCALED_TO_ZERO = "scaled to zero replicas: left alone until it has one"


def decide(
    spec: HvpaSpec, workload: Workload, recommendations: Recommendations, memory: ScalingTimes, now: datetime
) -> tuple[WorkloadDecision, ScalingTimes]:
    """The decision now, and the memory to keep once it is written. ``now`` is an aware time."""
    # At zero replicas a recommendation means nothing, and people decide when to scale up from zero.
    if workload.replicas <= 0:
        return WorkloadDecision(explanation=(SCALED_TO_ZERO,)), memory
    recommendations = _said(recommendations)
    gates = Gates(spec, memory, now, frozenset(kill.container for kill in workload.out_of_memory))
    vertical = vertical_wishes(spec, workload, recommendations)
    if spec.mode is HvpaMode.EFFECTIVE_INTERVALS:
        memory = remembered(memory, spec, workload, recommendations, now)
        gates = replace(gates, memory=memory, pods_differ=waits_for(memory.pods, workload.pods, now))
        plan = planned(spec, workload, recommendations, memory)
        answers, needs = by_plan(gates, workload, plan), _explained(plan)
        memory = with_waiting(memory, _waiting(spec, answers), now)
    else:
        answer = by_weight if spec.mode is HvpaMode.WEIGHT_BASED else by_mode
        answers = answer(gates, workload, replica_wish(spec, workload, recommendations.horizontal), vertical)
        needs = ()
    return _decision(spec, workload, answers, vertical, needs), _remembered(memory, written(answers), now)


def _waiting(spec: HvpaSpec, answers: Sequence[GatedRecommendation]) -> list[Recommendation]:
    """The wishes for less that wait; none if nothing has to settle."""
    if not spec.settle:
        return []
    # A wish below the minimum change does not wait for anything: it is never written.
    waits = [answer.wish for answer in answers if answer.rule not in (None, Rule.MIN_CHANGE)]
    return [wish for wish in waits if wish.value < wish.now]


def _said(recommendations: Recommendations) -> Recommendations:
    """An HPA that desires no replicas has not looked yet."""
    horizontal = recommendations.horizontal
    # A new HPA has `desiredReplicas: 0` until its first look.
    return replace(recommendations, horizontal=horizontal if horizontal and horizontal.desired > 0 else None)


def _explained(plan: ScalingPlan) -> tuple[str, ...]:
    lines = (
        f"{need.container}/{need.resource}: needs {amount(need.resource, need.each(plan.replicas))}"
        f" in each of {plan.replicas} replicas"
        for need in plan.needs
    )
    return (*lines, *(f"{subject}: its need is unknown, so no replica is taken away" for subject in plan.unknown))


def _decision(
    spec: HvpaSpec,
    workload: Workload,
    answers: Sequence[GatedRecommendation],
    vertical: VerticalWishes,
    needs: tuple[str, ...],
) -> WorkloadDecision:
    wishes = written(answers)
    changes = tuple(f"{answer.wish.change} ({answer.why})" for answer in answers if answer.rule is None)
    withheld = [answer.wish.kept(answer.rule, answer.message) for answer in answers if answer.rule]
    return WorkloadDecision(
        replicas=next((wish.value for wish in wishes if wish.resource is None), None),
        containers=_containers(spec, workload, wishes),
        kept=(*withheld, *(wish.kept(Rule.BOUNDS, _bound(wish)) for wish in vertical.at_bounds)),
        explanation=(*needs, *changes),
    )


def _bound(wish: Recommendation) -> str:
    return "at maxAllowed" if wish.grows else "at minAllowed"


def _containers(spec: HvpaSpec, workload: Workload, wishes: Sequence[Recommendation]) -> tuple[SizedContainer, ...]:
    # Only the amounts that change, so that the patch leaves all others to their writers.
    containers: dict[str, SizedContainer] = {}
    for old in workload.containers:
        for wish in wishes:
            if wish.container != old.name or wish.resource is None:
                continue
            new = containers.get(old.name, SizedContainer(old.name))
            limit = old.limits[wish.resource] if spec.policy(old.name).controls_limits else None
            scaled = scaled_limit(
                None if limit is None else limit.value, wish.current, wish.value, spec.limit_gap[wish.resource]
            )
            containers[old.name] = replace(
                new,
                requests=new.requests.with_value(wish.resource, wish.value),
                limits=new.limits.with_value(wish.resource, scaled),
            )
    return tuple(containers.values())


def _remembered(memory: ScalingTimes, wishes: Sequence[Recommendation], now: datetime) -> ScalingTimes:
    up = any(wish.grows for wish in wishes)
    down = any(not wish.grows for wish in wishes)
    # A new order gives the pods their whole patience again.
    pods = replace(memory.pods, differ_since=now) if wishes and memory.pods.differ_since else memory.pods
    return replace(
        memory, last_up=now if up else memory.last_up, last_down=now if down else memory.last_down, pods=pods
    )
