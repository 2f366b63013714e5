"""Collects dependents, the contents of namespaces, and instances of CRDs; creates default service accounts.

- It is level-triggered: a change only enqueues keys, and reconciling depends on the current state only. A restart
  enqueues every object.
- It acts through the verbs of ``api``, as a client would, one object at a time. ``step`` is synchronous and does not
  raise; tests call it until the queue is empty, ``run`` as long as the server runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from deploy.local.apiserver.apimachinery.errors import StatusError
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject, field
from deploy.local.apiserver.controllers.dependents import Dependents, owner_references
from deploy.local.apiserver.registry import metadata
from deploy.local.apiserver.registry.api import FOREGROUND, ORPHAN, Api, DeleteOptions, RequestTarget, WriteOptions
from deploy.local.apiserver.registry.strategies import NAMESPACE_FINALIZER
from deploy.local.apiserver.resources.definitions import CLEANUP_FINALIZER, CRD_KEY
from deploy.local.apiserver.storage.database import Key
from deploy.local.apiserver.storage.store import ChangeType, StoredChange, StoredObject

_log = logging.getLogger(__name__)

_ACCOUNTS: Final = "serviceaccounts"
_NAMESPACES: Final = "namespaces"


class GarbageCollector:
    """The garbage collector of one ``api``."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._index = Dependents()
        self._work: dict[Key, None] = {}
        self._more = asyncio.Event()
        for resource in api.store.resources():
            for stored in api.store.objects(resource):
                self._index.add(stored)
                self._enqueue(stored.key)
        api.store.observe(self._follow)

    def _enqueue(self, key: Key) -> None:
        self._work[key] = None
        self._more.set()

    def _follow(self, change: StoredChange) -> None:
        self._index.follow(change)
        if change.type is not ChangeType.DELETED:
            self._enqueue(change.now.key)
            return
        meta = change.now.body["metadata"]
        # Dependents have lost their owner, and an owner, a namespace or a CRD may have waited for this deletion.
        related: list[Key | None] = [*self._index.dependents_of(meta["uid"])]
        related += [self._index.key_of(owner.get("uid", "")) for owner in owner_references(change.now.body)]
        related.append(Key(_NAMESPACES, "", change.now.key.namespace))
        related.append(Key(CRD_KEY, "", change.now.key.resource))
        for key in filter(None, related):
            self._enqueue(key)

    @property
    def idle(self) -> bool:
        """True if the queue is empty."""
        return not self._work

    def step(self) -> None:
        """Reconcile the next object of the queue, which must not be empty."""
        key = next(iter(self._work))
        del self._work[key]
        stored = self._api.store.get(key)
        if stored is None:
            return
        for rule in (self._collect_dependent, self._continue_deletion, self._namespace, self._definition):
            try:
                rule(stored)
            # A refused write (the object may not match its schema any more) is logged; retried when the object changes.
            except Exception as error:  # noqa: BLE001 - one object must not end the collector of all others
                fields = {
                    "resource": key.resource,
                    "namespace": key.namespace,
                    "object": key.name,
                    "reason": str(error),
                }
                _log.warning(
                    "garbage collection of an object failed", extra=fields, exc_info=not isinstance(error, StatusError)
                )
            # The next rules must not act on a state that this one has replaced.
            if self._api.store.get(key) is not stored:
                self._enqueue(key)
                return

    async def run(self) -> None:
        """Reconcile queued objects until cancelled; other tasks run between the steps."""
        while True:
            await self._more.wait()
            # Cleared before the work: a change during it must set the event again.
            self._more.clear()
            while not self.idle:
                self.step()
                await asyncio.sleep(0)

    def _target(self, stored: StoredObject) -> RequestTarget | None:
        resource = self._api.catalog.by_key(stored.key.resource)
        return RequestTarget(resource, stored.key.namespace, stored.key.name) if resource else None

    def _delete(self, stored: StoredObject, propagation: str) -> None:
        target = self._target(stored)
        if target:
            options = DeleteOptions(propagation=propagation, uid=stored.body["metadata"]["uid"])
            self._api.delete(target, options)

    def _change(self, stored: StoredObject, make: Callable[[JsonObject], JsonObject]) -> None:
        target = self._target(stored)
        if target:
            self._api.change(target, make, WriteOptions())

    def _collect_dependent(self, stored: StoredObject) -> None:
        """Delete an object whose owners are all gone, or wait for their dependents to be deleted first."""
        references = owner_references(stored.body)
        present = [owner for owner in references if self._is_present(owner)]
        if len(present) == len(references) or metadata.is_terminating(stored.body):
            return
        # It still has other owners, so only the references to deleted ones are removed.
        if present:
            self._change(stored, lambda body: _with_owners(body, present))
            return
        # Foreground deletion applies to the dependents of a dependent too.
        waiting = any(self._index.key_of(owner.get("uid", "")) for owner in references)
        self._delete(stored, "Foreground" if waiting else "Background")

    def _is_present(self, owner: JsonObject) -> bool:
        key = self._index.key_of(owner.get("uid", ""))
        if key is None:
            # An owner whose kind is not served cannot be looked up; it counts as existing, so that nothing is deleted
            # by mistake.
            return self._api.catalog.by_kind(owner.get("apiVersion", ""), owner.get("kind", "")) is None
        stored = self._api.store.get(key)
        return stored is not None and not _waits_for_dependents(stored.body)

    def _continue_deletion(self, stored: StoredObject) -> None:
        """Continue a deletion with the propagation policy Orphan or Foreground."""
        if not metadata.is_terminating(stored.body):
            return
        uid = stored.body["metadata"]["uid"]
        dependents = [candidate for key in self._index.dependents_of(uid) if (candidate := self._api.store.get(key))]
        # Orphan: the dependents' references are removed before the owner.
        if ORPHAN in metadata.finalizers(stored.body):
            for dependent in dependents:
                rest = [owner for owner in owner_references(dependent.body) if owner.get("uid") != uid]
                self._change(dependent, lambda body, rest=rest: _with_owners(body, rest))  # type: ignore[misc]
            self._change(stored, lambda body: _without_finalizer(body, ORPHAN))
        # Foreground: the owner stays until it has no dependent with `blockOwnerDeletion`.
        elif _waits_for_dependents(stored.body):
            for dependent in dependents:
                # Their owner no longer counts as present, so `_collect_dependent` deletes them.
                self._enqueue(dependent.key)
            owners = (owner for dependent in dependents for owner in owner_references(dependent.body))
            if not any(owner.get("uid") == uid and owner.get("blockOwnerDeletion") for owner in owners):
                self._change(stored, lambda body: _without_finalizer(body, FOREGROUND))

    def _namespace(self, stored: StoredObject) -> None:
        """Create a namespace's default service account; delete the contents of a terminating namespace."""
        if stored.key.resource != _NAMESPACES:
            return
        name = stored.key.name
        if not metadata.is_terminating(stored.body):
            self._ensure_account(name)
            return
        # A list: deletions modify the collections that `_contents` iterates over.
        contents = list(self._contents(name))
        for inside in contents:
            if not metadata.is_terminating(inside.body):
                self._delete(inside, "Background")
        if not any(True for _ in self._contents(name)):
            self._change(stored, _without_namespace_finalizer)

    def _contents(self, namespace: str) -> Iterable[StoredObject]:
        for resource in self._api.store.resources():
            yield from self._api.store.objects(resource, namespace)

    def _ensure_account(self, namespace: str) -> None:
        resource = self._api.catalog.by_key(_ACCOUNTS)
        if resource and not self._api.store.get(Key(_ACCOUNTS, namespace, "default")):
            self._api.create(RequestTarget(resource, namespace), {"metadata": {"name": "default"}}, WriteOptions())

    def _definition(self, stored: StoredObject) -> None:
        """Delete the instances of a CRD that is being deleted."""
        if stored.key.resource != CRD_KEY or CLEANUP_FINALIZER not in metadata.finalizers(stored.body):
            return
        if not metadata.is_terminating(stored.body):
            return
        for instance in self._api.store.objects(stored.key.name):
            if not metadata.is_terminating(instance.body):
                self._delete(instance, "Background")
        if not self._api.store.objects(stored.key.name):
            self._change(stored, lambda body: _without_finalizer(body, CLEANUP_FINALIZER))


def _waits_for_dependents(body: JsonObject) -> bool:
    return metadata.is_terminating(body) and FOREGROUND in metadata.finalizers(body)


def _with_owners(body: JsonObject, owners: list[JsonObject]) -> JsonObject:
    return {**body, "metadata": {**body["metadata"], "ownerReferences": owners}}


def _without_finalizer(body: JsonObject, name: str) -> JsonObject:
    rest = [finalizer for finalizer in metadata.finalizers(body) if finalizer != name]
    return {**body, "metadata": {**body["metadata"], "finalizers": rest}}


def _without_namespace_finalizer(body: JsonObject) -> JsonObject:
    rest = [name for name in field(body, ("spec", "finalizers")) or () if name != NAMESPACE_FINALIZER]
    return {**body, "spec": {**(body.get("spec") or {}), "finalizers": rest}}
