"""Rules of ``metadata``: server-set fields, validation, and deletion. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from deploy.local.apiserver.apimachinery.errors import FORBIDDEN, Cause, StatusError, bad_request, invalid
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject, encode
from deploy.local.apiserver.apimachinery.names import key_errors, name_error, value_errors
from deploy.local.apiserver.resources.resource import ServedResource

# Server-set fields; updates by clients are ignored.
_SERVER_FIELDS: Final = (
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
)
# A change of anything else increases the generation.
_NOT_COUNTED: Final = frozenset({"metadata", "status", "apiVersion", "kind"})
# Total size in bytes, as in Kubernetes.
_ANNOTATIONS_LIMIT: Final = 256 * 1024
_STANDARD_FINALIZERS: Final = frozenset({"kubernetes", "orphan", "foregroundDeletion"})
_FREE_FINALIZERS: Final = frozenset({"admissionregistration.k8s.io", "apiextensions.k8s.io"})
"""Built-in groups whose finalizers need no domain, as for custom resources."""


def timestamp(at: datetime) -> str:
    """RFC 3339 in UTC with whole seconds, as Kubernetes writes times."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def with_new_metadata(
    body: JsonObject, resource: ServedResource, namespace: str, uid: str, now: datetime
) -> JsonObject:
    """``body`` with the metadata of a new object, overriding server-set fields from the client."""
    meta = {key: value for key, value in body["metadata"].items() if key not in _SERVER_FIELDS and value is not None}
    meta.pop("resourceVersion", None)
    fields: JsonObject = {"name": body["metadata"]["name"]}
    if namespace:
        fields["namespace"] = namespace
    fields |= {"uid": uid, "creationTimestamp": timestamp(now)}
    if resource.generation:
        fields["generation"] = 1
    return {**body, "metadata": {**fields, **meta}}


def with_old_metadata(before: JsonObject, body: JsonObject) -> JsonObject:
    """``body`` with the server-set metadata of ``before``."""
    old: JsonObject = before["metadata"]
    new = {key: value for key, value in body["metadata"].items() if key not in _SERVER_FIELDS}
    # Go omits empty maps and lists.
    meta = {key: value for key, value in new.items() if value not in (None, {}, [])}
    fields: JsonObject = {key: old[key] for key in _SERVER_FIELDS if key in old}
    # An update without managedFields keeps them; an empty list clears them.
    if "managedFields" in old and "managedFields" not in new:
        fields["managedFields"] = old["managedFields"]
    return {**body, "metadata": {**fields, **meta, "resourceVersion": old["resourceVersion"]}}


def with_generation(before: JsonObject, body: JsonObject) -> JsonObject:
    """``body`` with its generation incremented if more than metadata and status differ from ``before``."""
    keys = (before.keys() | body.keys()) - _NOT_COUNTED
    if "generation" not in before["metadata"] or all(before.get(key) == body.get(key) for key in keys):
        return body
    return {**body, "metadata": {**body["metadata"], "generation": before["metadata"]["generation"] + 1}}


def check(body: JsonObject, resource: ServedResource, before: JsonObject | None = None) -> None:
    """Raise a 422 with all errors in ``metadata``; ``before`` is the replaced object, None for a new one."""
    causes = [*_causes(body["metadata"], resource), *_finalizer_causes(body["metadata"], resource, before)]
    if causes:
        raise invalid(resource.subject(body["metadata"].get("name", "")), causes)


def _causes(meta: JsonObject, resource: ServedResource) -> Iterator[Cause]:
    why = name_error(resource.key, meta["name"])
    if why:
        yield Cause("metadata.name", f'Invalid value: "{meta["name"]}": {why}')
    for key, value in (meta.get("labels") or {}).items():
        for fault in key_errors(key):
            yield Cause("metadata.labels", f'Invalid value: "{key}": {fault}')
        for fault in value_errors(value or ""):
            yield Cause("metadata.labels", f'Invalid value: "{value}": {fault}')
    for key in meta.get("annotations") or {}:
        # Kubernetes validates annotation keys in lower case.
        for fault in key_errors(key.lower()):
            yield Cause("metadata.annotations", f'Invalid value: "{key}": {fault}')
    size = sum(len(key) + len(value) for key, value in (meta.get("annotations") or {}).items())
    if size > _ANNOTATIONS_LIMIT:
        yield Cause("metadata.annotations", f"Too long: may not be more than {_ANNOTATIONS_LIMIT} bytes")
    if meta.get("ownerReferences"):
        yield from _owner_causes(meta["ownerReferences"])


def _owner_causes(owners: list[JsonObject]) -> Iterator[Cause]:
    path = "metadata.ownerReferences"
    for owner in owners:
        for part, what in (("apiVersion", "version must"), ("kind", "must"), ("name", "must"), ("uid", "must")):
            if not owner.get(part):
                yield Cause(f"{path}.{part}", f'Invalid value: "": {what} not be empty')
    first, *others = [f"{owner.get('kind')}/{owner.get('name')}" for owner in owners if owner.get("controller")] or [""]
    for other in others:
        why = f'Only one reference can have Controller set to true. Found "true" in references for {first} and {other}'
        yield Cause(path, f"Invalid value: {encode(owners).decode()}: {why}")


def _finalizer_causes(meta: JsonObject, resource: ServedResource, before: JsonObject | None) -> Iterator[Cause]:
    """Errors in added finalizers."""
    previous = () if before is None else finalizers(before)
    added = [name for name in meta.get("finalizers") or () if name not in previous]
    if not added:
        return
    path = "metadata.finalizers"
    if before is not None and is_terminating(before):
        listing = ", ".join(f'"{name}"' for name in sorted(set(added)))
        why = (
            f"no new finalizers can be added if the object is being deleted, found new finalizers []string{{{listing}}}"
        )
        yield Cause(path, f"Forbidden: {why}", FORBIDDEN)
    if not resource.custom or before is None:
        yield from (Cause(path, f'Invalid value: "{name}": {why}') for name in added for why in key_errors(name))
    if not resource.custom and resource.group not in _FREE_FINALIZERS:
        for name in added:
            if "/" not in name and name not in _STANDARD_FINALIZERS:
                where = f"{path}[{meta['finalizers'].index(name)}]"
                why = "name is neither a standard finalizer name nor is it fully qualified"
                yield Cause(where, f'Invalid value: "{name}": {why}')


def check_identity(before: JsonObject, body: JsonObject, resource: ServedResource) -> None:
    """Raise a 400 if ``body`` has another name or namespace than ``before``, and a 409 if it has another uid."""
    old, new = before["metadata"], body["metadata"]
    for part in ("name", "namespace"):
        if new.get(part) not in (None, "", old.get(part)):
            what = "name of the object" if part == "name" else "namespace of the object"
            raise bad_request(f"the {what} ({new[part]}) does not match the one on the URL ({old.get(part, '')})")
    if new.get("uid") not in (None, "", old["uid"]):
        message = f"Precondition failed: UID in precondition: {new['uid']}, UID in object meta: {old['uid']}"
        subject = resource.subject(old["name"])
        text = f'Operation cannot be fulfilled on {subject.qualified} "{old["name"]}": {message}'
        raise StatusError(409, "Conflict", text, subject)


def finalizers(body: JsonObject) -> list[str]:
    """The object's finalizers."""
    return list(body["metadata"].get("finalizers") or ())


def is_terminating(body: JsonObject) -> bool:
    """Return True if the object is marked for deletion."""
    return "deletionTimestamp" in body["metadata"]


def can_be_removed(body: JsonObject) -> bool:
    """Return True if the object is marked for deletion and has no finalizers or grace period left."""
    meta = body["metadata"]
    return is_terminating(body) and not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds")


def marked_for_deletion(body: JsonObject, now: datetime, grace: int) -> JsonObject:
    """``body`` marked for deletion in ``grace`` seconds; keeps an earlier deadline."""
    meta: JsonObject = body["metadata"]
    if is_terminating(body) and meta.get("deletionGracePeriodSeconds", 0) <= grace:
        return body
    mark: JsonObject = {
        "deletionTimestamp": timestamp(now + timedelta(seconds=grace)),
        "deletionGracePeriodSeconds": grace,
    }
    # As in Kubernetes, marking increments the generation.
    if "generation" in meta and not is_terminating(body):
        mark["generation"] = meta["generation"] + 1
    return {**body, "metadata": {**meta, **mark}}
