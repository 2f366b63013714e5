"""The interface of policies, and the policy of Hvpas: combined recommendations of an HPA and a VPA (S1.1, S1.10).

- ``desired`` depends on the group only, ``decide`` also on the present objects.
- A policy keeps only caches between calls. Its memory is in ``PolicyDecision.status``, which becomes part of the
  group's status. Unreadable parts of it count as missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from itertools import combinations
from typing import Final, Protocol, TypeVar

import msgspec

from protocol.kubernetes.objects import Json, JsonObject, child, integer, items, name_of, uid_of
from protocol.kubernetes.resources import (
    HORIZONTAL_AUTOSCALERS,
    HVPAS,
    PODS,
    REPLICA_SETS,
    VERTICAL_AUTOSCALERS,
    Resource,
)
from protocol.kubernetes.timestamps import micro_timestamp, parse_datetime
from protocol.pod_database import is_pod_database
from protocol.units import Seconds
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.controllers.controller import REPLICA_WRITERS
from scheduler_plugin.groups.core.hvpa.old_metrics import OLDEST_METRICS
from scheduler_plugin.groups.core.hvpa.policy import decide as decide_hvpa
from scheduler_plugin.groups.core.hvpa.spec import (
    HvpaMode,
    HvpaSpec,
    MeasuredCount,
    PastPods,
    PastReplicas,
    PastTarget,
    PodsMemory,
    PossibleSize,
    ScalingTimes,
    Shrinking,
    UpdateMode,
)
from scheduler_plugin.groups.core.tandem import NO_DENIALS, DenialHistory, DeniedRoom
from scheduler_plugin.groups.core.workload import Recommendations, Workload, WorkloadDecision
from scheduler_plugin.groups.objects.autoscalers import (
    horizontal_of,
    hpa_spec,
    inactive_reason,
    unusable_reason,
    vertical_of,
    vpa_spec,
)
from scheduler_plugin.groups.objects.hvpa.decoding import Hvpa, decode
from scheduler_plugin.groups.objects.targets import OF_PODS, TargetRef, read_container, read_reference, write_container

DEPENDENCIES: Final = (*REPLICA_WRITERS, VERTICAL_AUTOSCALERS, PODS, REPLICA_SETS)
"""Kinds that every group with a policy depends on, besides its target's kind."""

BY_AGENTS: Final = ("SizedByAgents", "OptedIn", texts.SIZED_BY_AGENTS)


@dataclass(frozen=True, slots=True)
class Companion:
    """The HPA or VPA of a group.

    ``spec`` is its required spec. If it is None, decisions set the fields, and the object must exist unless it
    ``may_be_missing``. ``deleted_with_group`` applies to one that a decision created.
    """

    name: str
    spec: Json | None = None
    may_be_missing: bool = False
    deleted_with_group: bool = True


@dataclass(frozen=True, slots=True)
class DesiredState:
    """The objects of a group, and what it may write.

    - ``in_place``: running pods are resized, and the template does not change.
    - ``sizes``: the group writes sizes, so no other writer may.
    - ``by_agents``: node agents size the target's pods, so the group does not. ``allows_agents`` is False if the group
      would then have nothing to do.
    - ``floors``: standbys among such pods get the size of their primary as a floor.
    - ``hpa_targets_group``: the HPA only recommends, because its target is the group.
    - ``remarks``: conditions that follow from the spec, as type, reason and message.
    """

    target: TargetRef
    hpa: Companion | None = None
    vpa: Companion | None = None
    in_place: bool = False
    sizes: bool = True
    hpa_targets_group: bool = True
    by_agents: bool = False
    allows_agents: bool = True
    floors: bool = False
    remarks: tuple[tuple[str, str, str], ...] = ()

    @property
    def companions(self) -> dict[Resource, Companion]:
        """The required HPA and VPA, by kind."""
        pairs = ((HORIZONTAL_AUTOSCALERS, self.hpa), (VERTICAL_AUTOSCALERS, self.vpa))
        return {kind: companion for kind, companion in pairs if companion is not None}

    def adjusted_for_agents(self, pods: Iterable[JsonObject]) -> DesiredState:
        """Adjust to the target's ``pods``: if agents size any of them, the group sizes none."""
        if not any(map(is_pod_database, pods)):
            return self
        return replace(self, in_place=False, by_agents=True, remarks=(*self.remarks, BY_AGENTS))


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """Decision of a policy.

    - ``status``: the policy's part of the group's status, including its memory. ``unwritten`` replaces it, unless it is
      None, if rounding leaves nothing to write.
    - ``hpa``: fields to set in the HPA's spec. ``new_hpa``: spec of an HPA to create. ``drops_hpa``: delete the group's
      own HPA.
    - ``annotations``: annotations of the target to set; None removes one.
    - ``waits_for``: why there is no recommendation, empty if there is one.
    - ``remarks``: present conditions, as type, reason and message.
    - ``pods_differ``: how pods differ from their spec, empty if they do not.
    """

    decision: WorkloadDecision
    status: Json = field(default_factory=dict)
    unwritten: Json | None = None
    hpa: Json = field(default_factory=dict)
    new_hpa: Json | None = None
    drops_hpa: bool = False
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    waits_for: str = ""
    remarks: tuple[tuple[str, str, str], ...] = ()
    pods_differ: str = ""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """One group and its objects. If the group is invalid, ``desired`` is None and ``fault`` says why.

    - ``rivals``: other groups with the same target. ``others``: what foreign HPAs and VPAs do to the target.
    - ``pods``: the pods of the target.
    - ``pause``: the time after a scaling in which nothing is decided.
    - ``paused``: writes (``Write.what``) to leave out because another writer keeps overwriting them. ``disputes``:
      sentences about these disputes.
    - ``denied``: the scheduler's denial for the primary of a Cluster. ``denials``: earlier ones.
    """

    group: JsonObject
    desired: DesiredState | None = None
    fault: str = ""
    target: JsonObject | None = None
    hpa: JsonObject | None = None
    vpa: JsonObject | None = None
    rivals: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    pods: tuple[JsonObject, ...] = ()
    pause: timedelta = timedelta(0)
    paused: frozenset[str] = frozenset()
    disputes: tuple[str, ...] = ()
    denied: DeniedRoom | None = None
    denials: DenialHistory = NO_DENIALS


class GroupPolicy(Protocol):
    """Policy of groups of ``kind``."""

    kind: Resource

    def desired(self, group: JsonObject) -> DesiredState:
        """The desired objects of the group. Raises ``InvalidSpecError``."""

    def decide(self, facts: GroupFacts, workload: Workload, now: datetime) -> PolicyDecision:
        """Decide on changes of the target, ``workload``. Raises ``InvalidSpecError``."""


T = TypeVar("T")

REMEMBERED: Final = 10_000
"""Maximum number of cached decoded objects."""


class HvpaPolicy:
    """``GroupPolicy`` of Hvpas. Decoded specs are cached by generation."""

    kind: Resource = HVPAS

    def __init__(self) -> None:
        self._read: dict[str, tuple[int, Hvpa]] = {}

    def desired(self, group: JsonObject) -> DesiredState:
        """An HPA and a VPA with the Hvpa's name, each if the Hvpa has a template for it."""
        hvpa, name = self._decoded(group), name_of(group).name
        return DesiredState(
            read_reference(hvpa.target, "spec.targetRef"),
            None if hvpa.hpa is None else Companion(name, hpa_spec(hvpa.hpa, group)),
            None if hvpa.vpa is None else Companion(name, vpa_spec(hvpa.vpa, hvpa.target)),
            in_place=hvpa.in_place,
            floors=hvpa.spec.vertical.up.mode is not UpdateMode.OFF,
            sizes=hvpa.vpa is not None or hvpa.spec.mode is HvpaMode.EFFECTIVE_INTERVALS,
            remarks=_overlaps(hvpa.spec),
        )

    def decide(self, facts: GroupFacts, workload: Workload, now: datetime) -> PolicyDecision:
        """Combine both recommendations; an undecodable one counts as missing."""
        hvpa, before = self._decoded(facts.group), memory_of(child(facts.group, "status"))
        recommendations, missing = _recommendations(hvpa, facts)
        spec = hvpa.spec
        # Without container sizes, as of a Cluster, effective intervals would never change anything.
        is_of_pods = read_reference(hvpa.target, "spec.targetRef").resource in OF_PODS
        if spec.mode is HvpaMode.EFFECTIVE_INTERVALS and is_of_pods and not workload.containers:
            spec = replace(spec, mode=HvpaMode.HPA_BIASED, settle=Seconds(0.0))
        decision, after = decide_hvpa(spec, workload, recommendations, before, now)
        # If rounding leaves nothing to write, no delay must start.
        unscaled = replace(after, last_up=before.last_up, last_down=before.last_down)
        status, unwritten = ({"mode": spec.mode.value, **memory_json(memory)} for memory in (after, unscaled))
        differ = "" if workload.pods is None else workload.pods.difference
        return PolicyDecision(decision, status, unwritten, waits_for=missing, pods_differ=differ)

    def _decoded(self, group: JsonObject) -> Hvpa:
        uid, generation = uid_of(group), integer(group, "metadata", "generation")
        cached = self._read.get(uid)
        # The generation changes with the spec.
        if cached is not None and cached[0] == generation:
            return cached[1]
        hvpa = decode(group)
        # Clearing is simpler than eviction, and a spec is decoded again when needed.
        if len(self._read) >= REMEMBERED:
            self._read.clear()
        self._read[uid] = (generation, hvpa)
        return hvpa


def _overlaps(spec: HvpaSpec) -> tuple[tuple[str, str, str], ...]:
    """A remark on the first two overlapping intervals."""
    for one, other in combinations([interval.within(spec.replicas) for interval in spec.intervals], 2):
        if one[0] <= other[1] and other[0] <= one[1]:
            message = texts.INTERVALS_OVERLAP.format(one=f"{one[0]}-{one[1]}", other=f"{other[0]}-{other[1]}")
            return (("IntervalsOverlap", "FirstMatchWins", message),)
    return ()


def _recommendations(hvpa: Hvpa, facts: GroupFacts) -> tuple[Recommendations, str]:
    """Recommendations of the HPA and the VPA, and why there are none, else an empty text."""
    hpa, vpa = facts.hpa, facts.vpa
    horizontal = None if hpa is None or hvpa.hpa is None else horizontal_of(hpa)
    vertical, fault = None, ""
    if vpa is not None and hvpa.vpa is not None:
        try:
            vertical = vertical_of(vpa)
        except ValueError as error:
            fault = str(error)
    if horizontal is not None or vertical is not None:
        return Recommendations(horizontal, vertical), ""
    reasons = (fault, "" if hpa is None else inactive_reason(hpa), "" if vpa is None else unusable_reason(vpa))
    why = "; ".join(reason for reason in reasons if reason)
    return Recommendations(), why or texts.NOTHING_YET


def memory_json(memory: ScalingTimes) -> Json:
    """The memory as JSON, without empty parts."""
    pods = {
        "past": _entries(memory.pods.past),
        "differSince": _plain(memory.pods.differ_since),
        "possible": _entries(memory.pods.possible),
        "counts": _entries(memory.pods.counts),
        "metricsLagSeconds": memory.pods.lag,
    }
    parts = {
        "lastScaleUpTime": _plain(memory.last_up),
        "lastScaleDownTime": _plain(memory.last_down),
        "pastTargets": _entries(memory.targets),
        "pastReplicas": _entries(memory.counts),
        "shrinking": _entries(memory.shrinking),
        "pods": {name: value for name, value in pods.items() if value},
    }
    return {name: value for name, value in parts.items() if value}


def _entries(
    values: Iterable[PastTarget | PastReplicas | Shrinking | PastPods | PossibleSize | MeasuredCount],
) -> list[Json]:
    return [{field.name: _plain(getattr(value, field.name)) for field in fields(value)} for value in values]


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [write_container(container) for container in value]
    return micro_timestamp(value.timestamp()) if isinstance(value, datetime) else value


def memory_of(status: JsonObject) -> ScalingTimes:
    """Decode the result of ``memory_json``."""
    pods = child(status, "pods")
    return ScalingTimes(
        parse_datetime(status.get("lastScaleUpTime")),
        parse_datetime(status.get("lastScaleDownTime")),
        _read(PastTarget, status, "pastTargets"),
        _read(PastReplicas, status, "pastReplicas"),
        _read(Shrinking, status, "shrinking"),
        PodsMemory(
            tuple(_past(pods)),
            parse_datetime(pods.get("differSince")),
            _read(PossibleSize, pods, "possible"),
            _read(MeasuredCount, pods, "counts"),
            _lag(pods.get("metricsLagSeconds")),
        ),
    )


def _read(kind: type[T], source: JsonObject, name: str) -> tuple[T, ...]:
    entries = []
    for entry in items(source, name):
        # Skip invalid entries.
        with suppress(ValueError):
            entries.append(msgspec.convert(entry, kind))
    return tuple(entries)


def _lag(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value <= OLDEST_METRICS.total_seconds() else None


def _past(pods: JsonObject) -> Iterator[PastPods]:
    for entry in items(pods, "past"):
        since = parse_datetime(entry.get("since"))
        try:
            sizes = tuple(read_container(size, "status.pods.past") for size in items(entry, "sizes"))
        except ValueError:
            continue
        if since is not None:
            yield PastPods(since, integer(entry, "ready"), sizes)
