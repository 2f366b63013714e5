"""Effective intervals carried out: from the planned replicas and sizes to what is written now (S1.12).

Rules that hold here, so that the workload never has less than it needs on the way:

- Scaling out never shrinks sizes in the same step; they shrink when the new replicas are ready.
- Before scaling in, sizes grow to what fewer replicas need, however small that change is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protocol.units import Amount
from scheduler_plugin.groups.core.hvpa.answers import Answer, gated
from scheduler_plugin.groups.core.hvpa.effective import Need, planned_replicas
from scheduler_plugin.groups.core.hvpa.gates import Gates
from scheduler_plugin.groups.core.hvpa.needs import replica_bounds, total_needs, unknown_needs
from scheduler_plugin.groups.core.hvpa.settling import at_most_needed
from scheduler_plugin.groups.core.hvpa.spec import HvpaSpec, Memory
from scheduler_plugin.groups.core.hvpa.wishes import Wish, within_policy
from scheduler_plugin.groups.core.workload import Container, Recommendations, Rule, Workload

WHY: Final = "effective intervals"
SIZES_FIRST: Final = "sizes grow first"
NOT_READY: Final = "until all replicas are ready"


@dataclass(frozen=True, slots=True)
class Plan:
    """So many replicas for these needs. While any need is ``unknown``, no replica is taken away."""

    replicas: int
    needs: tuple[Need, ...]
    unknown: tuple[str, ...] = ()


def planned(spec: HvpaSpec, workload: Workload, recommendations: Recommendations, memory: Memory) -> Plan:
    """The fewest replicas that can be large enough for the total need, at least as many as an HPA insists on."""
    needs = total_needs(spec, workload, recommendations, memory)
    bounds = replica_bounds(spec, workload, recommendations, needs)

    def most(need: Need, replicas: int) -> Amount | None:
        return _most(spec, need, replicas)

    replicas = planned_replicas(needs, most, spec.effective.overlap, workload.replicas, bounds)
    return Plan(replicas, needs, unknown_needs(spec, workload, needs))


def _most(spec: HvpaSpec, need: Need, replicas: int) -> Amount | None:
    allowed = spec.policy(need.container).bounds.most[need.resource]
    interval = spec.effective.most(replicas)[need.resource]
    if interval is None or replicas >= spec.replicas.max:  # the last replicas may have all that is allowed (S1.6)
        return allowed
    return interval if allowed is None else min(allowed, interval)


def by_plan(gates: Gates, workload: Workload, plan: Plan) -> list[Answer]:
    """What of the plan is written now."""
    now = workload.replicas
    count = at_most_needed(gates.memory, Wish(now, plan.replicas, plan.replicas))
    then = count.value
    if now == then:
        return _sizes(gates, workload, plan.needs, then, shrinks=True)
    answer = gated(gates, count, WHY)
    if answer.rule:
        return [answer, *_sizes(gates, workload, plan.needs, now, shrinks=True)]
    if then > now:
        return [answer, *_sizes(gates, workload, plan.needs, then, shrinks=False)]
    sizes = _grown_first(_sizes(gates, workload, plan.needs, then, shrinks=True))
    if any(answer.wish.grows for answer in sizes):
        return [Answer(count, WHY, Rule.POLICY, SIZES_FIRST), *sizes]
    return [answer, *sizes]


def _grown_first(sizes: Sequence[Answer]) -> list[Answer]:
    return [Answer(each.wish, WHY) if each.wish.grows and each.rule is Rule.MIN_CHANGE else each for each in sizes]


def _sizes(gates: Gates, workload: Workload, needs: Sequence[Need], replicas: int, *, shrinks: bool) -> list[Answer]:
    """Each need's size at so many replicas. A size shrinks only as far as those replicas that are ready can bear."""
    serving = max(1, min(workload.ready, replicas))
    found = []
    for container, need in (
        (each, need) for each in workload.containers for need in needs if need.container == each.name
    ):
        wish = _size(gates.spec, container, need, replicas)
        if not wish.grows and wish.wanted != wish.now:
            least = _size(gates.spec, container, need, serving).wanted if shrinks else wish.now
            wish = wish.at(min(wish.now, max(wish.wanted, least)))
        if wish.value != wish.now:
            found.append(gated(gates, at_most_needed(gates.memory, wish), WHY))
        elif wish.wanted != wish.now:
            found.append(Answer(wish, WHY, Rule.POLICY, NOT_READY))
    return found


def _size(spec: HvpaSpec, container: Container, need: Need, replicas: int) -> Wish:
    request, most = container.sizes[need.resource], _most(spec, need, replicas)
    size = need.each(replicas) if most is None else min(need.each(replicas), most.value)
    value = within_policy(spec.policy(container.name), container, need.resource, size)
    return Wish(None if request is None else request.value, value, value, container.name, need.resource)
