"""Desired state of a group, the facts that its policy decides from, and the result of reconciling it.

Rules that hold here:

- ``desired`` says what belongs to a group without looking at the cluster; ``decide`` decides from the present objects.
- A policy keeps nothing but caches between two calls: its memory is in ``PolicyDecision.status``, which becomes the
  object's status.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from protocol.kubernetes.objects import Json, JsonObject
from protocol.kubernetes.resources import HORIZONTAL_AUTOSCALERS, VERTICAL_AUTOSCALERS, Resource
from scheduler_plugin.groups.core.workload import SizedContainer, Workload, WorkloadDecision
from scheduler_plugin.groups.core.writes import Write
from scheduler_plugin.groups.objects.intents import Intent
from scheduler_plugin.groups.objects.targets import TargetKind, TargetRef


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
    the group writes sizes, so no other may.

    ``hpa_asks_group``: the HPA recommends to the group and scales nothing itself. ``remarks`` are conditions that hold
    as long as the spec is so: type, reason and message.
    """

    target: TargetRef
    hpa: Companion | None = None
    vpa: Companion | None = None
    in_place: bool = False
    sizes: bool = True
    hpa_asks_group: bool = True
    remarks: tuple[tuple[str, str, str], ...] = ()

    @property
    def beside(self) -> dict[Resource, Companion]:
        """The HPA and the VPA by their kinds, those that there should be."""
        pairs = ((HORIZONTAL_AUTOSCALERS, self.hpa), (VERTICAL_AUTOSCALERS, self.vpa))
        return {kind: companion for kind, companion in pairs if companion is not None}


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
    overwriting them; ``fights`` has the sentences.
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


@dataclass(eq=True, unsafe_hash=True)
class StopError(Exception):
    """Nothing may be scaled: ``reason`` in CamelCase, ``message`` for people."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ScalableTarget:
    """A target that can be scaled, as its ``template`` says, and what to write of the objects beside the group.

    ``sizes`` are those that running pods were resized to, as long as the template is as it was then.
    """

    desired: DesiredState
    target: JsonObject
    kind: TargetKind
    template: Workload
    upkeep: tuple[Write, ...]
    sizes: tuple[SizedContainer, ...] = ()


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """The writes to make, in this order: ``upkeep`` of the objects beside the group, the whole ``status``, the
    ``intent``, the deletion of the HPA ``drop``, and the ``inbox``. ``sizes`` are what running pods should have if they
    are resized in place.
    """

    status: Json
    upkeep: tuple[Write, ...] = ()
    intent: Intent | None = None
    drop: JsonObject | None = None
    inbox: Write | None = None
    sizes: tuple[SizedContainer, ...] = ()
    problem: StopError | None = None


class GroupPolicy(Protocol):
    """One kind of group."""

    @property
    def kind(self) -> Resource:
        """The kind of its objects."""

    def desired(self, group: JsonObject) -> DesiredState:
        """Objects that belong to the group. Raises ``InvalidSpecError``."""

    def decide(self, facts: GroupFacts, workload: Workload, now: datetime) -> PolicyDecision:
        """The decision now for a target that is as ``workload`` says. Raises ``InvalidSpecError``."""
