"""HPAs and VPAs beside a group: created, adopted, or left alone because they belong to someone else.

Rules that hold here:

- One without a controller, under the name that ours would have, is adopted if it refers to the same workload: the group
  sets its spec until the group is gone, and then it is restored (``originals``). It is not deleted with the group.
- Only ``spec`` and the record are ours; everything else in an object stays, and so do the API server's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocol.kubernetes.objects import Json, JsonObject, items, name_of, text, uid_of
from protocol.kubernetes.resources import Resource
from protocol.messages import ObjectName
from scheduler_plugin.groups.objects.writes import Write


class ForeignObjectError(ValueError):
    """The object belongs to another controller; the message says to which."""


def owner_reference(owner: JsonObject) -> Json:
    """The reference that makes ``owner`` the controller of an object, which is then deleted with the owner.

    It does not block the owner's deletion: with OwnerReferencesPermissionEnforcement that needs a right to the owner's
    finalizers, and nothing here needs the owner to wait.
    """
    return {
        "apiVersion": text(owner, "apiVersion"),
        "kind": text(owner, "kind"),
        "name": name_of(owner).name,
        "uid": uid_of(owner),
        "controller": True,
    }


def controller_of(found: JsonObject) -> Json | None:
    """The owner reference of the object's controller; None if it has none."""
    owners = (owner for owner in items(found, "metadata", "ownerReferences") if owner.get("controller") is True)
    return next(owners, None)


def is_owned_by(found: JsonObject, owner: JsonObject) -> bool:
    """Return True if ``owner`` is the object's controller."""
    reference = controller_of(found)
    return reference is not None and text(reference, "uid") == uid_of(owner)


def creation(resource: Resource, owner: JsonObject, name: str, spec: Json, *, owned: bool = True) -> Write:
    """Makes an object beside ``owner``; ``owned``: it goes when the owner goes."""
    object_name = ObjectName(name_of(owner).namespace, name)
    metadata: Json = {"name": name, "namespace": object_name.namespace}
    if owned:
        # Without an owner reference it outlives the group.
        metadata["ownerReferences"] = [owner_reference(owner)]
    body: Json = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec}
    return Write(resource.kind, resource, object_name, body, creates=True)


def refuse_foreign(found: JsonObject, resource: Resource, group: JsonObject) -> None:
    """Raises ``ForeignObjectError`` if the object has another controller than ``group``."""
    owner = controller_of(found)
    # By UID: a group that was made again under the same name is another owner.
    if owner is not None and text(owner, "uid") != uid_of(group):
        whose = f"{text(owner, 'kind')} {text(owner, 'name')}"
        raise ForeignObjectError(f"{resource.kind} {name_of(found).name} belongs to {whose}")


def holds(found: object, wanted: object) -> bool:
    """Return True if ``found`` has all that is ``wanted``; what a server filled in beside it does not matter.

    >>> holds({"a": 1, "b": [{"c": 2, "d": 3}]}, {"b": [{"c": 2}]}), holds({"a": 1}, {"a": 2})
    (True, False)
    """
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        return all(name in found and holds(found[name], value) for name, value in wanted.items())
    if isinstance(found, list) and isinstance(wanted, list):
        # A list has to match entry by entry: the API server adds fields, but no entries.
        return len(found) == len(wanted) and all(map(holds, found, wanted))
    return found == wanted
