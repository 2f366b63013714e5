"""The HPA and VPA of a group: created, adopted and restored, or refused if they belong to others.

An existing HPA or VPA with the name that ours would have is adopted if it has no controller and the same target. The
group sets its spec and restores it from a record in an annotation when the group is deleted. It changes only ``spec``
and the record.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from protocol.kubernetes.objects import (
    Json,
    JsonObject,
    annotations_of,
    child,
    is_terminating,
    name_of,
    text,
    version_of,
)
from protocol.kubernetes.resources import HORIZONTAL_AUTOSCALERS, Resource
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_ORIGINAL, ANNOTATION_RECOMMENDATION, ANNOTATION_USE_HISTORY
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.controllers.disputes import is_as_written
from scheduler_plugin.groups.controllers.policies import DesiredState, GroupFacts, PolicyDecision
from scheduler_plugin.groups.core.workload import SizedContainer, Workload
from scheduler_plugin.groups.objects.autoscalers import target_of
from scheduler_plugin.groups.objects.targets import TargetRef, api_group
from scheduler_plugin.groups.objects.vm_group import StopReason
from scheduler_plugin.groups.objects.writes import Write, contains, creation, difference, is_owned_by, refuse_foreign


@dataclass(eq=True, unsafe_hash=True)
class StopError(Exception):
    """The group must not scale; ``message`` says why."""

    reason: StopReason
    message: str


@dataclass(frozen=True, slots=True)
class ScalableTarget:
    """A target that can be scaled, its workload by its ``template``, and the ``companion_writes`` to its HPA and VPA.

    ``sizes`` are those to which running pods were resized; they apply until the template changes.
    """

    desired: DesiredState
    target: JsonObject
    kind: Resource
    template: Workload
    companion_writes: tuple[Write, ...]
    sizes: tuple[SizedContainer, ...] = ()


def companions(facts: GroupFacts, desired: DesiredState) -> tuple[Write, ...]:
    """Writes that bring the HPA and the VPA to their desired state.

    Raises ``StopError`` if one is missing or has another target, ``ForeignObjectError`` if another controller owns one,
    and ``TooLargeError`` if one could not be restored later.
    """
    writes = []
    for resource, companion in desired.companions.items():
        obj = facts.hpa if resource is HORIZONTAL_AUTOSCALERS else facts.vpa
        # If the group owns it, the reference is overwritten below.
        if obj is not None and (companion.spec is None or not is_owned_by(obj, facts.group)):
            _refuse_other_workload(resource, obj, facts.group, desired)
        if companion.spec is not None:
            writes.append(companion_write(resource, obj, facts.group, companion.name, companion.spec))
        elif obj is None and not companion.may_be_missing:
            raise StopError("AutoscalerMissing", texts.NOT_FOUND.format(object=f"{resource.kind} {companion.name}"))
    return tuple(write for write in writes if write is not None)


def companion_write(
    resource: Resource, obj: JsonObject | None, owner: JsonObject, name: str, spec: Json
) -> Write | None:
    """The write that sets the spec of the object ``name`` to ``spec``; None if it is so already.

    Raises ``ForeignObjectError`` if another controller owns the object, and ``TooLargeError``.
    """
    object_name, what = ObjectName(name_of(owner).namespace, name), resource.kind
    if obj is None:
        return creation(resource, owner, name, spec)
    old = child(obj, "spec")
    # Ignore defaults that the API server added. null removes a field.
    fields: Json = {name: value for name, value in spec.items() if not contains(old.get(name), value)}
    fields |= {name: None for name in OPTIONAL if name in old and name not in spec}
    if is_owned_by(obj, owner):
        # It is deleted with its group, so no record is needed.
        body: Json = {"spec": fields}
        return Write(what, resource, object_name, body, version=version_of(obj)) if fields else None
    refuse_foreign(obj, resource, owner)
    return adapted(what, resource, obj, owner, fields) if fields else None


OPTIONAL: Final = ("behavior", "resourcePolicy")
"""Fields of an HPA's or VPA's spec that are removed once the group no longer sets them."""


def _refuse_other_workload(resource: Resource, obj: JsonObject, group: JsonObject, desired: DesiredState) -> None:
    """Raise ``StopError`` if an HPA or VPA refers neither to the group nor to its target."""
    refuse_foreign(obj, resource, group)
    subject = target_of(obj, resource)
    # An HPA may refer to the group's `/scale` or to the target itself.
    if subject not in (desired.target, TargetRef(api_group(group), text(group, "kind"), name_of(group).name)):
        what = str(subject).strip() or "nothing"
        raise StopError(
            "ForeignAutoscaler",
            texts.AUTOSCALER_ELSEWHERE.format(kind=resource.kind, name=name_of(obj).name, subject=what),
        )


def managed(facts: GroupFacts, target: ScalableTarget, decision: PolicyDecision) -> tuple[Write, ...]:
    """Idempotent writes other than the scaling: creation of an HPA, and annotations of the target."""
    writes: list[Write] = []
    companion, new = target.desired.hpa, decision.new_hpa
    if companion is not None and new is not None and facts.hpa is None:
        writes.append(
            creation(HORIZONTAL_AUTOSCALERS, facts.group, companion.name, new, owned=companion.deleted_with_group)
        )
    current = annotations_of(target.target)
    if patch := {name: value for name, value in decision.annotations.items() if current.get(name) != value}:
        body: Json = {"metadata": {"annotations": patch}}
        version = version_of(target.target)
        writes.append(Write("annotations", target.kind, name_of(target.target), body, version=version))
    return tuple(writes)


def hpa_changes(hpa: JsonObject | None, desired: Json) -> Json:
    """Fields of the HPA's spec that differ from ``desired``."""
    if hpa is None:
        return {}
    spec = child(hpa, "spec")
    return {name: value for name, value in desired.items() if not contains(spec.get(name), value)}


def hpa_write(facts: GroupFacts, desired: Json) -> Write | None:
    """The write that sets the group's HPA to ``desired``; None if nothing differs.

    An adopted HPA gets a record of its earlier spec. Raises ``TooLargeError``.
    """
    hpa, fields = facts.hpa, hpa_changes(facts.hpa, desired)
    if hpa is None or not fields:
        return None
    companion = None if facts.desired is None else facts.desired.hpa
    # If it may be missing, the group created it, so there is no earlier spec.
    if companion is None or companion.may_be_missing:
        return Write("autoscaler", HORIZONTAL_AUTOSCALERS, name_of(hpa), {"spec": fields}, version=version_of(hpa))
    return adapted("autoscaler", HORIZONTAL_AUTOSCALERS, hpa, facts.group, fields)


def must_restore(resource: Resource, obj: JsonObject, group: JsonObject | None, desired: DesiredState | None) -> bool:
    """Return True if an HPA or VPA whose record names the group must be restored.

    ``group`` is None if it was deleted. ``desired`` is None if its spec is invalid; then nothing is restored.
    """
    if group is None or is_terminating(group):
        return True
    # The corrected spec may still refer to it.
    if desired is None:
        return False
    companion = desired.companions.get(resource)
    return companion is None or companion.name != name_of(obj).name


def reset_scale(kind: Resource, facts: GroupFacts, target: ScalableTarget) -> Write | None:
    """The write that resets the group's own ``/scale`` to the present count, from which an HPA computes the next one.

    The caller adds the resourceVersion, because the status write changes it.
    """
    replicas = target.template.replicas
    recommends = target.desired.hpa is not None and target.desired.hpa_targets_group
    if not recommends or child(facts.group, "spec").get("replicas") == replicas:
        return None
    return Write("inbox", kind, name_of(facts.group), {"spec": {"replicas": replicas}}, "scale")


LARGEST: Final = 64 * 1024
"""Maximum size of a record in characters; all annotations of an object together may have 256 KiB."""


class TooLargeError(ValueError):
    """The record would be too large, so the object is not changed."""


@dataclass(frozen=True, slots=True)
class Original:
    """The record: kind and name of the group, and fields of the spec before and after its writes.

    A field that is only in ``written`` did not exist before. None in ``written`` means that the group removed it.
    """

    kind: str
    name: str
    before: JsonObject
    written: JsonObject

    @property
    def text(self) -> str:
        """The annotation's text. Raises ``TooLargeError``."""
        group = {"kind": self.kind, "name": self.name}
        body = {"group": group, "before": dict(self.before), "written": dict(self.written)}
        encoded = json.dumps(body, separators=(",", ":"), sort_keys=True)
        if len(encoded) > LARGEST:
            raise TooLargeError(texts.TOO_LARGE.format(kib=LARGEST // 1024))
        return encoded


def original_of(obj: JsonObject) -> Original | None:
    """The record of an HPA or VPA; None if missing or unreadable."""
    try:
        body = json.loads(annotations_of(obj)[ANNOTATION_ORIGINAL])
    except (KeyError, ValueError, RecursionError):
        return None
    group = child(body, "group") if isinstance(body, dict) else {}
    kind, name = text(group, "kind"), text(group, "name")
    return Original(kind, name, child(body, "before"), child(body, "written")) if kind and name else None


def changed(obj: JsonObject, group: JsonObject, fields: JsonObject) -> Original:
    """The record after ``group`` wrote ``fields`` to the object's spec."""
    record, spec = original_of(obj) or Original("", "", {}, {}), child(obj, "spec")
    before, written = dict(record.before), dict(record.written)
    for name, value in fields.items():
        # On the first write, or after a change by others, record the present value.
        if name not in written or not is_as_written(spec.get(name), written[name]):
            before.pop(name, None)
            before |= {name: spec[name]} if name in spec else {}
        written[name] = value
    return Original(text(group, "kind"), name_of(group).name, before, written)


def adapted(what: str, resource: Resource, obj: JsonObject, group: JsonObject, fields: Json) -> Write:
    """The write that sets fields of an adopted object's spec and records their values. Raises ``TooLargeError``."""
    # In the same patch, so that a crash cannot lose the record.
    record: Json = {"annotations": {ANNOTATION_ORIGINAL: changed(obj, group, fields).text}}
    return Write(what, resource, name_of(obj), {"metadata": record, "spec": fields}, version=version_of(obj))


def restore(resource: Resource, obj: JsonObject) -> Write | None:
    """The write that restores the object, except fields that others have changed since; None without a record."""
    record, spec = original_of(obj), child(obj, "spec")
    if record is None:
        return None
    restored = dict(spec)
    for name, value in record.written.items():
        if is_as_written(spec.get(name), value):
            restored.pop(name, None)
            restored |= {name: record.before[name]} if name in record.before else {}
    minimum, maximum = restored.get("minReplicas"), restored.get("maxReplicas")
    # The API refuses min > max. This can happen if someone else changed one of them; then adjust the restored one.
    if isinstance(minimum, int) and isinstance(maximum, int) and minimum > maximum:
        restored |= {"maxReplicas": minimum} if maximum != spec.get("maxReplicas") else {"minReplicas": maximum}
    # null removes an annotation.
    ours = (ANNOTATION_ORIGINAL, ANNOTATION_RECOMMENDATION, ANNOTATION_USE_HISTORY)
    body: Json = {"metadata": {"annotations": dict.fromkeys(ours)}}
    if patch := difference(spec, restored):
        body["spec"] = patch
    return Write("original", resource, name_of(obj), body, version=version_of(obj))
