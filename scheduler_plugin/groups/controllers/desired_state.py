"""Desired state of a group, the facts that its policy decides from, and the result of reconciling it; and the writes
that keep the HPA and the VPA beside it in their desired state.

Rules that hold here:

- ``desired`` says what belongs to a group without looking at the cluster; ``decide`` decides from the present objects.
- A policy keeps nothing but caches between two calls: its memory is in ``PolicyDecision.status``, which becomes the
  object's status.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Protocol

from protocol.kubernetes.objects import Json, JsonObject, annotations_of, child, is_leaving, name_of, text, version_of
from protocol.kubernetes.resources import HORIZONTAL_AUTOSCALERS, VERTICAL_AUTOSCALERS, Resource
from protocol.messages import ObjectName
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.core.workload import SizedContainer, Workload, WorkloadDecision
from scheduler_plugin.groups.core.writes import Write, adapted, creation, holds, is_owned_by, refuse_foreign
from scheduler_plugin.groups.objects.autoscalers import about
from scheduler_plugin.groups.objects.intents import Intent
from scheduler_plugin.groups.objects.targets import TargetRef, api_group


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
    kind: Resource
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


def companions(facts: GroupFacts, desired: DesiredState) -> tuple[Write, ...]:
    """Writes that bring the HPA and the VPA to their desired state.

    Raises ``StopError`` if one is missing or about another workload, ``ForeignObjectError`` if one is another
    controller's, and ``TooLargeError`` if one could not be put back.
    """
    writes = []
    for resource, companion in desired.beside.items():
        obj = facts.hpa if resource is HORIZONTAL_AUTOSCALERS else facts.vpa
        # One that the group owns gets its reference rewritten below, so it needs no check.
        if obj is not None and (companion.spec is None or not is_owned_by(obj, facts.group)):
            _refuse_other_workload(resource, obj, facts.group, desired)
        if companion.spec is not None:
            writes.append(upkeep(resource, obj, facts.group, companion.name, companion.spec))
        elif obj is None and not companion.may_be_missing:
            raise StopError("AutoscalerMissing", texts.NOT_THERE.format(object=f"{resource.kind} {companion.name}"))
    return tuple(write for write in writes if write is not None)


def upkeep(resource: Resource, found: JsonObject | None, owner: JsonObject, name: str, spec: Json) -> Write | None:
    """The write that gives the object ``name`` its ``spec``; None if it has it.

    Raises ``ForeignObjectError`` if the object belongs to another controller, and ``TooLargeError``.
    """
    object_name, what = ObjectName(name_of(owner).namespace, name), resource.kind
    if found is None:
        return creation(resource, owner, name, spec)
    patch = _spec_patch(child(found, "spec"), spec)
    if is_owned_by(found, owner):
        # The garbage collector deletes it with its group, so there is nothing to put back later.
        return Write(what, resource, object_name, patch, version=version_of(found)) if patch else None
    refuse_foreign(found, resource, owner)
    return adapted(what, resource, found, owner, child(patch, "spec")) if patch else None


OPTIONAL: Final = ("behavior", "resourcePolicy")
"""Fields of an HPA's and a VPA's spec that are removed once the group no longer sets them."""


def _spec_patch(old: Json, spec: Json) -> Json:
    # Defaults that the API server filled in beside our fields do not count as a difference.
    changed: Json = {name: value for name, value in spec.items() if not holds(old.get(name), value)}
    # null in a merge patch removes the field.
    changed |= {name: None for name in OPTIONAL if name in old and name not in spec}
    return {"spec": changed} if changed else {}


def _refuse_other_workload(resource: Resource, found: JsonObject, group: JsonObject, desired: DesiredState) -> None:
    """Raises ``StopError`` if an HPA or a VPA is about neither the group nor its target: it is in use elsewhere."""
    refuse_foreign(found, resource, group)
    subject = about(found, resource)
    # An HPA may point to the group's `/scale` or scale the target itself; both are fine.
    if subject not in (desired.target, TargetRef(api_group(group), text(group, "kind"), name_of(group).name)):
        what = str(subject).strip() or "nothing"
        raise StopError(
            "ForeignAutoscaler",
            texts.AUTOSCALER_ELSEWHERE.format(kind=resource.kind, name=name_of(found).name, subject=what),
        )


def managed(facts: GroupFacts, found: ScalableTarget, decision: PolicyDecision) -> tuple[Write, ...]:
    """Writes beside the scaling that are safe to repeat: a new HPA, annotations of the target."""
    writes: list[Write] = []
    companion, new = found.desired.hpa, decision.new_hpa
    if companion is not None and new is not None and facts.hpa is None:
        writes.append(creation(HORIZONTAL_AUTOSCALERS, facts.group, companion.name, new, owned=companion.goes_along))
    current = annotations_of(found.target)
    if patch := {name: value for name, value in decision.annotations.items() if current.get(name) != value}:
        body: Json = {"metadata": {"annotations": patch}}
        version = version_of(found.target)
        writes.append(Write("annotations", found.kind, name_of(found.target), body, version=version))
    return tuple(writes)


def hpa_changes(hpa: JsonObject | None, wanted: Json) -> Json:
    """The fields of the HPA's spec that are not as they are ``wanted``."""
    if hpa is None:
        return {}
    spec = child(hpa, "spec")
    return {name: value for name, value in wanted.items() if not holds(spec.get(name), value)}


def hpa_write(facts: GroupFacts, wanted: Json) -> Write | None:
    """Sets the fields of the group's HPA that are not as ``wanted``; None if all are.

    One that the group did not make itself gets a record of what it was. Raises ``TooLargeError``.
    """
    hpa, fields = facts.hpa, hpa_changes(facts.hpa, wanted)
    if hpa is None or not fields:
        return None
    companion = None if facts.desired is None else facts.desired.hpa
    # `may_be_missing` marks an HPA that the group makes itself: it has no earlier spec to record.
    if companion is None or companion.may_be_missing:
        return Write("autoscaler", HORIZONTAL_AUTOSCALERS, name_of(hpa), {"spec": fields}, version=version_of(hpa))
    return adapted("autoscaler", HORIZONTAL_AUTOSCALERS, hpa, facts.group, fields)


def released(resource: Resource, found: JsonObject, group: JsonObject | None, desired: DesiredState | None) -> bool:
    """Return True if an HPA or a VPA whose record names the group is to be put back.

    ``group`` is None if it is gone, ``desired`` if it cannot be read: then nothing is put back.
    """
    if group is None or is_leaving(group):
        return True
    # An invalid spec may still mean to use it, and nothing is lost until someone corrects the spec.
    if desired is None:
        return False
    companion = desired.beside.get(resource)
    return companion is None or companion.name != name_of(found).name


def inbox(kind: Resource, facts: GroupFacts, found: ScalableTarget) -> Write | None:
    """Sets the group's own ``/scale`` back to the present replicas, from which an HPA that recommends to the group
    computes its next count. The caller adds the version, because writing the status changes it.
    """
    replicas = found.template.replicas
    recommends = found.desired.hpa is not None and found.desired.hpa_asks_group
    if not recommends or child(facts.group, "spec").get("replicas") == replicas:
        return None
    return Write("inbox", kind, name_of(facts.group), {"spec": {"replicas": replicas}}, "scale")
