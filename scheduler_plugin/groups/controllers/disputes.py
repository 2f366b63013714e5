"""Detects disputes: another writer keeps overwriting the fields that a group writes (pure).

- A field that no longer has the written value was reverted, as was one that an admission webhook changed.
  A revert counts once per write.
- After ``REVERTS`` reverts the fields are not written during a backoff; then one write tries again.
- The state is in memory only, because a successor detects a dispute again after a few writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from protocol.backoff import Backoff
from protocol.kubernetes.objects import Json, JsonObject, child, items, name_of, text, uid_of
from protocol.kubernetes.resources import Resource
from protocol.kubernetes.timestamps import timestamp
from protocol.messages import ObjectName
from protocol.units import Instant, QuantityError, Seconds, parse_quantity
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.objects.writes import Write

REVERTS: Final = 3
WAITS: Final = Backoff(Seconds(300.0), Seconds(3600.0), spread=0.0)

FIGHT_EXPIRY: Final = Seconds(3600.0)
"""A dispute is over once a write has lasted this long."""

REPORTED_FOR: Final = Seconds(300.0)
"""How long a dispute is still reported after another attempt."""

REMEMBERED: Final = 10_000
"""Maximum number of writes to remember."""

UNKNOWN: Final = "another writer or a webhook"

Key = tuple[Resource, ObjectName, str]
"""An object, and the kind of write to it (``Write.what``)."""


@dataclass(frozen=True, slots=True)
class WrittenFields:
    """The last write: its ``fields``, their values as ``stored`` by the API server (as written, if a webhook changed
    them), and its time ``at``.

    ``noticed`` is since when the values have differed, None if they do not. ``lost`` are the fields that differed last,
    ``manager`` is the field manager that overwrote them, if known. ``uid`` is the object's, empty if unknown.
    """

    fields: Json
    stored: object
    at: Instant
    reverts: int = 0
    noticed: Instant | None = None
    lost: Json = field(default_factory=dict)
    manager: str = ""
    uid: str = ""

    @property
    def is_disputed(self) -> bool:
        """True if the write was reverted often enough to count as a dispute."""
        return self.reverts >= REVERTS

    @property
    def until(self) -> Instant:
        """The time until which the fields are not written."""
        if not self.is_disputed or self.noticed is None:
            return self.at
        return Instant(self.noticed + WAITS.delay(self.reverts - REVERTS + 1, 0.0))

    def is_over(self, now: Instant) -> bool:
        """Return True if the write, and any dispute about it, is too old to matter."""
        return now - max(self.at, self.until, self.noticed or self.at) >= FIGHT_EXPIRY

    def is_of_another(self, obj: JsonObject) -> bool:
        """Return True if the object has been recreated since the write."""
        return bool(self.uid) and uid_of(obj) not in ("", self.uid)


@dataclass(slots=True)
class Disputes:
    """The last writes to objects that others may write too."""

    _claims: dict[Key, WrittenFields] = field(default_factory=dict)

    def record(self, write: Write, after: JsonObject, now: Instant) -> None:
        """Record a patch and its result ``after``."""
        key = (write.resource, write.name, write.what)
        if write.creates or write.what not in _WORDS:
            return
        old = self._claims.pop(key, None)
        # Start over after an expired dispute, or if the object was recreated under the same name.
        old = None if old is None or old.is_over(now) or old.is_of_another(after) else old
        if len(self._claims) >= REMEMBERED:
            self._claims.clear()
        # Ignore the record in the annotations, unless only annotations are written.
        body = {name: value for name, value in write.body.items() if name != "metadata"} or write.body
        fields = body if old is None else child({"all": _merged(old.fields, body)}, "all")
        # Remember what the API server stored, because it may normalize or complete the fields.
        stored = part_of(after, fields)
        if not is_as_written(part_of(after, body), body):
            # Otherwise a write that a webhook changes would be repeated by each reconcile.
            stored = _merged(stored, body)
        claim = WrittenFields(fields, stored, now, uid=uid_of(after))
        self._claims[key] = (
            claim if old is None else replace(claim, reverts=old.reverts, lost=old.lost, manager=old.manager)
        )

    def check(self, resource: Resource, obj: JsonObject, now: Instant) -> None:
        """Count a revert for each write whose fields were overwritten."""
        for key, claim in list(self._of(resource, name_of(obj))):
            present = part_of(obj, claim.fields)
            is_kept = present == claim.stored
            if claim.is_over(now) or claim.is_of_another(obj):
                del self._claims[key]
            # A revert counts once per write.
            elif not is_kept and claim.noticed is None:
                self._claims[key] = replace(
                    claim, reverts=claim.reverts + 1, noticed=now, lost=_lost(claim.fields, claim.stored, present)
                )
            elif is_kept and claim.noticed is not None:
                # Someone else restored the fields.
                self._claims[key] = replace(claim, at=now, noticed=None)

    def paused_until(self, write: Write, now: Instant) -> Instant | None:
        """The time until which the write must wait; None if it may be sent now."""
        claim = self._claims.get((write.resource, write.name, write.what))
        return None if claim is None or now >= claim.until else claim.until

    def paused_writes(self, resource: Resource, name: ObjectName, now: Instant) -> frozenset[str]:
        """Kinds of writes to the object (``Write.what``) that must wait."""
        return frozenset(key[2] for key, claim in self._of(resource, name) if now < claim.until)

    def lacks_manager(self, resource: Resource, name: ObjectName) -> bool:
        """Return True if the object is disputed, and the other manager is still unknown."""
        return any(claim.is_disputed and not claim.manager for _, claim in self._of(resource, name))

    def identify_manager(self, resource: Resource, obj: JsonObject) -> None:
        """Read from the object's ``managedFields`` which manager overwrites its fields."""
        for key, claim in list(self._of(resource, name_of(obj))):
            if claim.is_disputed and not claim.manager:
                self._claims[key] = replace(claim, manager=manager_of(obj, claim.lost) or UNKNOWN)

    def current(self, resource: Resource, name: ObjectName, now: Instant) -> Iterator[tuple[str, WrittenFields]]:
        """Present disputes over the object, by kind of write."""
        for key, claim in self._of(resource, name):
            if claim.is_disputed and (claim.noticed is not None or now - claim.at < REPORTED_FOR):
                yield key[2], claim

    def _of(self, resource: Resource, name: ObjectName) -> Iterator[tuple[Key, WrittenFields]]:
        for what in _WORDS:
            claim = self._claims.get((resource, name, what))
            if claim is not None:
                yield (resource, name, what), claim


def dispute_message(resource: Resource, name: str, what: str, claim: WrittenFields, at: float) -> str:
    """Describe a dispute over an object's fields; ``at`` is the next attempt in Unix seconds."""
    fields = ", ".join(sorted(child(claim.lost, "spec"))) if what in ("autoscaler", resource.kind) else what
    subject = f"{fields} of {resource.kind} {name}"
    again = texts.PAUSED.format(time=timestamp(at)) if claim.noticed is not None else texts.WRITTEN_AGAIN
    writer = claim.manager or UNKNOWN
    return texts.DISPUTE.format(who=writer, subject=subject, times=claim.reverts, again=again)


_WORDS: Final = (
    "autoscaler",
    "requests",
    "bounds",
    "replicas",
    "annotations",
    "pod",
    "HorizontalPodAutoscaler",
    "VerticalPodAutoscaler",
)
"""Kinds of writes to objects that others may write too."""


def part_of(current: object, fields: object) -> object:
    """The part of ``current`` at the paths in ``fields``. List entries are matched by name, if they have one.

    >>> part_of({"a": 1, "b": [{"name": "x", "c": 2, "d": 3}, {"name": "y"}]}, {"b": [{"name": "x", "c": 9}]})
    {'b': [{'name': 'x', 'c': 2}]}
    """
    if isinstance(fields, Mapping):
        mapping = current if isinstance(current, Mapping) else {}
        return {key: part_of(mapping.get(key), value) for key, value in fields.items()}
    if isinstance(fields, list) and _are_named(fields):
        listed = current if isinstance(current, list) else []
        entries = {entry.get("name"): entry for entry in listed if isinstance(entry, Mapping)}
        return [part_of(entries.get(entry["name"]), entry) for entry in fields]
    return current


def is_as_written(current: object, written: object) -> bool:
    """Return True if ``current`` has the ``written`` value, apart from defaults and the spelling of quantities.

    >>> is_as_written({"cpu": "1", "memory": "1Gi"}, {"cpu": "1000m"}), is_as_written({"cpu": "2"}, {"cpu": "1"})
    (True, False)
    """
    if isinstance(current, Mapping) and isinstance(written, Mapping):
        return all(is_as_written(current.get(name), value) for name, value in written.items())
    if isinstance(current, list) and isinstance(written, list):
        return len(current) == len(written) and all(map(is_as_written, current, written))
    if current == written:
        return True
    if not isinstance(current, str | int | float) or not isinstance(written, str | int | float):
        return False
    try:
        # `1000m` equals `1`.
        return parse_quantity(current) == parse_quantity(written)
    except QuantityError:
        return False


def _lost(fields: JsonObject, stored: object, present: object) -> Json:
    old, new = child({"it": stored}, "it"), child({"it": present}, "it")
    return {
        key: _lost(value, old.get(key), new.get(key)) if isinstance(value, Mapping) else value
        for key, value in fields.items()
        if old.get(key) != new.get(key)
    }


def _are_named(fields: Sequence[object]) -> bool:
    return bool(fields) and all(isinstance(entry, Mapping) and isinstance(entry.get("name"), str) for entry in fields)


def _merged(old: object, new: object) -> object:
    """Merge ``new`` into ``old``. Lists are merged by the names of their entries, if they have names, or replaced."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}
    if isinstance(old, list) and isinstance(new, list) and _are_named(old) and _are_named(new):
        entries = {entry["name"]: entry for entry in old}
        return [*{**entries, **{entry["name"]: _merged(entries.get(entry["name"]), entry) for entry in new}}.values()]
    return new


def manager_of(obj: JsonObject, fields: Json) -> str:
    """The manager other than us that last wrote one of ``fields``, from ``managedFields``; empty if unknown."""
    entries = [
        entry
        for entry in items(obj, "metadata", "managedFields")
        if text(entry, "manager") != OURSELVES and _owns(entry.get("fieldsV1"), fields)
    ]
    return max(((text(entry, "time"), text(entry, "manager")) for entry in entries), default=("", ""))[1]


OURSELVES: Final = "autoscale-groups"


def _owns(owned: object, fields: object) -> bool:
    """Return True if ``fieldsV1`` contains one of ``fields``; an empty entry covers the whole field."""
    if not isinstance(owned, Mapping):
        return False
    if isinstance(fields, Mapping) and owned:
        return any(_owns(owned.get(f"f:{key}"), value) for key, value in fields.items())
    if isinstance(fields, list) and owned and _are_named(fields):
        # `fieldsV1` names list entries by merge key: `k:{"name":"app"}`.
        keys = (f"k:{json.dumps({'name': entry['name']}, separators=(',', ':'))}" for entry in fields)
        return any(_owns(owned.get(key), entry) for key, entry in zip(keys, fields, strict=True))
    return True
