"""What a policy is given and returns, and the policy of Hvpas: the HPA and the VPA beside one, and what both recommend
(S1.1, S1.10).

- ``desired`` says what belongs to a group without looking at the cluster; ``decide`` decides from the present objects.
- A policy keeps nothing but caches between two calls: its memory is in ``PolicyDecision.status``, which becomes the
  object's status. What cannot be read there counts as never remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from itertools import combinations
from typing import Final, Protocol, TypeVar

import msgspec

from protocol.kubernetes.objects import Json, JsonObject, child, items, name_of, uid_of, whole
from protocol.kubernetes.resources import HORIZONTAL_AUTOSCALERS, HVPAS, VERTICAL_AUTOSCALERS, Resource
from protocol.kubernetes.timestamps import micro_timestamp, parse_moment
from protocol.pod_database import is_pod_database
from protocol.units import Seconds
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.core.hvpa.policy import decide as decide_hvpa
from scheduler_plugin.groups.core.hvpa.spec import (
    HvpaMode,
    HvpaSpec,
    PastPods,
    PastReplicas,
    PastTarget,
    PodsMemory,
    Possible,
    ScalingTimes,
    Shrinking,
    UpdateMode,
)
from scheduler_plugin.groups.core.tandem import DeniedRoom
from scheduler_plugin.groups.core.workload import Recommendations, Workload, WorkloadDecision
from scheduler_plugin.groups.objects.autoscalers import (
    horizontal_of,
    hpa_spec,
    vertical_of,
    vpa_spec,
    why_blind,
    why_silent,
)
from scheduler_plugin.groups.objects.hvpa.decoding import Hvpa, decode
from scheduler_plugin.groups.objects.targets import OF_PODS, TargetRef, read_container, read_reference, write_container

BY_AGENTS: Final = ("SizedByAgents", "OptedIn", texts.SIZED_BY_AGENTS)


@dataclass(frozen=True, slots=True)
class Companion:
    """An HPA or VPA beside a group. ``spec`` is what it has to be; None: the decision says what becomes of it, and
    unless it ``may_be_missing`` it has to be there. ``goes_along``: one that a decision makes goes with the group.
    """

    name: str
    spec: Json | None = None
    may_be_missing: bool = False
    goes_along: bool = True


@dataclass(frozen=True, slots=True)
class DesiredState:
    """Objects that belong to a group. ``in_place``: pods are resized as they run, and the template stays. ``sizes``:
    the group writes sizes, so no other may. ``by_agents``: the agents of the nodes size the target's pods, so the group
    must not; ``may_be_by_agents`` is False if the group is of no use then. ``floors``: standbys among such pods get the
    size of their primary as their floor.

    ``hpa_asks_group``: the HPA recommends to the group and scales nothing itself. ``remarks`` are conditions that hold
    as long as the spec is so: type, reason and message.
    """

    target: TargetRef
    hpa: Companion | None = None
    vpa: Companion | None = None
    in_place: bool = False
    sizes: bool = True
    hpa_asks_group: bool = True
    by_agents: bool = False
    may_be_by_agents: bool = True
    floors: bool = False
    remarks: tuple[tuple[str, str, str], ...] = ()

    @property
    def beside(self) -> dict[Resource, Companion]:
        """The HPA and the VPA by their kinds, those that there should be."""
        pairs = ((HORIZONTAL_AUTOSCALERS, self.hpa), (VERTICAL_AUTOSCALERS, self.vpa))
        return {kind: companion for kind, companion in pairs if companion is not None}

    def beside_agents(self, pods: Iterable[JsonObject]) -> DesiredState:
        """The same for a target with these ``pods``: as long as agents size any of them, the group sizes none."""
        if not any(map(is_pod_database, pods)):
            return self
        return replace(self, in_place=False, by_agents=True, remarks=(*self.remarks, BY_AGENTS))


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """Decision of a policy.

    ``status`` is its part of the status, memory included; ``unwritten`` is that part if no part of the decision
    can be written, because sizes come in steps; None: the same. ``hpa`` are fields of the HPA's spec that it sets,
    ``new_hpa`` is the spec of one to be made; ``drops_hpa``: one of the group's own is to go. ``annotations`` are the
    target's; None removes one. ``waits_for`` says which recommendation is missing, empty if none is. ``remarks`` are
    conditions that hold now: type, reason and message. ``pods_differ`` says how pods differ from what was ordered,
    empty if they do not.
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
    """One group and the objects around it. ``desired`` is None, and ``fault`` says why, if the group cannot be
    read.

    ``rivals`` are the other groups that scale the same target, ``others`` says what HPAs and VPAs that are not the
    group's do to it; both empty if there are none. ``pods`` are the target's. ``pause`` is how long after a scaling
    nothing new is decided. ``held`` are writes (by ``Write.what``) to leave alone, because another writer keeps
    overwriting them; ``fights`` has the sentences. ``denied`` is what the scheduler denies the primary of a Cluster.
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
    held: frozenset[str] = frozenset()
    fights: tuple[str, ...] = ()
    denied: DeniedRoom | None = None


class GroupPolicy(Protocol):
    """One kind of group, that of objects of ``kind``."""

    kind: Resource

    def desired(self, group: JsonObject) -> DesiredState:
        """Objects that belong to the group. Raises ``InvalidSpecError``."""

    def decide(self, facts: GroupFacts, workload: Workload, now: datetime) -> PolicyDecision:
        """The decision now for a target that is as ``workload`` says. Raises ``InvalidSpecError``."""


T = TypeVar("T")

REMEMBERED: Final = 10_000
"""At most this many decoded objects are cached."""


class HvpaPolicy:
    """``GroupPolicy`` of Hvpas. Decoded specs are cached by generation, because decoding is slow."""

    kind: Resource = HVPAS

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
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
        """Combine both recommendations. One that cannot be decoded counts as missing."""
        hvpa, before = self._decoded(facts.group), memory_of(child(facts.group, "status"))
        recommendations, missing = _recommendations(hvpa, facts)
        spec = hvpa.spec
        # A plan of sizes and replicas would never change anything without sizes, such as those of a Cluster.
        is_of_pods = read_reference(hvpa.target, "spec.targetRef").resource in OF_PODS
        if spec.mode is HvpaMode.EFFECTIVE_INTERVALS and is_of_pods and not workload.containers:
            spec = replace(spec, mode=HvpaMode.HPA_BIASED, settle=Seconds(0.0))
        decision, after = decide_hvpa(spec, workload, recommendations, before, now)
        # For a decision that rounds to nothing: without a scaling the delays must not start.
        unscaled = replace(after, last_up=before.last_up, last_down=before.last_down)
        status, unwritten = ({"mode": spec.mode.value, **memory_json(memory)} for memory in (after, unscaled))
        differ = "" if workload.pods is None else workload.pods.difference
        return PolicyDecision(decision, status, unwritten, waits_for=missing, pods_differ=differ)

    def _decoded(self, group: JsonObject) -> Hvpa:
        uid, generation = uid_of(group), whole(group, "metadata", "generation")
        cached = self._read.get(uid)
        # A spec never changes without its generation.
        if cached is not None and cached[0] == generation:
            return cached[1]
        hvpa = decode(group)
        # Starting over is simpler than eviction: each object is decoded once more.
        if len(self._read) >= self._remembered:
            self._read.clear()
        self._read[uid] = (generation, hvpa)
        return hvpa


def _overlaps(spec: HvpaSpec) -> tuple[tuple[str, str, str], ...]:
    """A remark on the first two intervals that share a number of replicas."""
    for one, other in combinations([interval.within(spec.replicas) for interval in spec.intervals], 2):
        if one[0] <= other[1] and other[0] <= one[1]:
            message = texts.INTERVALS_OVERLAP.format(one=f"{one[0]}-{one[1]}", other=f"{other[0]}-{other[1]}")
            return (("IntervalsOverlap", "FirstMatchWins", message),)
    return ()


def _recommendations(found: Hvpa, facts: GroupFacts) -> tuple[Recommendations, str]:
    """Recommendations of the HPA and the VPA, and what is missing if there are none."""
    hpa, vpa = facts.hpa, facts.vpa
    horizontal = None if hpa is None or found.hpa is None else horizontal_of(hpa)
    vertical, fault = None, ""
    if vpa is not None and found.vpa is not None:
        try:
            vertical = vertical_of(vpa)
        except ValueError as error:
            fault = str(error)
    if horizontal is not None or vertical is not None:
        return Recommendations(horizontal, vertical), ""
    reasons = (fault, "" if hpa is None else why_blind(hpa), "" if vpa is None else why_silent(vpa))
    why = "; ".join(reason for reason in reasons if reason)
    return Recommendations(), why or texts.NOTHING_YET


def memory_json(memory: ScalingTimes) -> Json:
    """The memory as JSON, without parts that are empty."""
    pods = {
        "past": _entries(memory.pods.past),
        "differSince": _plain(memory.pods.differ_since),
        "possible": _entries(memory.pods.possible),
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


def _entries(values: Iterable[PastTarget | PastReplicas | Shrinking | PastPods | Possible]) -> list[Json]:
    return [{field.name: _plain(getattr(value, field.name)) for field in fields(value)} for value in values]


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [write_container(container) for container in value]
    return micro_timestamp(value.timestamp()) if isinstance(value, datetime) else value


def memory_of(status: JsonObject) -> ScalingTimes:
    """Decode the output of ``memory_json``."""
    pods = child(status, "pods")
    return ScalingTimes(
        parse_moment(status.get("lastScaleUpTime")),
        parse_moment(status.get("lastScaleDownTime")),
        _read(PastTarget, status, "pastTargets"),
        _read(PastReplicas, status, "pastReplicas"),
        _read(Shrinking, status, "shrinking"),
        PodsMemory(tuple(_past(pods)), parse_moment(pods.get("differSince")), _read(Possible, pods, "possible")),
    )


def _read(kind: type[T], source: JsonObject, name: str) -> tuple[T, ...]:
    entries = []
    for entry in items(source, name):
        # A bad entry is skipped; the others still count.
        with suppress(ValueError):
            entries.append(msgspec.convert(entry, kind))
    return tuple(entries)


def _past(pods: JsonObject) -> Iterator[PastPods]:
    for entry in items(pods, "past"):
        since = parse_moment(entry.get("since"))
        try:
            sizes = tuple(read_container(size, "status.pods.past") for size in items(entry, "sizes"))
        except ValueError:
            continue
        if since is not None:
            yield PastPods(since, whole(entry, "ready"), sizes)
