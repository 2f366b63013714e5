"""A cache of the objects of one kind: facts by name, each from the newest known version."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, Generic

from protocol.kubernetes.objects import JsonObject, name_of, number, uid_of, version_of
from protocol.kubernetes.pages import Unreadable
from protocol.messages import ObjectName
from protocol.runtime.kubernetes.watches.kinds import F, FactChange, Kind, WatchReport

REMEMBERED_GONE: Final = 2_000
"""Number of deleted objects to remember, because responses about them may arrive late."""


@dataclass(slots=True, eq=False)
class FactCache(Generic[F]):
    """The facts of one kind by name. ``on_change`` runs synchronously for each change and must not block.

    ``unreadable`` are the objects that cannot be decoded, with reasons; ``newest`` is the newest known version, 0
    before the first.
    """

    kind: Kind[F]
    on_change: Callable[[FactChange[F]], None]
    report: WatchReport
    facts: dict[ObjectName, F] = field(default_factory=dict)
    unreadable: dict[ObjectName, Unreadable] = field(default_factory=dict)
    newest: int = 0
    _versions: dict[ObjectName, int] = field(default_factory=dict)
    _uids: dict[ObjectName, str] = field(default_factory=dict)
    _gone: dict[str, int] = field(default_factory=dict)

    def learn(self, obj: JsonObject, *, reread: bool = False) -> F | None:
        """Apply an object that was read separately, as if from the watch; with ``reread`` even a known version.

        Returns its fact, or its maximum if it cannot be decoded (None if the kind has none).
        """
        name, uid, version = name_of(obj), uid_of(obj), version_of(obj)
        # The response to a write often arrives again in the watch and in the next list, so decode each version only
        # once. ``reread`` is for lists after a watch that could not resume: then even the same version may have
        # different content, because a changed CRD has other defaults.
        current = self.at_version(name, version)
        if current is not None and self._uids[name] == uid and not reread:
            return current
        try:
            fact = self.kind.read(obj)
        except ValueError as error:
            # Report it once per version, and assume its maximum.
            return self.learn_unreadable(Unreadable(name, uid, version, str(error)), obj)
        self.learn_fact(name, uid, version, fact)
        return fact

    def at_version(self, name: ObjectName, version: str) -> F | None:
        """The fact of exactly this version; None if another version is known, or it cannot be decoded."""
        is_this = 0 < number(version) == self._versions.get(name) and name not in self.unreadable
        return self.facts.get(name) if is_this else None

    def learn_fact(self, name: ObjectName, uid: str, version: str, fact: F) -> None:
        """Like ``learn``, for an object that is already decoded."""
        if self._is_newer(name, uid, version):
            self._now_readable(name)
            self._put(name, fact)

    def learn_silently(self, name: ObjectName, uid: str, version: str, fact: F) -> None:
        """Like ``learn_fact``, for an object that is not ``unreadable``, without calling ``on_change``."""
        if self._is_newer(name, uid, version):
            self.facts[name] = fact

    def forget(self, name: ObjectName, version: int = 0) -> None:
        """Record that the object was deleted, in every version up to ``version``."""
        newest = self._versions.pop(name, 0)
        uid = self._uids.pop(name, "")
        if uid:
            # Not every deletion has its own version; it happened no later than the newest known one.
            self._gone[uid] = max(newest, version, self.newest)
            if len(self._gone) > REMEMBERED_GONE:
                # Dicts keep insertion order, so this is the oldest.
                del self._gone[next(iter(self._gone))]
        self._now_readable(name)
        before = self.facts.pop(name, None)
        if before is not None:
            self.on_change(FactChange(name, before, None))

    def learn_unreadable(self, found: Unreadable, obj: JsonObject) -> F | None:
        """Like ``learn``, for an object that cannot be decoded; ``obj`` contains its readable parts.

        For a kind without a maximum (``Kind.at_most``), keep the object's earlier fact.
        """
        at_most = self.kind.at_most
        fact = None if at_most is None else at_most(obj, found.reason)
        # The version itself may be unreadable. Lists and watches never go back, so it is no older than the known one.
        version = found.version or str(self._versions.get(found.name, 0))
        if self._is_newer(found.name, found.uid, version):
            before = self.unreadable.get(found.name)
            self.unreadable[found.name] = found
            # Every list contains it again; report it once per version.
            if before is None or (before.uid, before.version) != (found.uid, found.version):
                self.report.object_unreadable(self.kind.name, found)
                self.report.unreadable_objects(self.kind.name, len(self.unreadable))
            if fact is not None:
                self._put(found.name, fact)
        return fact

    def _is_newer(self, name: ObjectName, uid: str, version: str) -> bool:
        """Return True unless a newer state of the object, or its deletion, is known; records the version."""
        age = number(version)
        # Reads may overtake the watch: an older version never replaces a newer one, and a deleted object stays deleted.
        if age < self._versions.get(name, 0) or age <= self._gone.get(uid, -1):
            return False
        self._versions[name], self._uids[name] = age, uid
        return True

    def is_older(self, name: ObjectName, version: int, by: int) -> bool:
        """Return True if a read at version ``by`` shows an older object than the known one."""
        # A read at ``by`` includes every version up to ``by``; a newer known version proves nothing.
        return 0 < version < self._versions.get(name, 0) <= by

    def forget_all(self) -> None:
        """Forget all objects, because the cluster lacks the kind."""
        # Undecodable objects may have no fact.
        for name in self.facts.keys() | self.unreadable.keys():
            self.forget(name)

    def forget_unlisted(self, listed: AbstractSet[ObjectName], version: int) -> None:
        """Forget all objects that are missing from a list at ``version``, except newer ones."""
        for name in (self.facts.keys() | self.unreadable.keys()) - listed:
            self.forget_at(name, version)

    def forget_at(self, name: ObjectName, version: int) -> None:
        """Forget an object that was deleted at ``version``, but not a newer one of the same name."""
        if self._versions.get(name, 0) <= version:
            self.forget(name, version)

    def reset_versions(self) -> None:
        """After a restore of the store: accept any version, and objects that were deleted since the backup."""
        self._versions.clear()
        self._gone.clear()
        self.newest = 0

    def _now_readable(self, name: ObjectName) -> None:
        if self.unreadable.pop(name, None) is not None:
            self.report.unreadable_objects(self.kind.name, len(self.unreadable))

    def _put(self, name: ObjectName, fact: F) -> None:
        before = self.facts.get(name)
        # Status updates often do not change the fact, so do not report them.
        if fact == before:
            return
        self.facts[name] = fact
        self.on_change(FactChange(name, before, fact))
