"""Tidies up behind deletions: dependents, namespaces, custom resources; and gives namespaces their account.

- It is level-triggered: a change only says which object to look at; what to do follows from the state found then. A
  restart looks at every object once.
- It acts through the verbs of ``api``, as a client would, one object at a time. ``step`` is synchronous and total:
  tests run it until nothing is left; ``run`` does the same for as long as the server lives.
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
    """Tidies the store of one ``api``."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._index = Dependents()
        self._work: dict[Key, None] = {}
        self._more = asyncio.Event()
        for resource in api.store.resources():
            for stored in api.store.objects(resource):
                self._index.add(stored)
                self._look_at(stored.key)
        api.store.observe(self._follow)

    def _look_at(self, key: Key) -> None:
        self._work[key] = None
        self._more.set()

    def _follow(self, change: StoredChange) -> None:
        self._index.follow(change)
        if change.type is not ChangeType.DELETED:
            self._look_at(change.now.key)
            return
        meta = change.now.body["metadata"]
        # A deletion leaves its dependents without an owner, and may be what an owner, a namespace or a definition waits
        # for.
        related: list[Key | None] = [*self._index.of(meta["uid"])]
        related += [self._index.place(owner.get("uid", "")) for owner in owner_references(change.now.body)]
        related.append(Key(_NAMESPACES, "", change.now.key.namespace))
        related.append(Key(CRD_KEY, "", change.now.key.resource))
        for key in filter(None, related):
            self._look_at(key)

    @property
    def idle(self) -> bool:
        """True if there is nothing to look at."""
        return not self._work

    def step(self) -> None:
        """Looks at one object and does what its state asks for."""
        key = next(iter(self._work))
        del self._work[key]
        stored = self._api.store.get(key)
        if stored is None:
            return
        for rule in (self._orphaned, self._ending, self._namespace, self._definition):
            try:
                rule(stored)
            # A refused write (say, the object no longer fits its schema) is logged, and tried again when it changes.
            except Exception as error:  # noqa: BLE001 - one object must not end the collector of all others
                fields = {
                    "resource": key.resource,
                    "namespace": key.namespace,
                    "object": key.name,
                    "reason": str(error),
                }
                _log.warning(
                    "cannot collect what an object leaves", extra=fields, exc_info=not isinstance(error, StatusError)
                )
            # The rules that follow must not act on a state that this one has replaced.
            if self._api.store.get(key) is not stored:
                self._look_at(key)
                return

    async def run(self) -> None:
        """Steps whenever there is something to look at, until cancelled; lets other tasks run between steps."""
        while True:
            await self._more.wait()
            # Cleared before the work, so that a change during it sets the event again.
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

    def _orphaned(self, stored: StoredObject) -> None:
        """Handles an object whose owner is gone, or waits for its dependents to go first."""
        references = owner_references(stored.body)
        solid = [owner for owner in references if self._is_solid(owner)]
        if len(solid) == len(references) or metadata.is_ending(stored.body):
            return
        # Other owners still keep it, so only the references to those that are gone are dropped.
        if solid:
            self._change(stored, lambda body: _with_owners(body, solid))
            return
        # An owner that waits for this object wants it gone with its own dependents.
        waiting = any(self._index.place(owner.get("uid", "")) for owner in references)
        self._delete(stored, "Foreground" if waiting else "Background")

    def _is_solid(self, owner: JsonObject) -> bool:
        place = self._index.place(owner.get("uid", ""))
        if place is None:
            # An owner of a kind that is not served cannot be looked up. It counts as present, so that nothing is
            # deleted by mistake.
            return self._api.catalog.by_kind(owner.get("apiVersion", ""), owner.get("kind", "")) is None
        stored = self._api.store.get(place)
        return stored is not None and not _waits_for_dependents(stored.body)

    def _ending(self, stored: StoredObject) -> None:
        """Handles an object that is deleted after its dependents, or without them."""
        if not metadata.is_ending(stored.body):
            return
        uid = stored.body["metadata"]["uid"]
        dependents = [candidate for key in self._index.of(uid) if (candidate := self._api.store.get(key))]
        # Orphan: dependents lose their reference, then the owner goes.
        if ORPHAN in metadata.finalizers(stored.body):
            for dependent in dependents:
                rest = [owner for owner in owner_references(dependent.body) if owner.get("uid") != uid]
                self._change(dependent, lambda body, rest=rest: _with_owners(body, rest))  # type: ignore[misc]
            self._change(stored, lambda body: _without_finalizer(body, ORPHAN))
        # Foreground: the owner stays until no dependent with `blockOwnerDeletion` is left.
        elif _waits_for_dependents(stored.body):
            for dependent in dependents:
                # Their owner no longer counts as solid, so `_orphaned` deletes them.
                self._look_at(dependent.key)
            owners = (owner for dependent in dependents for owner in owner_references(dependent.body))
            if not any(owner.get("uid") == uid and owner.get("blockOwnerDeletion") for owner in owners):
                self._change(stored, lambda body: _without_finalizer(body, FOREGROUND))

    def _namespace(self, stored: StoredObject) -> None:
        """Gives a namespace its service account, and deletes the contents of one that is ending."""
        if stored.key.resource != _NAMESPACES:
            return
        name = stored.key.name
        if not metadata.is_ending(stored.body):
            self._give_account(name)
            return
        # A list: deletions change the collections that are read here.
        contents = list(self._contents(name))
        for inside in contents:
            if not metadata.is_ending(inside.body):
                self._delete(inside, "Background")
        if not any(True for _ in self._contents(name)):
            self._change(stored, _without_namespace_finalizer)

    def _contents(self, namespace: str) -> Iterable[StoredObject]:
        for resource in self._api.store.resources():
            yield from self._api.store.objects(resource, namespace)

    def _give_account(self, namespace: str) -> None:
        resource = self._api.catalog.by_key(_ACCOUNTS)
        if resource and not self._api.store.get(Key(_ACCOUNTS, namespace, "default")):
            self._api.create(RequestTarget(resource, namespace), {"metadata": {"name": "default"}}, WriteOptions())

    def _definition(self, stored: StoredObject) -> None:
        """Deletes the objects of a definition that is ending."""
        if stored.key.resource != CRD_KEY or CLEANUP_FINALIZER not in metadata.finalizers(stored.body):
            return
        if not metadata.is_ending(stored.body):
            return
        for instance in self._api.store.objects(stored.key.name):
            if not metadata.is_ending(instance.body):
                self._delete(instance, "Background")
        if not self._api.store.objects(stored.key.name):
            self._change(stored, lambda body: _without_finalizer(body, CLEANUP_FINALIZER))


def _waits_for_dependents(body: JsonObject) -> bool:
    return metadata.is_ending(body) and FOREGROUND in metadata.finalizers(body)


def _with_owners(body: JsonObject, owners: list[JsonObject]) -> JsonObject:
    return {**body, "metadata": {**body["metadata"], "ownerReferences": owners}}


def _without_finalizer(body: JsonObject, name: str) -> JsonObject:
    rest = [finalizer for finalizer in metadata.finalizers(body) if finalizer != name]
    return {**body, "metadata": {**body["metadata"], "finalizers": rest}}


def _without_namespace_finalizer(body: JsonObject) -> JsonObject:
    rest = [name for name in field(body, ("spec", "finalizers")) or () if name != NAMESPACE_FINALIZER]
    return {**body, "spec": {**(body.get("spec") or {}), "finalizers": rest}}
