"""The objects beside a group: its HPA, its VPA, and its own ``/scale``, into which an HPA writes its wish."""

from __future__ import annotations

from typing import Final

from protocol.kubernetes.objects import Json, JsonObject, annotations_of, child, name_of, text, version_of
from protocol.kubernetes.resources import HORIZONTAL_AUTOSCALERS, VERTICAL_AUTOSCALERS, Resource
from scheduler_plugin.groups.objects.ownership import creation, holds, is_owned_by, refuse_foreign, upkeep
from scheduler_plugin.groups.objects.writes import Write
from scheduler_plugin.groups.policies.facts import Facts, Found, StopError
from scheduler_plugin.groups.policies.policy import Arrangement, Ruling

_REFERENCE: Final = {HORIZONTAL_AUTOSCALERS: "scaleTargetRef", VERTICAL_AUTOSCALERS: "targetRef"}
"""Where each kind names what it is about."""


def companions(facts: Facts, arrangement: Arrangement) -> tuple[Write, ...]:
    """What to write so that the HPA and the VPA are as they should be.

    Raises ``StopError`` where one is missing or about another workload, and ``ForeignObjectError`` where one is another
    controller's.
    """
    pairs = (
        (HORIZONTAL_AUTOSCALERS, arrangement.hpa, facts.hpa),
        (VERTICAL_AUTOSCALERS, arrangement.vpa, facts.vpa),
    )
    writes = []
    for resource, companion, found in pairs:
        if companion is None:
            continue
        if found is not None and (companion.spec is None or not is_owned_by(found, facts.group)):
            _refuse_other_workload(resource, found, facts.group, arrangement)
        if companion.spec is not None:
            writes.append(upkeep(resource, found, facts.group, companion.name, companion.spec))
        elif found is None and not companion.may_be_missing:
            raise StopError("AutoscalerMissing", f"{resource.kind} {companion.name} is not there")
    return tuple(write for write in writes if write is not None)


def _refuse_other_workload(resource: Resource, found: JsonObject, group: JsonObject, arrangement: Arrangement) -> None:
    """Raises ``StopError`` where an HPA or a VPA is about neither the group nor its target: it is in use elsewhere."""
    refuse_foreign(found, resource, group)
    reference, target = child(found, "spec", _REFERENCE[resource]), arrangement.target
    about = _identity(reference)
    if about not in ((target.group, target.kind, target.name), _identity(group, text(group, "metadata", "name"))):
        what = f"{text(reference, 'kind')} {text(reference, 'name')}".strip() or "nothing"
        raise StopError("ForeignAutoscaler", f"{resource.kind} {name_of(found).name} is about {what}")


def _identity(found: JsonObject, name: str = "") -> tuple[str, str, str]:
    return text(found, "apiVersion").rpartition("/")[0], text(found, "kind"), name or text(found, "name")


def managed(facts: Facts, found: Found, ruling: Ruling) -> tuple[Write, ...]:
    """What a ruling sets beside the scaling, and may be set again: a new HPA, annotations of the target."""
    writes: list[Write] = []
    companion, new = found.arrangement.hpa, ruling.new_hpa
    if companion is not None and new is not None and facts.hpa is None:
        writes.append(creation(HORIZONTAL_AUTOSCALERS, facts.group, companion.name, new.spec, owned=new.goes_along))
    known = annotations_of(found.target)
    if patch := {name: value for name, value in ruling.annotations.items() if known.get(name) != value}:
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


def hpa_write(hpa: JsonObject, fields: Json) -> Write:
    """Sets fields of an HPA's spec."""
    return Write("autoscaler", HORIZONTAL_AUTOSCALERS, name_of(hpa), {"spec": fields}, version=version_of(hpa))


def inbox(kind: Resource, facts: Facts, found: Found) -> Write | None:
    """Sets the group's own ``/scale`` back to the replicas that there are: an HPA that recommends to the group reckons
    from there. It is for the version that the group has once its status is written.
    """
    replicas = found.template.replicas
    recommends = found.arrangement.hpa is not None and found.arrangement.hpa_asks_group
    if not recommends or child(facts.group, "spec").get("replicas") == replicas:
        return None
    return Write("inbox", kind, name_of(facts.group), {"spec": {"replicas": replicas}}, "scale")
