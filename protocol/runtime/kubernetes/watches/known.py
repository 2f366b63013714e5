"""Cache of the objects of one kind: facts by name, each from the newest version that was seen."""

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
"""How many deleted objects are remembered as gone: an answer about one may arrive late."""


@dataclass(slots=True, eq=False)
class KnownFacts(Generic[F]):
    """The facts of one kind by name. ``on_change`` runs at once for each change and must not wait for anything.

    ``unreadable`` has the objects that cannot be read, and why; ``newest`` is the newest version seen, 0 before the
    first.
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
        """Take an object that was read on its own, as if it had been watched; with ``reread`` a known version, too.

        Returns its fact; its maximum if it cannot be read, None if the kind has no such fact.
        """
        name, uid, version = name_of(obj), uid_of(obj), version_of(obj)
        # A write's answer often comes again in the watch and in the next list, so each version is read once. ``reread``
        # is for lists after a watch that could not be resumed: even the same version may have other content then, as a
        # changed CRD has other defaults.
        current = self.at_version(name, version)
        if current is not None and self._uids[name] == uid and not reread:
            return current
        try:
            fact = self.kind.read(obj)
        except ValueError as error:
            # Reported once per version, and kept at its maximum.
            return self.learn_unreadable(Unreadable(name, uid, version, str(error)), obj)
        self.learn_fact(name, uid, version, fact)
        return fact

    def at_version(self, name: ObjectName, version: str) -> F | None:
        """The fact of this very version of an object; None if another version is known, or it cannot be read."""
        is_this = 0 < number(version) == self._versions.get(name) and name not in self.unreadable
        return self.facts.get(name) if is_this else None

    def learn_fact(self, name: ObjectName, uid: str, version: str, fact: F) -> None:
        """As ``learn``, with an object that has been read already."""
        if self._is_news(name, uid, version):
            self._now_readable(name)
            self._put(name, fact)

    def learn_told(self, name: ObjectName, uid: str, version: str, fact: F) -> None:
        """As ``learn_fact``, for an object that could be read before, without calling ``on_change``."""
        if self._is_news(name, uid, version):
            self.facts[name] = fact

    def forget(self, name: ObjectName, version: int = 0) -> None:
        """Record that the object is gone, in every version up to ``version``."""
        newest = self._versions.pop(name, 0)
        uid = self._uids.pop(name, "")
        if uid:
            # Not every deletion has a version of its own; it happened no later than the newest one seen.
            self._gone[uid] = max(newest, version, self.newest)
            if len(self._gone) > REMEMBERED_GONE:
                # Dicts keep the order of insertion: this is the oldest.
                del self._gone[next(iter(self._gone))]
        self._now_readable(name)
        before = self.facts.pop(name, None)
        if before is not None:
            self.on_change(FactChange(name, before, None))

    def learn_unreadable(self, found: Unreadable, obj: JsonObject) -> F | None:
        """As ``learn``, with an object that cannot be read; ``obj`` has its readable parts.

        A kind without a maximum (``Kind.at_most``) keeps the object's earlier fact.
        """
        at_most = self.kind.at_most
        fact = None if at_most is None else at_most(obj, found.reason)
        # Its version may be what cannot be read. Lists and watches never go back, so it is no older than the known one.
        version = found.version or str(self._versions.get(found.name, 0))
        if self._is_news(found.name, found.uid, version):
            before = self.unreadable.get(found.name)
            self.unreadable[found.name] = found
            # Every list shows it again; it is reported once per version.
            if before is None or (before.uid, before.version) != (found.uid, found.version):
                self.report.object_unreadable(self.kind.name, found)
                self.report.unreadable_objects(self.kind.name, len(self.unreadable))
            if fact is not None:
                self._put(found.name, fact)
        return fact

    def _is_news(self, name: ObjectName, uid: str, version: str) -> bool:
        """Return True if nothing newer is known of the object, its deletion included; remembers the version."""
        age = number(version)
        # Single reads may overtake the watch: an older version never replaces a newer one, and a deleted object stays
        # deleted.
        if age < self._versions.get(name, 0) or age <= self._gone.get(uid, -1):
            return False
        self._versions[name], self._uids[name] = age, uid
        return True

    def is_older(self, name: ObjectName, version: int, by: int) -> bool:
        """Return True if a read at version ``by`` shows the object older than it was already known to be."""
        # A read at ``by`` shows every version up to ``by``; a known version beyond it proves nothing.
        return 0 < version < self._versions.get(name, 0) <= by

    def forget_all(self) -> None:
        """The cluster lacks the kind."""
        # An unreadable object of a kind without a maximum has no fact.
        for name in self.facts.keys() | self.unreadable.keys():
            self.forget(name)

    def forget_unlisted(self, listed: AbstractSet[ObjectName], version: int) -> None:
        """Forget all but the ``listed`` objects of a list of that version; objects that are younger stay."""
        for name in (self.facts.keys() | self.unreadable.keys()) - listed:
            self.forget_at(name, version)

    def forget_at(self, name: ObjectName, version: int) -> None:
        """The object was gone at that version; a younger one of the same name stays."""
        if self._versions.get(name, 0) <= version:
            self.forget(name, version)

    def go_back(self) -> None:
        """The store was restored: versions start again, and what was deleted since may be back."""
        self._versions.clear()
        self._gone.clear()
        self.newest = 0

    def _now_readable(self, name: ObjectName) -> None:
        if self.unreadable.pop(name, None) is not None:
            self.report.unreadable_objects(self.kind.name, len(self.unreadable))

    def _put(self, name: ObjectName, fact: F) -> None:
        before = self.facts.get(name)
        # Status updates often change nothing that the facts keep; followers need not hear of those.
        if fact == before:
            return
        self.facts[name] = fact
        self.on_change(FactChange(name, before, fact))
