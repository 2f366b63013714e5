"""Writes of a group as plain data, and intents: scalings that were decided and may not be complete.

The intent is stored in the group's status before the first write to the target and removed after the last, so that a
restarted process can complete exactly that scaling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from protocol.kubernetes.objects import (
    Json,
    JsonObject,
    annotations_of,
    child,
    controller_of,
    integer,
    items,
    name_of,
    text,
    uid_of,
    version_of,
)
from protocol.kubernetes.resources import VIRTUAL_MACHINES, Resource
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_BOUNDS
from protocol.units import Resources
from protocol.virtual_machine import VirtualMachine, parse_virtual_machine
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.core.workload import ResourceList, SizedContainer, Workload, WorkloadDecision, by_name
from scheduler_plugin.groups.objects.targets import (
    TARGET_KINDS,
    VM_CONTAINER,
    api_group,
    read_container,
    write_container,
)


@dataclass(frozen=True, slots=True)
class Write:
    """One patch, or a creation if ``creates``. ``what`` is its kind for logs and metrics, such as ``replicas``.

    A patch with a ``version`` gets a 409 if the object's resourceVersion differs. With ``merges_lists`` it is a
    strategic merge patch, which merges containers by name.
    """

    what: str
    resource: Resource
    name: ObjectName
    body: Json
    subresource: str = ""
    version: str = ""
    creates: bool = False
    merges_lists: bool = False

    @property
    def path(self) -> str:
        """Path of the request."""
        if self.creates:
            return self.resource.path(self.name.namespace)
        return self.resource.path(self.name.namespace, self.name.name, self.subresource)

    @property
    def guarded_body(self) -> Json:
        """The body, with ``version`` as a precondition."""
        if not self.version:
            return self.body
        metadata = self.body.get("metadata")
        fields = dict(metadata) if isinstance(metadata, Mapping) else {}
        return {**self.body, "metadata": {**fields, "resourceVersion": self.version}}


def difference(old: JsonObject, new: JsonObject) -> Json:
    """Merge patch (RFC 7386) from ``old`` to ``new``; empty if equal.

    >>> difference({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 4}})
    {'a': {'c': 4}, 'd': None}
    """
    patch: Json = {}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if inner := difference(before, value):
                patch[key] = inner
        elif key not in old or before != value:
            patch[key] = dict(value) if isinstance(value, Mapping) else value
    # null removes a field.
    return patch | {key: None for key in old if key not in new}


class ForeignObjectError(ValueError):
    """Another controller owns the object; the message names it."""


def owner_reference(owner: JsonObject) -> Json:
    """Owner reference that makes ``owner`` the controller of an object, which is then deleted with it."""
    # No blockOwnerDeletion: with OwnerReferencesPermissionEnforcement it needs a permission on finalizers.
    return {
        "apiVersion": text(owner, "apiVersion"),
        "kind": text(owner, "kind"),
        "name": name_of(owner).name,
        "uid": uid_of(owner),
        "controller": True,
    }


def is_owned_by(obj: JsonObject, owner: JsonObject) -> bool:
    """Return True if ``owner`` is the object's controller."""
    reference = controller_of(obj)
    return bool(reference) and text(reference, "uid") == uid_of(owner)


def creation(resource: Resource, owner: JsonObject, name: str, spec: Json, *, owned: bool = True) -> Write:
    """Create an object for ``owner``; with ``owned`` it is deleted with the owner."""
    object_name = ObjectName(name_of(owner).namespace, name)
    metadata: Json = {"name": name, "namespace": object_name.namespace}
    if owned:
        metadata["ownerReferences"] = [owner_reference(owner)]
    body: Json = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec}
    return Write(resource.kind, resource, object_name, body, creates=True)


def refuse_foreign(obj: JsonObject, resource: Resource, group: JsonObject) -> None:
    """Raise ``ForeignObjectError`` if the controller of ``obj`` is not ``group``."""
    owner = controller_of(obj)
    # By UID, because a recreated group is another owner.
    if owner and text(owner, "uid") != uid_of(group):
        owner_text = f"{text(owner, 'kind')} {text(owner, 'name')}"
        raise ForeignObjectError(texts.OWNED.format(kind=resource.kind, name=name_of(obj).name, owner=owner_text))


def contains(current: object, desired: object) -> bool:
    """Return True if ``current`` contains all of ``desired``; it may also have defaults of the API server.

    >>> contains({"a": 1, "b": [{"c": 2, "d": 3}]}, {"b": [{"c": 2}]}), contains({"a": 1}, {"a": 2})
    (True, False)
    """
    if isinstance(current, Mapping) and isinstance(desired, Mapping):
        return all(name in current and contains(current[name], value) for name, value in desired.items())
    if isinstance(current, list) and isinstance(desired, list):
        # Lists must match entry by entry: the API server adds fields, not entries.
        return len(current) == len(desired) and all(map(contains, current, desired))
    return current == desired


def scalable_owner(target: JsonObject) -> str:
    """Kind and name of the target's owner if that is scalable itself, such as a ReplicaSet's Deployment; else empty.

    Such an owner would revert every write. Other owners, such as operators, may leave sizes and replicas to a group.
    """
    owner = controller_of(target)
    reference = api_group(owner), text(owner, "kind")
    return f"{reference[1]} {text(owner, 'name')}" if reference in TARGET_KINDS else ""


def scale(target: JsonObject, kind: Resource, replicas: int) -> Write:
    """The write that sets the replica count."""
    body: Json = {"spec": {"replicas": replicas}}
    return Write("replicas", kind, name_of(target), body, "scale", version_of(target))


def resize(target: JsonObject, kind: Resource, containers: tuple[SizedContainer, ...]) -> Write:
    """The write that sets the sizes of ``containers``; other containers and amounts stay."""
    name, version = name_of(target), version_of(target)
    if kind is VIRTUAL_MACHINES:
        vm = parse_virtual_machine(target)
        minimum = _minimum(target, vm, (by_name(containers, VM_CONTAINER) or SizedContainer(VM_CONTAINER)).requests)
        bounds = msgspec.json.encode({"min": _bound(minimum), "max": _bound(vm.bounds.max)}).decode()
        annotations: Json = {"metadata": {"annotations": {ANNOTATION_BOUNDS: bounds}}}
        # In an annotation, because the VM's spec belongs to its creator.
        return Write("bounds", kind, name, annotations, version=version)
    body: Json = {
        "spec": {"template": {"spec": {"containers": [write_container(container) for container in containers]}}}
    }
    return Write("requests", kind, name, body, version=version, merges_lists=True)


def achievable(
    target: JsonObject, kind: Resource, containers: tuple[SizedContainer, ...]
) -> tuple[SizedContainer, ...]:
    """The sizes that can be written: for a VM in whole memory slots and within its bounds."""
    if kind is not VIRTUAL_MACHINES:
        return containers
    container = by_name(containers, VM_CONTAINER)
    if container is None:
        return ()
    minimum = _minimum(target, parse_virtual_machine(target), container.requests)
    sizes = {"cpu": minimum.cpu.value, "memory": minimum.mem.value}
    return (SizedContainer(VM_CONTAINER, container.requests.map(lambda resource, _: sizes[resource])),)


def _minimum(target: JsonObject, vm: VirtualMachine, requests: ResourceList) -> Resources:
    """The minimum size of a VM for ``requests``, at least the minimum in its spec."""
    metadata = child(target, "metadata")
    # The bounds of the spec, without our annotation.
    others = {name: value for name, value in annotations_of(target).items() if name != ANNOTATION_BOUNDS}
    spec = parse_virtual_machine({**target, "metadata": {**metadata, "annotations": others}}).bounds
    # Round up to whole memory slots.
    memory = vm.bounds.min.mem if requests.memory is None else requests.memory.up_to(vm.slot_size)
    # Last, so that the upper bound wins.
    return Resources(requests.cpu or vm.bounds.min.cpu, memory).at_least(spec.min).at_most(vm.bounds.max)


def _bound(size: Resources) -> Json:
    return {"cpu": size.cpu.quantity(), "mem": size.mem.quantity()}


@dataclass(frozen=True, slots=True)
class Intent:
    """A scaling from ``before`` to ``after``, decided ``at`` (RFC 3339). Unchanged parts are None or empty.

    ``before`` and ``after`` have the same containers and amounts. ``hpa`` are fields to set in the group's HPA, which
    has no other writer.
    """

    at: str
    replicas: tuple[int, int] | None = None
    before: tuple[SizedContainer, ...] = ()
    after: tuple[SizedContainer, ...] = ()
    hpa: Json = field(default_factory=dict)

    @property
    def grows(self) -> bool:
        """True if a container gets more of anything."""
        return any(
            (current := old[resource]) is None or amount.value > current.value
            for before, after in zip(self.before, self.after, strict=True)
            for old, new in ((before.requests, after.requests), (before.limits, after.limits))
            for resource, amount in new
        )

    def __str__(self) -> str:
        """The change in words: ``replicas 3 → 5; app: requests cpu 200m → 400m``."""
        words = [] if self.replicas is None else [f"replicas {self.replicas[0]} → {self.replicas[1]}"]
        words += [
            f"{after.name}: {_changes_text(before, after)}"
            for before, after in zip(self.before, self.after, strict=True)
        ]
        words += [f"HPA {name} {value}" for name, value in self.hpa.items() if isinstance(value, int)]
        words += ["HPA metrics"] if "metrics" in self.hpa else []
        return "; ".join(words)


@dataclass(frozen=True, slots=True)
class IntentProgress:
    """The remaining part of an intent. ``is_overtaken`` is True if another writer changed the target."""

    replicas: int | None = None
    containers: tuple[SizedContainer, ...] = ()
    is_overtaken: bool = False


def intent_of(decision: WorkloadDecision, workload: Workload, at: str, hpa: Json) -> Intent | None:
    """The intent to apply ``decision`` to ``workload``, and ``hpa`` to its HPA; None if nothing changes."""
    replicas = None
    if decision.replicas is not None and decision.replicas != workload.replicas:
        replicas = (workload.replicas, decision.replicas)
    # Skip removed containers.
    after = tuple(container for container in decision.containers if workload.container(container.name) is not None)
    before = tuple(_same_amounts(workload.container(container.name) or container, container) for container in after)
    # Rounding may leave no change.
    if before == after:
        before = after = ()
    return Intent(at, replicas, before, after, hpa) if replicas is not None or after or hpa else None


def progress(intent: Intent, workload: Workload) -> IntentProgress:
    """Compare the intent with the present ``workload``."""
    replicas, before, after = intent.replicas or (workload.replicas, workload.replicas), intent.before, intent.after
    present = tuple(
        _same_amounts(container, desired)
        for desired in after
        if (container := workload.container(desired.name)) is not None
    )
    # Neither the old nor the new state, so drop the rest and decide again.
    if workload.replicas not in replicas or present not in (before, after):
        return IntentProgress(is_overtaken=True)
    is_scaled = workload.replicas == replicas[1]
    return IntentProgress(None if is_scaled else replicas[1], () if present == after else after)


def _same_amounts(container: SizedContainer, desired: SizedContainer) -> SizedContainer:
    """Those amounts of ``container`` that are set in ``desired``; a missing request defaults to the limit."""
    return SizedContainer(
        container.name, _only(container.sizes, desired.requests), _only(container.limits, desired.limits)
    )


def _only(amounts: ResourceList, desired: ResourceList) -> ResourceList:
    return desired.map(lambda resource, _: None if (amount := amounts[resource]) is None else amount.value)


def write_intent(intent: Intent) -> Json:
    """The intent as JSON."""
    body: Json = {"at": intent.at, **({"hpa": intent.hpa} if intent.hpa else {})}
    if intent.replicas is not None:
        body["replicas"] = {"from": intent.replicas[0], "to": intent.replicas[1]}
    if intent.after:
        body["containers"] = [
            {"from": write_container(before), "to": write_container(after)}
            for before, after in zip(intent.before, intent.after, strict=True)
        ]
    return body


def read_intent(status: JsonObject) -> Intent | None:
    """The intent in a group's status; None if it is missing or unreadable, so that the policy decides again."""
    body = child(status, "intent")
    if not body:
        return None
    pairs = items(body, "containers")
    try:
        before, after = (tuple(read_container(child(pair, end), end) for pair in pairs) for end in ("from", "to"))
    except ValueError:
        return None
    replicas = child(body, "replicas")
    steps = (integer(replicas, "from"), integer(replicas, "to")) if replicas else None
    return Intent(text(body, "at"), steps, before, after, child(body, "hpa"))


def _changes_text(before: SizedContainer, after: SizedContainer) -> str:
    pairs = (("requests", before.requests, after.requests), ("limits", before.limits, after.limits))
    changes = [
        f"{part} {resource} {old[resource] or 'none'} → {amount}"
        for part, old, new in pairs
        for resource, amount in new
        if old[resource] != amount
    ]
    return ", ".join(changes)
