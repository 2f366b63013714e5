"""What a group wants written, as plain data. HPAs and VPAs beside it are created, adopted and put back, or left alone
because they belong to someone else.

Rules that hold here:

- One without a controller, under the name that ours would have, is adopted if it refers to the same workload: the group
  sets its spec until the group is gone, and then it is restored from a record in an annotation. It is not deleted with
  the group.
- Only ``spec`` and the record are ours; everything else in an object stays, and so do the API server's defaults.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from protocol.kubernetes.objects import (
    Json,
    JsonObject,
    annotations_of,
    child,
    items,
    name_of,
    text,
    uid_of,
    version_of,
)
from protocol.kubernetes.resources import Resource
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_ORIGINAL, ANNOTATION_RECOMMENDATION, ANNOTATION_USE_HISTORY
from protocol.units import QuantityError, parse_quantity
from scheduler_plugin.groups import texts


@dataclass(frozen=True, slots=True)
class Write:
    """One write. ``what`` is a word for logs and metrics, such as ``replicas``.

    A patch with a ``version`` is refused (409) if the object is no longer at that resourceVersion. ``merges_lists``: a
    strategic merge patch, which finds containers by name. ``creates``: the object is created, ``subresource`` unused.
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
        """Path that the write goes to."""
        if self.creates:
            return self.resource.path(self.name.namespace)
        return self.resource.path(self.name.namespace, self.name.name, self.subresource)

    @property
    def guarded_body(self) -> Json:
        """The body, with the version that it is for."""
        if not self.version:
            return self.body
        metadata = self.body.get("metadata")
        fields = dict(metadata) if isinstance(metadata, Mapping) else {}
        return {**self.body, "metadata": {**fields, "resourceVersion": self.version}}


def difference(old: JsonObject, new: JsonObject) -> Json:
    """The merge patch (RFC 7386) that makes ``new`` of ``old``; empty if they are the same.

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
    # RFC 7386: null removes a field.
    return patch | {key: None for key in old if key not in new}


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
        raise ForeignObjectError(texts.OWNED.format(kind=resource.kind, name=name_of(found).name, owner=whose))


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


LARGEST: Final = 64 * 1024
"""The largest record, in characters: all annotations of an object together may have 256 KiB."""


class TooLargeError(ValueError):
    """The object cannot be put back later, because its record would be too large; it is not changed then."""


@dataclass(frozen=True, slots=True)
class Original:
    """The record: kind and name of the group, and fields of the spec ``before`` it and as ``written`` by it.

    A field that is in ``written`` alone was not there before; None in ``written`` is one that was removed.
    """

    kind: str
    name: str
    before: JsonObject
    written: JsonObject

    @property
    def text(self) -> str:
        """The annotation. Raises ``TooLargeError``."""
        group = {"kind": self.kind, "name": self.name}
        body = {"group": group, "before": dict(self.before), "written": dict(self.written)}
        encoded = json.dumps(body, separators=(",", ":"), sort_keys=True)
        if len(encoded) > LARGEST:
            raise TooLargeError(texts.TOO_LARGE.format(kib=LARGEST // 1024))
        return encoded


def original_of(found: JsonObject) -> Original | None:
    """The record of an HPA or a VPA; None if it has none that can be read."""
    try:
        body = json.loads(annotations_of(found)[ANNOTATION_ORIGINAL])
    except (KeyError, ValueError, RecursionError):
        return None
    group = child(body, "group") if isinstance(body, dict) else {}
    if not text(group, "kind") or not text(group, "name"):
        return None
    return Original(text(group, "kind"), text(group, "name"), child(body, "before"), child(body, "written"))


def changed(found: JsonObject, group: JsonObject, fields: JsonObject) -> Original:
    """The record once ``group`` has written ``fields`` to the spec of the object."""
    record, spec = original_of(found), child(found, "spec")
    before = {} if record is None else dict(record.before)
    written = {} if record is None else dict(record.written)
    for name, value in fields.items():
        # On the first write, or after someone else has changed the field, the present value is what goes back later.
        if name not in written or not _is(spec.get(name), written[name]):
            before.pop(name, None)
            before |= {name: spec[name]} if name in spec else {}
        written[name] = value
    return Original(text(group, "kind"), name_of(group).name, before, written)


def adapted(what: str, resource: Resource, found: JsonObject, group: JsonObject, fields: Json) -> Write:
    """Sets fields of an adopted object's spec, with the record of what they were. Raises ``TooLargeError``."""
    # The record is written in the same patch as the change, so no crash comes between.
    record: Json = {"annotations": {ANNOTATION_ORIGINAL: changed(found, group, fields).text}}
    return Write(what, resource, name_of(found), {"metadata": record, "spec": fields}, version=version_of(found))


def put_back(resource: Resource, found: JsonObject) -> Write | None:
    """Makes the object what it was, but for what others have changed since; None if it has no record."""
    record, spec = original_of(found), child(found, "spec")
    if record is None:
        return None
    restored = dict(spec)
    for name, value in record.written.items():
        # A field that others have changed since is theirs and stays.
        if _is(spec.get(name), value):
            restored.pop(name, None)
            restored |= {name: record.before[name]} if name in record.before else {}
    _keep_in_order(spec, restored)
    # null in a merge patch removes an annotation.
    ours = (ANNOTATION_ORIGINAL, ANNOTATION_RECOMMENDATION, ANNOTATION_USE_HISTORY)
    body: Json = {"metadata": {"annotations": dict.fromkeys(ours)}}
    if patch := difference(spec, restored):
        body["spec"] = patch
    return Write("original", resource, name_of(found), body, version=version_of(found))


def _keep_in_order(spec: JsonObject, restored: Json) -> None:
    """Adjusts a bound that goes back to one that someone else has set since: the API refuses an HPA with min > max."""
    least, most = restored.get("minReplicas"), restored.get("maxReplicas")
    if isinstance(least, int) and isinstance(most, int) and least > most:
        # If `maxReplicas` is the bound that goes back, it gives way; otherwise `minReplicas` does.
        restored |= {"maxReplicas": least} if most != spec.get("maxReplicas") else {"minReplicas": most}


def _is(found: object, written: object) -> bool:
    """Return True if a field still has what was written; the API may have filled in more, or spelled an amount
    otherwise.
    """
    if isinstance(found, Mapping) and isinstance(written, Mapping):
        return all(_is(found.get(name), value) for name, value in written.items())
    if isinstance(found, list) and isinstance(written, list):
        return len(found) == len(written) and all(map(_is, found, written))
    if found == written:
        return True
    if not isinstance(found, str | int | float) or not isinstance(written, str | int | float):
        return False
    try:
        # `1000m` and `1` are the same amount.
        return parse_quantity(found) == parse_quantity(written)
    except QuantityError:
        return False
