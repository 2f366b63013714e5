"""The policy of an Hvpa: both recommendations combined by its mode (S1.1-S1.12).

With effective intervals the workload has what it needs at every step towards the plan (S1.12).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fractions import Fraction
from math import floor
from typing import Final

from protocol.units import Amount
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.core.hvpa.gates import (
    DEFAULT_MIN_CHANGE,
    GatedChange,
    Gates,
    ProposedChange,
    VerticalProposals,
    gated,
    is_enough,
    no_lower_than_recent_need,
    replica_proposal,
    threshold,
    vertical_proposals,
    waits_for,
    with_waiting_decreases,
    within_policy,
    written,
)
from scheduler_plugin.groups.core.hvpa.modes import by_mode, by_weight
from scheduler_plugin.groups.core.hvpa.needs import (
    ContainerNeed,
    planned_replicas,
    remembered,
    replica_bounds,
    total_needs,
    unknown_needs,
)
from scheduler_plugin.groups.core.hvpa.spec import UNSET, ChangeParams, HvpaMode, HvpaSpec, ScalingTimes, UpdateMode
from scheduler_plugin.groups.core.recommender.horizontal import TOLERANCE
from scheduler_plugin.groups.core.workload import (
    Recommendations,
    ReplicaBounds,
    Rule,
    SizedContainer,
    Workload,
    WorkloadDecision,
    amount,
)

WHY: Final = "effective intervals"


@dataclass(frozen=True, slots=True)
class ScalingPlan:
    """The replica count for these needs. While a need is ``unknown``, or the HPA is silent, no replica is removed."""

    replicas: int
    needs: tuple[ContainerNeed, ...]
    unknown: tuple[str, ...] = ()
    is_hpa_silent: bool = False


def planned(spec: HvpaSpec, workload: Workload, recommendations: Recommendations, memory: ScalingTimes) -> ScalingPlan:
    """The fewest replicas that can be large enough for the total need, at least the HPA's minimum."""
    return _planned(spec, workload, recommendations, memory, total_needs(spec, workload, recommendations, memory))


def _planned(
    spec: HvpaSpec,
    workload: Workload,
    recommendations: Recommendations,
    memory: ScalingTimes,
    needs: tuple[ContainerNeed, ...],
) -> ScalingPlan:
    bounds, now = replica_bounds(spec, workload, recommendations, needs), workload.replicas

    def max_size(need: ContainerNeed, replicas: int) -> Amount | None:
        present_size = _held_size(spec, workload, need, replicas) if replicas >= now else None
        return present_size or _max_size(spec, memory, need, replicas)

    def fewest(minimum: int) -> int:
        within = ReplicaBounds(max(minimum, bounds.min), bounds.max)
        return planned_replicas(needs, max_size, spec.effective.overlap, now, within)

    # Sizes grow before replicas are removed, so a large step would temporarily order a multiple of the need. Remove at
    # most half of the replicas per step, and order at most twice the certain need.
    replicas, step = fewest(0), fewest(max((_fewest_in_one_step(need, now) for need in needs), default=-(-now // 2)))
    replicas = step if replicas < step < now else replicas
    return ScalingPlan(replicas, needs, unknown_needs(spec, workload, needs), recommendations.horizontal is None)


def _held_size(spec: HvpaSpec, workload: Workload, need: ContainerNeed, replicas: int) -> Amount | None:
    """The present size if it cannot grow to the need of ``replicas``, so that more are added; None if it can.

    A growth below the minimum change is held, but may leave a size at most ``TOLERANCE`` too small. More replicas lower
    only a need that an HPA measures, and not its base.
    """
    container, rules = workload.container(need.container), spec.vertical.up
    present = None if container is None else container.sizes[need.resource]
    if present is None or need.resource not in spec.desired_by_utilization or need.base >= present.value:
        return None
    size, now = need.certain_each(replicas), present.value
    min_change = threshold(rules.min_change[need.resource], now, DEFAULT_MIN_CHANGE[need.resource].value)
    is_small = not is_enough(now, size, min_change) and size > now * (1 + TOLERANCE)
    return present if size > now and (rules.mode is UpdateMode.OFF or is_small) else None


def _fewest_in_one_step(need: ContainerNeed, now: int) -> int:
    """The fewest replicas whose size times ``now`` is at most twice the certain need."""
    if need.total <= 0:
        return -(-now // 2)
    certain = need.total if need.certain is None else max(1, need.certain)
    return min(max(1, now - 1), -(-now * need.total // (2 * certain)))


def _max_size(spec: HvpaSpec, memory: ScalingTimes, need: ContainerNeed, replicas: int) -> Amount | None:
    """Maximum size of each of ``replicas`` replicas, by the spec and by refused resizes."""
    interval = spec.effective.max_size(replicas)[need.resource]
    reachable = memory.pods.largest_possible(need.container, need.resource)
    if replicas >= spec.replicas.max:  # the last replicas may use everything allowed (S1.6)
        interval = reachable = None
    bounds = [spec.policy(need.container).bounds.max[need.resource], interval]
    caps = [bound.value for bound in bounds if bound is not None] + ([] if reachable is None else [reachable])
    return amount(need.resource, min(caps)) if caps else None


def by_plan(gates: Gates, workload: Workload, plan: ScalingPlan) -> list[GatedChange]:
    """The changes towards the plan, with the gates that withhold them."""
    current = workload.replicas
    count = no_lower_than_recent_need(gates.memory, ProposedChange(current, plan.replicas, plan.replicas))
    planned_count = count.value
    if current == planned_count:
        return _sizes(gates, workload, plan.needs, planned_count, planned_count)
    outcome = gated(gates, count, WHY)
    if outcome.rule:
        # The change of the count is withheld, so sizes are for the present replicas. Those that fewer replicas need
        # soon do not shrink: they would grow again.
        fewest = planned_count if outcome.rule in {Rule.DELAY, Rule.PODS_DIFFER} else current
        return [outcome, *_sizes(gates, workload, plan.needs, current, min(current, fewest))]
    if planned_count > current:
        # Sizes shrink only once the new replicas are ready.
        return [outcome, *_sizes(gates, workload, plan.needs, planned_count, None)]
    # Before scaling in, sizes grow to the whole need of fewer replicas.
    needs = [replace(need, grown=None) for need in plan.needs]
    sizes = [
        # Ignore the minimum change: fewer replicas must carry the whole load.
        GatedChange(size.proposal, WHY) if size.proposal.grows and size.rule is Rule.MIN_CHANGE else size
        for size in _sizes(gates, workload, needs, planned_count, planned_count)
    ]
    if any(outcome.proposal.grows for outcome in sizes):
        return [GatedChange(count, WHY, Rule.POLICY, texts.SIZES_FIRST), *sizes]
    return [outcome, *sizes]


def _sizes(
    gates: Gates, workload: Workload, needs: Sequence[ContainerNeed], replicas: int, fewest: int | None
) -> list[GatedChange]:
    """Sizes for this replica count. A size shrinks only as far as the ready replicas can carry the load.

    ``fewest`` is the smallest number of replicas that must be able to carry it; None if no size may shrink.
    """
    outcomes = []
    for container, need in (
        (sized, need) for sized in workload.containers for need in needs if need.container == sized.name
    ):
        proposal = _size(gates, container, need, replicas)
        possible = gates.memory.pods.largest_possible(container.name, need.resource)
        if possible is not None and possible < proposal.present:
            # Revert impossible sizes immediately, without gates: pods never had them. New replicas take
            # over, so start from what pods have.
            reachable = proposal if fewest else _size(gates, container, need, replicas, possible)
            if max(reachable.desired, possible) < proposal.present:
                outcomes.append(GatedChange(proposal.at(max(reachable.desired, possible)), texts.NO_MORE))
                continue
        if not proposal.grows and proposal.desired != proposal.present:
            # Only ready replicas carry load.
            serving = max(1, min(workload.ready, fewest or 1))
            minimum = _size(gates, container, need, serving).desired if fewest else proposal.present
            proposal = proposal.at(min(proposal.present, max(proposal.desired, minimum)))
        if proposal.value != proposal.present:
            outcomes.append(gated(gates, no_lower_than_recent_need(gates.memory, proposal), WHY))
        elif proposal.desired != proposal.present:
            is_unready = not fewest or workload.ready < replicas
            why = (Rule.POLICY, texts.NOT_READY) if is_unready else (Rule.DELAY, texts.REPLICAS_FIRST)
            outcomes.append(GatedChange(proposal, WHY, *why))
    return outcomes


def _size(
    gates: Gates, container: SizedContainer, need: ContainerNeed, replicas: int, has: int | None = None
) -> ProposedChange:
    """Change the present size, or the one that a pod ``has``, to the nearer of certain and possible need."""
    spec, size = gates.spec, container.sizes[need.resource]
    maximum = _max_size(spec, gates.memory, need, replicas)

    def bounded(value: int) -> int:
        # Last, so that the policy's bounds win.
        capped = value if maximum is None else min(value, maximum.value)
        return within_policy(spec.policy(container.name), container, need.resource, capped)

    now = 0 if size is None else size.value
    # A size between certain and possible need stays.
    value = min(max(now if has is None else has, bounded(need.grows_to(replicas))), bounded(need.size_each(replicas)))
    return ProposedChange(None if size is None else now, value, value, container.name, need.resource)


def decide(
    spec: HvpaSpec, workload: Workload, recommendations: Recommendations, memory: ScalingTimes, now: datetime
) -> tuple[WorkloadDecision, ScalingTimes]:
    """Return the decision, and the memory to store once it is written. ``now`` is aware."""
    # At zero replicas recommendations mean nothing; only users scale up from zero.
    if workload.replicas <= 0:
        return WorkloadDecision(explanation=(texts.SCALED_TO_ZERO,)), memory
    # A new HPA has `desiredReplicas: 0` until its first evaluation.
    if recommendations.horizontal is not None and recommendations.horizontal.desired <= 0:
        recommendations = replace(recommendations, horizontal=None)
    gates = Gates(spec, memory, now, frozenset(kill.container for kill in workload.out_of_memory))
    vertical = vertical_proposals(spec, workload, recommendations)
    if spec.mode is HvpaMode.EFFECTIVE_INTERVALS:
        memory = remembered(memory, spec, workload, recommendations, now)
        gates = replace(gates, memory=memory, pods_differ=waits_for(memory.pods, workload.pods, now))
        plan = planned(spec, workload, recommendations, memory)
        outcomes, needs = by_plan(gates, workload, plan), _explained(plan)
        certain = tuple(need.only_certain() for need in plan.needs)
        least = by_plan(gates, workload, _planned(spec, workload, recommendations, memory, certain))
        memory = with_waiting_decreases(memory, _waiting(spec, outcomes, least), now)
    else:
        outcome = by_weight if spec.mode is HvpaMode.WEIGHT_BASED else by_mode
        outcomes = outcome(gates, workload, replica_proposal(spec, workload, recommendations.horizontal), vertical)
        needs = ()
    return _decision(spec, workload, outcomes, vertical, needs), _remembered(memory, written(outcomes), now)


def _waiting(spec: HvpaSpec, outcomes: Sequence[GatedChange], least: Sequence[GatedChange]) -> list[ProposedChange]:
    """Decreases that wait; none without a settle time.

    They follow from ``least``, the outcomes for the certain need: a need that is only possible, such as during a
    rollout, delays a decrease but does not restart its wait.
    """
    if not spec.settle:
        return []
    done = {proposal.subject for proposal in written(outcomes)}
    # A change below the minimum is never written.
    waits = [outcome.proposal for outcome in least if outcome.rule is not Rule.MIN_CHANGE]
    return [proposal for proposal in waits if proposal.value < proposal.present and proposal.subject not in done]


def _explained(plan: ScalingPlan) -> tuple[str, ...]:
    lines = (
        texts.NEED.format(
            need=need, amount=amount(need.resource, need.size_each(plan.replicas)), replicas=plan.replicas
        )
        for need in plan.needs
    )
    unknown = (texts.NEED_UNKNOWN.format(subject=subject) for subject in plan.unknown)
    return (*lines, *unknown, *([texts.HPA_SILENT] if plan.is_hpa_silent else []))


def _decision(
    spec: HvpaSpec,
    workload: Workload,
    outcomes: Sequence[GatedChange],
    vertical: VerticalProposals,
    needs: tuple[str, ...],
) -> WorkloadDecision:
    proposals = written(outcomes)
    changes = tuple(f"{outcome.proposal.change} ({outcome.why})" for outcome in outcomes if outcome.rule is None)
    withheld = [outcome.proposal.withheld_by(outcome.rule, outcome.message) for outcome in outcomes if outcome.rule]
    return WorkloadDecision(
        replicas=next((proposal.value for proposal in proposals if proposal.resource is None), None),
        containers=_containers(spec, workload, proposals),
        withheld=(
            *withheld,
            *(
                proposal.withheld_by(Rule.BOUNDS, f"at {'max' if proposal.grows else 'min'}Allowed")
                for proposal in vertical.at_bounds
            ),
        ),
        explanation=(*needs, *changes),
    )


def _containers(spec: HvpaSpec, workload: Workload, proposals: Sequence[ProposedChange]) -> tuple[SizedContainer, ...]:
    # Only changed amounts, so that other writers keep theirs.
    containers: dict[str, SizedContainer] = {}
    for old in workload.containers:
        for proposal in proposals:
            if proposal.container != old.name or proposal.resource is None:
                continue
            new = containers.get(old.name, SizedContainer(old.name))
            limit = old.limits[proposal.resource] if spec.policy(old.name).controls_limits else None
            scaled = scaled_limit(
                None if limit is None else limit.value,
                proposal.current,
                proposal.value,
                spec.limit_gap[proposal.resource],
            )
            containers[old.name] = replace(
                new,
                requests=new.requests.with_value(proposal.resource, proposal.value),
                limits=new.limits.with_value(proposal.resource, scaled),
            )
    return tuple(containers.values())


def _remembered(memory: ScalingTimes, proposals: Sequence[ProposedChange], now: datetime) -> ScalingTimes:
    directions = {proposal.grows for proposal in proposals}
    # Pods have the full patience to follow a new decision.
    pods = replace(memory.pods, differ_since=now) if proposals and memory.pods.differ_since else memory.pods
    up, down = (
        now if grows in directions else last for grows, last in ((True, memory.last_up), (False, memory.last_down))
    )
    return replace(memory, last_up=up, last_down=down, pods=pods)


def scaled_limit(limit: int | None, old_request: int | None, new_request: int, gap: ChangeParams = UNSET) -> int | None:
    """The limit for a new request; None if there is no limit (None or 0).

    A limit that equals its request, or has no request, becomes the new request. Otherwise the ratio stays; with a
    ``gap`` the limit is above the request by the larger of value and percentage.
    """
    if not limit:
        return None
    if not old_request or old_request == limit:
        return new_request
    above = gap.parts(new_request)
    if above:
        return new_request + floor(max(above))
    # The API server refuses a limit below the request.
    return max(new_request, floor(Fraction(limit * new_request, old_request)))
