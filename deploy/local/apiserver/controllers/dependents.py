"""Index of owner references, kept up to date with the store, to find dependents without a scan. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject
from deploy.local.apiserver.storage.database import Key
from deploy.local.apiserver.storage.store import ChangeType, StoredChange, StoredObject


def owner_references(body: JsonObject) -> list[JsonObject]:
    """The owner references of an object."""
    return list(body["metadata"].get("ownerReferences") or ())


class Dependents:
    """Keys of objects by uid, and keys of dependents by their owner's uid."""

    def __init__(self) -> None:
        self._keys: dict[str, Key] = {}
        self._owned: dict[str, set[Key]] = {}

    def add(self, stored: StoredObject) -> None:
        """Add an object."""
        self._keys[stored.body["metadata"]["uid"]] = stored.key
        for owner in owner_references(stored.body):
            self._owned.setdefault(owner.get("uid", ""), set()).add(stored.key)

    def follow(self, change: StoredChange) -> None:
        """Update the index after a change in the store."""
        if change.before is not None:
            self._remove(change.before)
        if change.type is not ChangeType.DELETED:
            self.add(change.now)

    def _remove(self, stored: StoredObject) -> None:
        self._keys.pop(stored.body["metadata"]["uid"], None)
        for owner in owner_references(stored.body):
            owned = self._owned.get(owner.get("uid", ""), set())
            owned.discard(stored.key)
            # Otherwise the index would grow with every owner that ever existed.
            if not owned:
                self._owned.pop(owner.get("uid", ""), None)

    def key_of(self, uid: str) -> Key | None:
        """Key of the object with this uid, if it exists."""
        return self._keys.get(uid)

    def dependents_of(self, uid: str) -> Iterable[Key]:
        """Keys of the dependents of the object with this uid, sorted."""
        # Sorted for reproducible runs: a set has no stable order.
        return sorted(self._owned.get(uid, ()))
