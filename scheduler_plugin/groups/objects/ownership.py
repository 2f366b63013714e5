"""HPAs and VPAs beside a group: made, adopted, kept as they should be, or left to whom they belong.

Rules that hold here:

- An object that another controller owns is never touched.
- One without a controller, under the name that ours would have, is adopted where it is about the same workload: from
  then on it is as the group says.
- Only ``spec`` and the owner reference are ours; what else an object carries stays, and what the API server filled in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from protocol.kubernetes.objects import Json, JsonObject, child, items, name_of, text, uid_of, version_of
from protocol.kubernetes.resources import Resource
from protocol.messages import ObjectName
from scheduler_plugin.groups.objects.writes import Write


class ForeignObjectError(ValueError):
    """The object belongs to another controller; the message says to which."""


def owner_reference(owner: JsonObject) -> Json:
    """The reference that makes ``owner`` the controller of an object, which then goes when the owner goes.

    It does not block the owner's deletion: where OwnerReferencesPermissionEnforcement is on, that takes a right to the
    owner's finalizers, and nothing here needs the owner to wait.
    """
    return {
        "apiVersion": text(owner, "apiVersion"),
        "kind": text(owner, "kind"),
        "name": name_of(owner).name,
        "uid": uid_of(owner),
        "controller": True,
    }


def controller_of(found: JsonObject) -> Json | None:
    """The owner reference of the object's controller; None where it has none."""
    owners = (each for each in items(found, "metadata", "ownerReferences") if each.get("controller") is True)
    return next(owners, None)


def is_owned_by(found: JsonObject, owner: JsonObject) -> bool:
    """Whether ``owner`` is the object's controller."""
    reference = controller_of(found)
    return reference is not None and text(reference, "uid") == uid_of(owner)


def upkeep(resource: Resource, found: JsonObject | None, owner: JsonObject, name: str, spec: Json) -> Write | None:
    """What to write so that the object ``name`` is the owner's and has ``spec``; None where it is so.

    Raises ``ForeignObjectError`` where the object belongs to another controller.
    """
    where, what = ObjectName(name_of(owner).namespace, name), resource.kind
    if found is None:
        return creation(resource, owner, name, spec)
    patch = _spec_patch(child(found, "spec"), spec)
    if not is_owned_by(found, owner):
        refuse_foreign(found, resource, owner)
        others = items(found, "metadata", "ownerReferences")
        patch["metadata"] = {"ownerReferences": [*others, owner_reference(owner)]}
    return Write(what, resource, where, patch, version=version_of(found)) if patch else None


def creation(resource: Resource, owner: JsonObject, name: str, spec: Json, *, owned: bool = True) -> Write:
    """Makes an object beside ``owner``; ``owned``: it goes when the owner goes."""
    where = ObjectName(name_of(owner).namespace, name)
    metadata: Json = {"name": name, "namespace": where.namespace}
    if owned:
        metadata["ownerReferences"] = [owner_reference(owner)]
    body: Json = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec}
    return Write(resource.kind, resource, where, body, creates=True)


def refuse_foreign(found: JsonObject, resource: Resource, group: JsonObject) -> None:
    """Raises ``ForeignObjectError`` where the object has another controller than ``group``."""
    owner = controller_of(found)
    if owner is not None and text(owner, "uid") != uid_of(group):
        whose = f"{text(owner, 'kind')} {text(owner, 'name')}"
        raise ForeignObjectError(f"{resource.kind} {name_of(found).name} belongs to {whose}")


OPTIONAL: Final = ("behavior", "resourcePolicy")
"""Fields of an HPA's and a VPA's spec that go when they are wanted no more."""


def _spec_patch(old: Json, spec: Json) -> Json:
    changed: Json = {name: value for name, value in spec.items() if not holds(old.get(name), value)}
    changed |= {name: None for name in OPTIONAL if name in old and name not in spec}
    return {"spec": changed} if changed else {}


def holds(found: object, wanted: object) -> bool:
    """Whether ``found`` has all that is ``wanted``; what a server filled in beside it does not matter.

    >>> holds({"a": 1, "b": [{"c": 2, "d": 3}]}, {"b": [{"c": 2}]}), holds({"a": 1}, {"a": 2})
    (True, False)
    """
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        return all(name in found and holds(found[name], value) for name, value in wanted.items())
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(holds, found, wanted))
    return found == wanted
