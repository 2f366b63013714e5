"""Proposed changes, and the gates that withhold them: update mode, pods that differ from their spec, delay, maintenance
window and minimum change, in this order (S1.8, S1.9, S1.12).

- An HPA divides use by requests that are up to ``MEASURED_WITHIN`` old. The use may be older (``old_metrics``).
- Decisions wait for pods to match their spec, but only for a limited time.
- Effective intervals shrink only after less has been enough for a while. They grow immediately.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from math import ceil
from typing import Final

from protocol.units import Amount, Bytes, MilliCpu, Seconds
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.core.hvpa.spec import (
    ChangeParams,
    ContainerPolicy,
    DirectionRules,
    Exact,
    HvpaSpec,
    PastPods,
    PodsMemory,
    PossibleSize,
    ScalingTimes,
    Shrinking,
    UpdateMode,
)
from scheduler_plugin.groups.core.workload import (
    ContainerRecommendation,
    HorizontalRecommendation,
    Recommendations,
    Resource,
    Rule,
    RunningPods,
    SizedContainer,
    VerticalRecommendation,
    WithheldChange,
    Workload,
    amount,
    by_name,
)

MEASURED_WITHIN: Final = timedelta(seconds=90)
"""Metrics are up to 60 s old, and an HPA evaluates them every 15 s."""

PATIENCE: Final = timedelta(minutes=5)
"""How long decisions wait for pods to match their spec: the initialization period of the HPA controller."""

REFUSED_PATIENCE: Final = timedelta(minutes=1)
"""The same after a refused in-place resize, when waiting helps little."""

POSSIBLE_FOR: Final = timedelta(days=1)
"""How long a refused resize limits sizes to those that the pods had then."""

MAX_PASTS: Final = 16


def followed(memory: PodsMemory, pods: RunningPods | None, now: datetime) -> PodsMemory:
    """Update the memory with the present pods. Entries with future times are dropped."""
    possible = tuple(limit for limit in memory.possible if timedelta(0) <= now - limit.at < POSSIBLE_FOR)
    if pods is None:
        return PodsMemory(possible=possible)
    since = memory.differ_since
    # A future time comes from another clock, so the difference counts from now.
    since = None if not pods.difference else since if since is not None and since <= now else now
    updated = PodsMemory(_past(memory.past, pods, now), since, possible)
    # A refusal counts after the patience: the kubelet may still find room.
    if waits_for(updated, pods, now) or not pods.difference:
        return updated
    refused = {
        (container.name, resource): PossibleSize(container.name, resource, amount.value, now)
        for container in pods.refused
        for resource, amount in container.sizes
    }
    # The newest refusal per resource counts.
    remaining = tuple(limit for limit in possible if (limit.container, limit.resource) not in refused)
    return PodsMemory(updated.past, since, (*remaining, *refused.values()))


def waits_for(memory: PodsMemory, pods: RunningPods | None, now: datetime) -> str:
    """The pods' difference from their spec, while decisions wait for that; else empty."""
    if pods is None or memory.differ_since is None:
        return ""
    patience = REFUSED_PATIENCE if pods.refused else PATIENCE
    return pods.difference if now - memory.differ_since < patience else ""


def _past(past: Sequence[PastPods], pods: RunningPods, now: datetime) -> tuple[PastPods, ...]:
    """Past states of the pods that a measurement may still describe, then the present one."""
    before = past[-1] if past else None
    is_same = before is not None and (before.ready, before.sizes) == (pods.ready, pods.sizes)
    entries = [*past] if is_same else [*past, PastPods(now, pods.ready, pods.sizes)]
    # An entry ends when the next begins.
    ends = [later.since for later in entries[1:]]
    recent = [entry for entry, end in zip(entries, ends, strict=False) if timedelta(0) <= now - end < MEASURED_WITHIN]
    return (*recent, entries[-1])[-MAX_PASTS:]


def requested(sizes: Sequence[SizedContainer], container: str, resource: Resource) -> int:
    """Request of one container in pods of these sizes; 0 if it has none."""
    sized = by_name(sizes, container)
    amount = None if sized is None else sized.sizes[resource]
    return 0 if amount is None else amount.value


@dataclass(frozen=True, slots=True)
class ProposedChange:
    """A change of the replica count, or of one resource of one container.

    ``current`` is None if the container has no size. ``desired`` is the recommended number, ``value`` the one to write.
    ``container`` and ``resource`` are empty for replicas.
    """

    current: int | None
    desired: int
    value: int
    container: str = ""
    resource: Resource | None = None

    @property
    def present(self) -> int:
        """The current number; 0 if None."""
        return self.current or 0

    @property
    def grows(self) -> bool:
        """True if the desired number is larger than the current one."""
        return self.desired > self.present

    @property
    def subject(self) -> str:
        """Name of what changes, as in the status."""
        return f"{self.container}/{self.resource}" if self.resource else "replicas"

    def formatted(self, value: int) -> str:
        """``value`` in human-readable units."""
        return str(value) if self.resource is None else str(amount(self.resource, value))

    @property
    def change(self) -> str:
        """Text of the change, with the desired number if another one is written."""
        description = f"{self.subject}: {self.formatted(self.present)} to {self.formatted(self.value)}"
        return description if self.value == self.desired else f"{description} of {self.formatted(self.desired)}"

    def at(self, value: int) -> ProposedChange:
        """The same change, but writing ``value``."""
        return replace(self, value=value)

    def withheld_by(self, rule: Rule, message: str = "") -> WithheldChange:
        """This change as withheld by ``rule``."""
        if self.resource is None:
            return WithheldChange(self.subject, self.desired, self.current, rule, message)
        current = None if self.current is None else amount(self.resource, self.current)
        return WithheldChange(self.subject, amount(self.resource, self.desired), current, rule, message)


def replica_proposal(
    spec: HvpaSpec, workload: Workload, recommended: HorizontalRecommendation | None
) -> ProposedChange | None:
    """The HPA's recommendation within the bounds; None if nothing changes. Without an HPA only the bounds apply."""
    desired = spec.replicas.clamp(workload.replicas if recommended is None else recommended.desired)
    return None if desired == workload.replicas else ProposedChange(workload.replicas, desired, desired)


@dataclass(frozen=True, slots=True)
class VerticalProposals:
    """Proposed sizes, and those that would change if they were not at a bound."""

    proposals: tuple[ProposedChange, ...]
    at_bounds: tuple[ProposedChange, ...]


def vertical_proposals(spec: HvpaSpec, workload: Workload, recommendations: Recommendations) -> VerticalProposals:
    """The VPA's recommendation for each container, within minAllowed and maxAllowed."""
    proposals: list[ProposedChange] = []
    at_bounds: list[ProposedChange] = []
    for container, recommended in sized_containers(spec, workload, recommendations):
        for resource, target in recommended.target:
            policy = spec.policy(container.name)
            if resource not in policy.resources:
                continue
            request = container.sizes[resource]
            current = None if request is None else request.value
            desired = within_policy(policy, container, resource, target.value)
            # Only the uncapped target shows what is needed beyond the bounds.
            beyond = (recommended.uncapped[resource] or target).value
            if desired != (current or 0):
                proposals.append(ProposedChange(current, desired, desired, container.name, resource))
            elif within_policy(policy, container, resource, beyond) != beyond:
                at_bounds.append(ProposedChange(current, beyond, desired, container.name, resource))
    return VerticalProposals(tuple(proposals), tuple(at_bounds))


def within_policy(policy: ContainerPolicy, container: SizedContainer, resource: Resource, value: int) -> int:
    """The nearest request that the policy allows: within its bounds, and within a fixed limit."""
    # A fixed limit bounds the request too: the API server refuses a request above its limit.
    limit = None if policy.controls_limits else container.limits[resource]
    bounded = policy.bounds.clamp(resource, value)
    return bounded if limit is None else min(bounded, limit.value)


def is_sized(spec: HvpaSpec, container: str, resource: Resource) -> bool:
    """Return True if the group may size that resource of that container."""
    policy = spec.policy(container)
    return not policy.is_off and resource in policy.resources


def sized_containers(
    spec: HvpaSpec, workload: Workload, recommendations: Recommendations
) -> list[tuple[SizedContainer, ContainerRecommendation]]:
    """Containers with a recommendation that are not switched off."""
    vertical = recommendations.vertical or VerticalRecommendation()
    return [
        (container, recommended)
        for container in workload.containers
        if (recommended := vertical.container(container.name)) and not spec.policy(container.name).is_off
    ]


def no_lower_than_recent_need(memory: ScalingTimes, proposal: ProposedChange) -> ProposedChange:
    """Limit a decrease to the maximum need of the time for which less has been enough."""
    waiting = _waiting_decrease(memory, proposal)
    # The maximum, so that noise does not revert the change.
    return (
        proposal
        if waiting is None or proposal.grows
        else proposal.at(min(proposal.present, max(proposal.value, waiting.highest)))
    )


def shrinkable_since(memory: ScalingTimes, proposal: ProposedChange, now: datetime) -> datetime:
    """Since when fewer than the present number have been enough."""
    waiting = _waiting_decrease(memory, proposal)
    # A future time comes from another clock and counts as now.
    return now if waiting is None else min(waiting.since, now)


def with_waiting_decreases(memory: ScalingTimes, waiting: Iterable[ProposedChange], now: datetime) -> ScalingTimes:
    """Replace the waiting decreases in the memory."""
    # Drop the others, so that a sample that needs the present size restarts the wait.
    shrinking = tuple(
        Shrinking(proposal.subject, shrinkable_since(memory, proposal, now), proposal.value) for proposal in waiting
    )
    return replace(memory, shrinking=shrinking)


def _waiting_decrease(memory: ScalingTimes, proposal: ProposedChange) -> Shrinking | None:
    return next((shrinking for shrinking in memory.shrinking if shrinking.subject == proposal.subject), None)


DEFAULT_MIN_CHANGE: Final[dict[Resource, Amount]] = {"cpu": MilliCpu(200), "memory": Bytes(200_000_000)}
"""Minimum change if the object has neither value nor percentage."""


def threshold(params: ChangeParams, current: Exact, default: Exact) -> Fraction:
    """Minimum change from ``current``: the smaller of value and percentage, or the default if none is set."""
    # Without a request a percentage is 0, so any change counts.
    parts = params.parts(current)
    return min(parts) if parts else Fraction(default)


def is_enough(current: Exact, new: Exact, min_change: Fraction) -> bool:
    """Return True if the change from ``current`` to ``new`` is at least ``min_change``."""
    return abs(Fraction(new) - current) >= min_change


def delay_passed(last: datetime | None, now: datetime, delay: Seconds) -> bool:
    """Return True if at least ``delay`` has passed since ``last``, or if ``last`` is in the future."""
    # A future time comes from another clock; waiting for it could take forever.
    return last is None or last > now or (now - last).total_seconds() >= delay


@dataclass(frozen=True, slots=True)
class Gates:
    """The gates at the time ``now``. Delays and minimum changes do not apply to memory of ``out_of_memory`` containers.

    ``pods_differ`` is how pods differ from their spec, empty if decisions do not wait for that.
    """

    spec: HvpaSpec
    memory: ScalingTimes
    now: datetime
    out_of_memory: frozenset[str] = frozenset()
    pods_differ: str = ""

    def rules(self, proposal: ProposedChange) -> DirectionRules:
        """Rules for the axis and direction of ``proposal``."""
        axis = self.spec.vertical if proposal.resource else self.spec.horizontal
        return axis.up if proposal.grows else axis.down

    def is_urgent(self, proposal: ProposedChange) -> bool:
        """Return True if it gives more memory to a container that ran out of memory."""
        return proposal.container in self.out_of_memory and proposal.resource == "memory" and proposal.grows

    def blocked_by(self, proposal: ProposedChange) -> tuple[Rule, str] | None:
        """The rule that withholds the change, with a message; None if it may be written."""
        rules, urgent = self.rules(proposal), self.is_urgent(proposal)
        if rules.mode is UpdateMode.OFF:
            return Rule.UPDATE_MODE, texts.MODE_OFF
        # Recommendations still describe the old pods.
        if not urgent and self.pods_differ:
            return Rule.PODS_DIFFER, texts.PODS_DIFFER.format(difference=self.pods_differ)
        if not urgent and not delay_passed(self._last(proposal), self.now, rules.delay):
            return self._delayed(proposal)
        # Off and the maintenance window apply to urgent changes too.
        window = self.spec.window
        if rules.mode is UpdateMode.MAINTENANCE_WINDOW and not (window is not None and window.contains(self.now)):
            return Rule.MAINTENANCE_WINDOW, texts.UNTIL_WINDOW.format(window=window) if window else texts.NO_WINDOW
        min_change = self._min_change(proposal)
        if not urgent and not is_enough(proposal.present, proposal.value, min_change):
            return Rule.MIN_CHANGE, texts.SMALL_CHANGE.format(min_change=proposal.formatted(ceil(min_change)))
        # Decreases must settle. Reported as a delay, so that there is a single time to wait for.
        is_settled = proposal.grows or delay_passed(
            shrinkable_since(self.memory, proposal, self.now), self.now, self.spec.settle
        )
        return None if is_settled else self._delayed(proposal)

    def _delayed(self, proposal: ProposedChange) -> tuple[Rule, str]:
        """Rule and message with the time at which delay and settling are over, if less is still enough then."""
        until = (self._last(proposal) or self.now) + timedelta(seconds=self.rules(proposal).delay)
        if self.spec.settle and not proposal.grows:
            until = max(until, shrinkable_since(self.memory, proposal, self.now) + timedelta(seconds=self.spec.settle))
        return Rule.DELAY, texts.UNTIL.format(time=until.astimezone(UTC))

    def _last(self, proposal: ProposedChange) -> datetime | None:
        return self.memory.last_up if proposal.grows else self.memory.last_down

    def _min_change(self, proposal: ProposedChange) -> Fraction:
        if proposal.resource is None:
            # Any change of replicas counts.
            return Fraction(0)
        params = self.rules(proposal).min_change[proposal.resource]
        return threshold(params, proposal.present, DEFAULT_MIN_CHANGE[proposal.resource].value)


@dataclass(frozen=True, slots=True)
class GatedChange:
    """A proposed change, its reason ``why``, and the rule that withholds it; None if it is written."""

    proposal: ProposedChange
    why: str
    rule: Rule | None = None
    message: str = ""


def gated(gates: Gates, proposal: ProposedChange, why: str) -> GatedChange:
    """Check the proposed change against the gates."""
    return GatedChange(proposal, why, *(gates.blocked_by(proposal) or ()))


def written(outcomes: Iterable[GatedChange]) -> list[ProposedChange]:
    """Changes to write."""
    return [outcome.proposal for outcome in outcomes if outcome.rule is None]
