"""The objects beside a group: its HPA, its VPA, and its own ``/scale``, into which an HPA writes its wish."""

from __future__ import annotations

from typing import Final

from protocol.kubernetes.objects import Json, JsonObject, annotations_of, child, is_leaving, name_of, text, version_of
from protocol.kubernetes.resources import HORIZONTAL_AUTOSCALERS, VERTICAL_AUTOSCALERS, Resource
from protocol.messages import ObjectName
from scheduler_plugin.groups.objects.ownership import creation, holds, is_owned_by, refuse_foreign
from scheduler_plugin.groups.objects.writes import Write
from scheduler_plugin.groups.policies.facts import GroupFacts, ScalableTarget, StopError
from scheduler_plugin.groups.policies.originals import adapted
from scheduler_plugin.groups.policies.policy import DesiredObjects, PolicyDecision

_REFERENCE: Final = {HORIZONTAL_AUTOSCALERS: "scaleTargetRef", VERTICAL_AUTOSCALERS: "targetRef"}
"""Where each kind names what it is about."""


def companions(facts: GroupFacts, arrangement: DesiredObjects) -> tuple[Write, ...]:
    """Writes that bring the HPA and the VPA to their desired state.

    Raises ``StopError`` if one is missing or about another workload, ``ForeignObjectError`` if one is another
    controller's, and ``TooLargeError`` if one could not be put back.
    """
    pairs = (
        (HORIZONTAL_AUTOSCALERS, arrangement.hpa, facts.hpa),
        (VERTICAL_AUTOSCALERS, arrangement.vpa, facts.vpa),
    )
    writes = []
    for resource, companion, obj in pairs:
        if companion is None:
            continue
        # One of our own is about the right workload, because we wrote its spec.
        if obj is not None and (companion.spec is None or not is_owned_by(obj, facts.group)):
            _refuse_other_workload(resource, obj, facts.group, arrangement)
        if companion.spec is not None:
            writes.append(upkeep(resource, obj, facts.group, companion.name, companion.spec))
        elif obj is None and not companion.may_be_missing:
            raise StopError("AutoscalerMissing", f"{resource.kind} {companion.name} is not there")
    return tuple(write for write in writes if write is not None)


def upkeep(resource: Resource, found: JsonObject | None, owner: JsonObject, name: str, spec: Json) -> Write | None:
    """The write that gives the object ``name`` its ``spec``; None if it has it.

    Raises ``ForeignObjectError`` if the object belongs to another controller, and ``TooLargeError``.
    """
    where, what = ObjectName(name_of(owner).namespace, name), resource.kind
    if found is None:
        return creation(resource, owner, name, spec)
    patch = _spec_patch(child(found, "spec"), spec)
    if is_owned_by(found, owner):
        # One of our own goes with the group, so it needs no record of what it was.
        return Write(what, resource, where, patch, version=version_of(found)) if patch else None
    refuse_foreign(found, resource, owner)
    return adapted(what, resource, found, owner, child(patch, "spec")) if patch else None


OPTIONAL: Final = ("behavior", "resourcePolicy")
"""Fields of an HPA's and a VPA's spec that go when they are wanted no more."""


def _spec_patch(old: Json, spec: Json) -> Json:
    # What the API server filled in beside our fields is no difference.
    changed: Json = {name: value for name, value in spec.items() if not holds(old.get(name), value)}
    changed |= {name: None for name in OPTIONAL if name in old and name not in spec}
    return {"spec": changed} if changed else {}


def _refuse_other_workload(
    resource: Resource, found: JsonObject, group: JsonObject, arrangement: DesiredObjects
) -> None:
    """Raises ``StopError`` if an HPA or a VPA is about neither the group nor its target: it is in use elsewhere."""
    refuse_foreign(found, resource, group)
    reference, target = child(found, "spec", _REFERENCE[resource]), arrangement.target
    about = _identity(reference)
    # Both are right: an HPA may ask the group or scale the target itself.
    if about not in ((target.group, target.kind, target.name), _identity(group, text(group, "metadata", "name"))):
        what = f"{text(reference, 'kind')} {text(reference, 'name')}".strip() or "nothing"
        raise StopError("ForeignAutoscaler", f"{resource.kind} {name_of(found).name} is about {what}")


def _identity(found: JsonObject, name: str = "") -> tuple[str, str, str]:
    return text(found, "apiVersion").rpartition("/")[0], text(found, "kind"), name or text(found, "name")


def managed(facts: GroupFacts, found: ScalableTarget, ruling: PolicyDecision) -> tuple[Write, ...]:
    """Fields that a decision sets beside the scaling, and may set again: a new HPA, annotations of the target."""
    writes: list[Write] = []
    companion, new = found.arrangement.hpa, ruling.new_hpa
    if companion is not None and new is not None and facts.hpa is None:
        writes.append(creation(HORIZONTAL_AUTOSCALERS, facts.group, companion.name, new.spec, owned=new.goes_along))
    current = annotations_of(found.target)
    if patch := {name: value for name, value in ruling.annotations.items() if current.get(name) != value}:
        body: Json = {"metadata": {"annotations": patch}}
        version = version_of(found.target)
        writes.append(Write("annotations", found.kind.resource, name_of(found.target), body, version=version))
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
    companion = None if facts.arrangement is None else facts.arrangement.hpa
    # One that the group made itself needs no record of what it was.
    if companion is None or companion.may_be_missing:
        return Write("autoscaler", HORIZONTAL_AUTOSCALERS, name_of(hpa), {"spec": fields}, version=version_of(hpa))
    return adapted("autoscaler", HORIZONTAL_AUTOSCALERS, hpa, facts.group, fields)


def released(
    resource: Resource, found: JsonObject, group: JsonObject | None, arrangement: DesiredObjects | None
) -> bool:
    """Return True if an HPA or a VPA whose record names the group is to be put back.

    ``group`` is None if it is gone, ``arrangement`` if it cannot be read: then nothing is put back.
    """
    if group is None or is_leaving(group):
        return True
    # A group that cannot be read may still want it; people correct the spec, and nothing is lost meanwhile.
    if arrangement is None:
        return False
    companion = arrangement.hpa if resource is HORIZONTAL_AUTOSCALERS else arrangement.vpa
    return companion is None or companion.name != name_of(found).name


def inbox(kind: Resource, facts: GroupFacts, found: ScalableTarget) -> Write | None:
    """Sets the group's own ``/scale`` back to the replicas that there are: an HPA that recommends to the group reckons
    from there. It is for the version that the group has once its status is written.
    """
    replicas = found.template.replicas
    recommends = found.arrangement.hpa is not None and found.arrangement.hpa_asks_group
    if not recommends or child(facts.group, "spec").get("replicas") == replicas:
        return None
    return Write("inbox", kind, name_of(facts.group), {"spec": {"replicas": replicas}}, "scale")
