"""The verbs create, get, update, patch and delete, with all checks.

- Every verb is synchronous, so the store does not change between a check and its write.
- Objects are stored in the storage version; ``RequestTarget.resource`` has the client's version.
- Order of a write: identity, metadata, pruning, defaults, validation, store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from deploy.local.apiserver.apimachinery import errors
from deploy.local.apiserver.apimachinery.environment import Environment
from deploy.local.apiserver.apimachinery.jsonvalue import TOO_DEEP, JsonObject, encode, is_too_deep, text_at
from deploy.local.apiserver.apimachinery.names import generated_name
from deploy.local.apiserver.registry import metadata, pod_resources
from deploy.local.apiserver.registry.object_versions import in_storage_version, in_version
from deploy.local.apiserver.registry.strategies import Strategy, strategy_of
from deploy.local.apiserver.resources.catalog import Catalog
from deploy.local.apiserver.resources.definitions import CRD_KEY, resources_of
from deploy.local.apiserver.resources.resource import ServedResource
from deploy.local.apiserver.schema.shapes import builtin_shape, check_metadata, check_shape
from deploy.local.apiserver.storage.database import Key
from deploy.local.apiserver.storage.store import ChangeType, ObjectStore, StoredChange, StoredObject

FOREGROUND: Final = "foregroundDeletion"
ORPHAN: Final = "orphan"
_POLICY_FINALIZERS: Final = {"Foreground": FOREGROUND, "Orphan": ORPHAN}


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """Target of a request. ``name`` is empty for a collection, ``namespace`` for all namespaces or none."""

    resource: ServedResource
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def key(self) -> Key:
        """Storage key of the object."""
        return Key(self.resource.key, self.namespace, self.name)

    def named(self, name: str) -> RequestTarget:
        """The same target with another name."""
        return replace(self, name=name)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write. ``field_validation`` is ``Ignore``, ``Warn`` or ``Strict``."""

    dry_run: bool = False
    field_manager: str = ""
    field_validation: str = "Warn"
    force: bool = False


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """Options of a deletion. ``grace`` is in seconds; None: the object's default."""

    dry_run: bool = False
    grace: int | None = None
    propagation: str = ""
    uid: str = ""
    resource_version: str = ""


@dataclass(frozen=True, slots=True)
class StoreResult:
    """Result of a write. ``gone`` is true if the object was removed; ``warnings`` are sent to the client."""

    stored: StoredObject
    created: bool = False
    gone: bool = False
    warnings: tuple[str, ...] = ()


class Api:
    """The verbs on one store."""

    def __init__(self, store: ObjectStore, catalog: Catalog, environment: Environment) -> None:
        self.store = store
        self.catalog = catalog
        self.environment = environment
        # Serve the CRDs of an earlier run.
        for definition in store.objects(CRD_KEY):
            catalog.define(definition.key.name, resources_of(definition.body))
        store.observe(self._follow_definitions)

    def _follow_definitions(self, change: StoredChange) -> None:
        if change.now.key.resource != CRD_KEY:
            return
        if change.type is ChangeType.DELETED:
            self.catalog.forget(change.now.key.name)
        else:
            self.catalog.define(change.now.key.name, resources_of(change.now.body))

    def get(self, target: RequestTarget) -> StoredObject:
        """The object. Raises a 404."""
        stored = self.store.get(target.key)
        if stored is None:
            raise errors.not_found(target.resource.subject(target.name))
        return stored

    def create(self, target: RequestTarget, submitted: JsonObject, options: WriteOptions) -> StoreResult:
        """Create an object. Raises 400, 403, 404 (for its namespace), 409 or 422."""
        resource = target.resource
        body = self._with_identity(target, submitted)
        name = body["metadata"]["name"]
        key = target.named(name).key
        if self.store.get(key) is not None:
            raise errors.already_exists(resource.subject(name))
        self._check_namespace(target, name)
        strategy = strategy_of(resource.key)
        uid, now = self.environment.new_uid(), self.environment.now()
        body = metadata.with_new_metadata(body, resource, target.namespace, uid, now)
        body = self._with_initial_status(resource, strategy, body)
        ready, warnings = self._admit(resource, strategy, None, body, options)
        if options.dry_run:
            return StoreResult(self._dry_run_result(key, ready, 0), created=True, warnings=warnings)
        return StoreResult(self.store.create(key, ready), created=True, warnings=warnings)

    def _with_identity(self, target: RequestTarget, submitted: JsonObject) -> JsonObject:
        """``submitted`` with a name, in the storage version. Raises a 400 or 422."""
        resource = target.resource
        body = in_storage_version(resource, submitted)
        _check_shape(resource, body)
        meta = dict(body.get("metadata") or {})
        if meta.get("namespace") not in (None, "", target.namespace):
            raise errors.bad_request(
                f"the namespace of the provided object does not match the namespace sent on the request "
                f"({meta['namespace']!r}, {target.namespace!r})"
            )
        name = meta.get("name") or target.name
        if not name and meta.get("generateName"):
            name = generated_name(meta["generateName"], self.environment.choose)
        if not name:
            message = "name or generateName is required"
            raise errors.StatusError(
                422, "Invalid", f"{resource.kind} is invalid: metadata.name: Required value: {message}"
            )
        return {**body, "metadata": {**meta, "name": name}}

    def _check_namespace(self, target: RequestTarget, name: str) -> None:
        if not target.resource.namespaced:
            return
        namespace = self.store.get(Key("namespaces", "", target.namespace))
        if namespace is None:
            raise errors.not_found(self.catalog.builtin("namespaces").subject(target.namespace))
        if metadata.is_terminating(namespace.body):
            why = f"unable to create new content in namespace {target.namespace} because it is being terminated"
            raise errors.forbidden(target.resource.subject(name), why)

    @staticmethod
    def _with_initial_status(resource: ServedResource, strategy: Strategy, body: JsonObject) -> JsonObject:
        """``body`` with the initial status of its strategy instead of the client's."""
        if not resource.has_status or strategy.keeps_status:
            return body
        without_status = {key: value for key, value in body.items() if key != "status"}
        first = strategy.initial_status(without_status)
        return without_status if first is None else {**without_status, "status": first}

    def update(self, target: RequestTarget, submitted: JsonObject, options: WriteOptions) -> StoreResult:
        """Replace an object or, for a subresource, that part of it. Raises 400, 404, 409 or 422."""
        strategy = strategy_of(target.resource.key)
        if strategy.creates_on_update and self.store.get(target.key) is None:
            return self._create_on_update(target, submitted, options)
        if strategy.needs_version or target.resource.custom:
            self._check_has_version(target, submitted)
        return self.change(target, lambda _: submitted, options)

    def _create_on_update(self, target: RequestTarget, submitted: JsonObject, options: WriteOptions) -> StoreResult:
        """Create a missing object, unless ``submitted`` replaces a deleted one. Raises 400, 404, 409 or 422."""
        # With a resourceVersion or uid, the client has read an object that has been deleted since.
        if any(text_at(submitted, f"metadata.{name}") for name in ("resourceVersion", "uid")):
            raise errors.modified(target.resource.subject(target.name))
        if (name := text_at(submitted, "metadata.name")) != target.name:
            raise errors.bad_request(
                f"the name of the object ({name}) does not match the one on the URL ({target.name})"
            )
        return self.create(target, submitted, options)

    def _check_has_version(self, target: RequestTarget, submitted: JsonObject) -> None:
        """Raise a 404 if there is no object, and a 422 if ``submitted`` has no resourceVersion."""
        self.get(target)
        meta = submitted.get("metadata")
        if not isinstance(meta, dict) or not meta.get("resourceVersion"):
            cause = errors.Cause("metadata.resourceVersion", "Invalid value: 0: must be specified for an update")
            raise errors.invalid(target.resource.subject(target.name), [cause])

    def change(
        self, target: RequestTarget, make: Callable[[JsonObject], JsonObject], options: WriteOptions
    ) -> StoreResult:
        """Replace an object with the result of ``make``. Raises 400, 404, 409 or 422."""
        before = self.get(target)
        resource = target.resource
        # `make` gets and returns the object in the client's version.
        body = in_storage_version(resource, make(in_version(resource, before.body)))
        _check_shape(resource, body, before.body)
        body = {**body, "metadata": body.get("metadata") or {}}
        metadata.check_identity(before.body, body, resource)
        # Without a resourceVersion, the write is unconditional.
        if body["metadata"].get("resourceVersion") not in (None, "", str(before.revision)):
            raise errors.modified(resource.subject(target.name))
        part = _permitted_changes(target, before.body, body)
        if causes := list(strategy_of(resource.key).check_path(target.subresource, before.body, part)):
            raise errors.invalid(resource.subject(target.name), causes)
        if target.subresource == "resize" and part != before.body:
            self._check_node(target, part)
        return self._put(resource, before, part, options)

    def _check_node(self, target: RequestTarget, pod: JsonObject) -> None:
        """Raise a 403 if a resized pod requests more than its node has."""
        node = self.store.get(Key("nodes", "", text_at(pod, "spec.nodeName") or ""))
        if why := pod_resources.excess(pod, None if node is None else node.body):
            refusal = errors.forbidden(target.resource.subject(target.name), why)
            refusal.causes = (errors.Cause("", "", "NodeCapacity"),) if node is not None else ()
            raise refusal

    def _put(
        self, resource: ServedResource, before: StoredObject, body: JsonObject, options: WriteOptions
    ) -> StoreResult:
        strategy = strategy_of(resource.key)
        carried = metadata.with_old_metadata(before.body, body)
        ready, warnings = self._admit(resource, strategy, before.body, carried, options)
        ready = metadata.with_generation(before.body, ready) if resource.generation else ready
        # A write without changes is not stored and causes no event.
        if ready == before.body:
            return StoreResult(before, warnings=warnings)
        # After all checks.
        if options.dry_run:
            return StoreResult(self._dry_run_result(before.key, ready, before.revision), warnings=warnings)
        # Removing the last finalizer of an object that is being deleted removes the object.
        if metadata.can_be_removed(ready) and not strategy.is_held(ready):
            return StoreResult(self.store.delete(before, ready), gone=True, warnings=warnings)
        return StoreResult(self.store.replace(before, ready), warnings=warnings)

    def _admit(
        self,
        resource: ServedResource,
        strategy: Strategy,
        before: JsonObject | None,
        body: JsonObject,
        options: WriteOptions,
    ) -> tuple[JsonObject, tuple[str, ...]]:
        """``body`` after pruning, defaulting and validation, with warnings. Raises a 400 or 422."""
        metadata.check(body, resource, before)
        warnings: tuple[str, ...] = ()
        if resource.schema is not None:
            body, unknown = resource.schema.without_unknown(body)
            warnings = _unknown_fields(unknown, resource, options)
            body = resource.schema.with_defaults(body)
        body = strategy.complete(body, self.environment.now())
        causes = [*strategy.check(before, body), *(resource.schema.causes(body, before) if resource.schema else ())]
        if causes:
            raise errors.invalid(resource.subject(body["metadata"]["name"]), causes)
        return body, (*warnings, *strategy.warnings(body))

    def delete(self, target: RequestTarget, options: DeleteOptions) -> StoreResult:
        """Mark an object for deletion, and remove it unless something holds it. Raises 403, 404 or 409."""
        before = self.get(target)
        self._check_preconditions(target, before, options)
        strategy = strategy_of(target.resource.key)
        if target.name in strategy.undeletable:
            raise errors.forbidden(
                target.resource.subject(target.name), f"this {target.resource.singular_name} may not be deleted"
            )
        body = _with_policy(before.body, options.propagation)
        grace = strategy.grace(before.body)
        # An object without a grace period is removed immediately, regardless of the request.
        if options.grace is not None and grace:
            grace = options.grace
        body = metadata.marked_for_deletion(body, self.environment.now(), grace)
        # A namespace also shows this in its status.
        if before.key.resource == "namespaces":
            body = {**body, "status": {**body.get("status", {}), "phase": "Terminating"}}
        gone = metadata.can_be_removed(body) and not strategy.is_held(body)
        if options.dry_run:
            return StoreResult(self._dry_run_result(before.key, body, before.revision), gone=gone)
        if gone:
            return StoreResult(self.store.delete(before, body), gone=True)
        # A second deletion changes nothing.
        return StoreResult(before if body == before.body else self.store.replace(before, body))

    @staticmethod
    def _check_preconditions(target: RequestTarget, before: StoredObject, options: DeleteOptions) -> None:
        subject = target.resource.subject(target.name)
        meta = before.body["metadata"]
        for word, wanted, actual in (
            ("UID", options.uid, meta["uid"]),
            ("ResourceVersion", options.resource_version, meta["resourceVersion"]),
        ):
            if wanted and wanted != actual:
                message = (
                    f'Operation cannot be fulfilled on {subject.qualified} "{target.name}": Precondition failed: '
                    f"{word} in precondition: {wanted}, {word} in object meta: {actual}"
                )
                raise errors.StatusError(409, "Conflict", message, subject)

    @staticmethod
    def _dry_run_result(key: Key, body: JsonObject, revision: int) -> StoredObject:
        """The object that a dry run returns in place of a stored one."""
        return StoredObject(key, revision, body, encode(body))


def _check_shape(resource: ServedResource, body: JsonObject, before: JsonObject | None = None) -> None:
    """Raise a 400 if a field that this server reads has the wrong type, or the object is nested too deep.

    Parts that are equal in ``before``, the replaced state, were checked when it was written.
    """
    old = before or {}
    if is_too_deep(body):
        raise errors.bad_request(f"the object is {TOO_DEEP}")
    check_metadata(body.get("metadata"), old.get("metadata"))
    if not resource.custom:
        check_shape(body, builtin_shape(resource.key), before)


def _permitted_changes(target: RequestTarget, before: JsonObject, body: JsonObject) -> JsonObject:
    """``body`` with only the changes that this path may make: to a subresource, or to everything else."""
    if target.subresource == "status":
        return _with_status({**before, "metadata": _status_update_metadata(target, before, body)}, body)
    if target.subresource == "resize":
        return pod_resources.with_resources_of(before, body)
    if target.resource.has_status:
        return _with_status(body, before)
    return body


def _status_update_metadata(target: RequestTarget, before: JsonObject, body: JsonObject) -> JsonObject:
    old: JsonObject = before["metadata"]
    if not strategy_of(target.resource.key).status_with_metadata:
        return {**old}
    # As in kube-apiserver, a status update never changes owners.
    owners = {"ownerReferences": old["ownerReferences"]} if "ownerReferences" in old else {}
    return {key: value for key, value in body["metadata"].items() if key != "ownerReferences"} | owners


def _with_status(body: JsonObject, source: JsonObject) -> JsonObject:
    without_status = {key: value for key, value in body.items() if key != "status"}
    return {**without_status, "status": source["status"]} if "status" in source else without_status


def _with_policy(body: JsonObject, propagation: str) -> JsonObject:
    """``body`` with the finalizer of the propagation policy."""
    wanted = _POLICY_FINALIZERS.get(propagation)
    others = [name for name in metadata.finalizers(body) if name not in _POLICY_FINALIZERS.values()]
    if propagation == "" or metadata.is_terminating(body):
        return body
    finalizers = [*others, wanted] if wanted else others
    meta = {key: value for key, value in body["metadata"].items() if key != "finalizers"}
    return {**body, "metadata": {**meta, "finalizers": finalizers} if finalizers else meta}


def _unknown_fields(paths: Iterable[str], resource: ServedResource, options: WriteOptions) -> tuple[str, ...]:
    messages = [f'unknown field "{path}"' for path in paths]
    if not messages or options.field_validation == "Ignore":
        return ()
    if options.field_validation == "Strict":
        raise errors.bad_request(
            f"{resource.kind} in version {resource.version!r} cannot be handled as a {resource.kind}: "
            f"strict decoding error: {', '.join(messages)}"
        )
    return tuple(messages)
