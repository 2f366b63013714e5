"""Index over owner references that follows the store, so that dependents are found without a search. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject
from deploy.local.apiserver.storage.database import Key
from deploy.local.apiserver.storage.store import ChangeType, StoredChange, StoredObject


def owner_references(body: JsonObject) -> list[JsonObject]:
    """The owner references of an object."""
    return list(body["metadata"].get("ownerReferences") or ())


class Dependents:
    """Objects by uid, and those that name an owner by the owner's uid."""

    def __init__(self) -> None:
        self._places: dict[str, Key] = {}
        self._owned: dict[str, set[Key]] = {}

    def add(self, stored: StoredObject) -> None:
        """Adds an object to the index."""
        self._places[stored.body["metadata"]["uid"]] = stored.key
        for owner in owner_references(stored.body):
            self._owned.setdefault(owner.get("uid", ""), set()).add(stored.key)

    def follow(self, change: StoredChange) -> None:
        """Updates the index after a change."""
        if change.before is not None:
            self._remove(change.before)
        if change.type is not ChangeType.DELETED:
            self.add(change.now)

    def _remove(self, stored: StoredObject) -> None:
        self._places.pop(stored.body["metadata"]["uid"], None)
        for owner in owner_references(stored.body):
            owned = self._owned.get(owner.get("uid", ""), set())
            owned.discard(stored.key)
            # Without this the index would grow with every owner that ever existed.
            if not owned:
                self._owned.pop(owner.get("uid", ""), None)

    def place(self, uid: str) -> Key | None:
        """Key of the object with that uid, if it exists."""
        return self._places.get(uid)

    def of(self, uid: str) -> Iterable[Key]:
        """The objects that name the object with that uid as an owner, in order."""
        # A set has no order of its own; sorting makes every run act alike.
        return sorted(self._owned.get(uid, ()))
