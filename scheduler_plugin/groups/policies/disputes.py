"""Fights: someone else keeps overwriting what a group has written, and the group keeps writing it again (pure).

Rules that hold here:

- What a write made of its fields is remembered. A look at which they differ is a revert, once for each write.
- After ``REVERTS`` reverts the fields are left alone for a while, longer each time. Then one write tries again.
- A write that stands for ``STANDS`` ends the fight: all is forgotten.
- An object that was made again under the same name, such as a StatefulSet's pod, is another one: no revert.
- Nothing of this outlives the process: its successor finds out again, after a few writes.
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
from protocol.units import Instant, Seconds
from scheduler_plugin.groups.objects.writes import Write

REVERTS: Final = 3
WAITS: Final = Backoff(Seconds(300.0), Seconds(3600.0), spread=0.0)
STANDS: Final = Seconds(3600.0)
SETTLES: Final = Seconds(300.0)
"""For so long after a new try the fight is still reported."""

REMEMBERED: Final = 10_000
"""This many writes are remembered."""

UNKNOWN: Final = "another writer"

Key = tuple[Resource, ObjectName, str]
"""An object, and the word for what was written to it (``Write.what``)."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What was written last: the ``fields`` of the object, what the API made of them, and ``at`` what time.

    ``noticed``: since when they differ, None while they stand. ``lost`` are those that differed last, ``manager`` is
    who has overwritten them, once it is known. ``uid`` is the object's, empty if its answer did not say.
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
    def is_fight(self) -> bool:
        """Whether it was overwritten often enough."""
        return self.reverts >= REVERTS

    @property
    def until(self) -> Instant:
        """Until when it is left alone."""
        if not self.is_fight or self.noticed is None:
            return self.at
        return Instant(self.noticed + WAITS.delay(self.reverts - REVERTS + 1, 0.0))

    def is_over(self, now: Instant) -> bool:
        """Whether it proves nothing any more."""
        return now - max(self.at, self.until, self.noticed or self.at) >= STANDS

    def is_of_another(self, found: JsonObject) -> bool:
        """Whether the object was made after the one that was written."""
        return bool(self.uid) and uid_of(found) not in ("", self.uid)


@dataclass(slots=True)
class Disputes:
    """What was written to each object of others, and what became of it."""

    _claims: dict[Key, Claim] = field(default_factory=dict)

    def wrote(self, write: Write, after: JsonObject, now: Instant) -> None:
        """A patch was carried out, and the object is as ``after`` says."""
        key = (write.resource, write.name, write.what)
        if write.creates or write.what not in _WORDS:
            return
        old = self._claims.pop(key, None)
        old = None if old is None or old.is_over(now) or old.is_of_another(after) else old
        if len(self._claims) >= REMEMBERED:
            self._claims.clear()
        body = {name: value for name, value in write.body.items() if name != "metadata"} or write.body
        fields = body if old is None else child({"all": _merged(old.fields, body)}, "all")
        claim = Claim(fields, part_of(after, fields), now, uid=uid_of(after))
        self._claims[key] = (
            claim if old is None else replace(claim, reverts=old.reverts, lost=old.lost, manager=old.manager)
        )

    def look(self, resource: Resource, found: JsonObject, now: Instant) -> None:
        """Notices what was overwritten in the object."""
        for key, claim in list(self._of(resource, name_of(found))):
            present = part_of(found, claim.fields)
            stands = present == claim.stored
            if claim.is_over(now) or claim.is_of_another(found):
                del self._claims[key]
            elif not stands and claim.noticed is None:
                self._claims[key] = replace(
                    claim, reverts=claim.reverts + 1, noticed=now, lost=_lost(claim.fields, claim.stored, present)
                )
            elif stands and claim.noticed is not None:
                self._claims[key] = replace(claim, at=now, noticed=None)

    def held_until(self, write: Write, now: Instant) -> Instant | None:
        """Until when what is to be written is left alone; None if it may be written."""
        claim = self._claims.get((write.resource, write.name, write.what))
        return None if claim is None or now >= claim.until else claim.until

    def held(self, resource: Resource, name: ObjectName, now: Instant) -> frozenset[str]:
        """What of the object is left alone for now, by the words of its writes."""
        return frozenset(key[2] for key, claim in self._of(resource, name) if now < claim.until)

    def unnamed(self, resource: Resource, name: ObjectName) -> bool:
        """Whether it is still to be found out who overwrites fields of the object."""
        return any(claim.is_fight and not claim.manager for _, claim in self._of(resource, name))

    def name(self, resource: Resource, found: JsonObject) -> None:
        """Finds out who overwrites fields of the object, from its ``managedFields``."""
        for key, claim in list(self._of(resource, name_of(found))):
            if claim.is_fight and not claim.manager:
                self._claims[key] = replace(claim, manager=manager_of(found, claim.lost) or UNKNOWN)

    def fights(self, resource: Resource, name: ObjectName, now: Instant) -> Iterator[tuple[str, Claim]]:
        """What of the object is fought over, by the words of its writes."""
        for key, claim in self._of(resource, name):
            if claim.is_fight and (claim.noticed is not None or now - claim.at < SETTLES):
                yield key[2], claim

    def _of(self, resource: Resource, name: ObjectName) -> Iterator[tuple[Key, Claim]]:
        for what in _WORDS:
            claim = self._claims.get((resource, name, what))
            if claim is not None:
                yield (resource, name, what), claim


def told(resource: Resource, name: str, what: str, claim: Claim, at: float) -> str:
    """The fight over one object's fields for people; ``at`` is when it is tried again, in seconds since 1970."""
    fields = ", ".join(sorted(child(claim.lost, "spec"))) if what in ("autoscaler", resource.kind) else what
    subject = f"{fields} of {resource.kind} {name}"
    again = f"it is left alone until {timestamp(at)}" if claim.noticed is not None else "it was written again just now"
    who = claim.manager or UNKNOWN
    return f"{who} has overwritten {subject} {claim.reverts} times: {again}; let only one of the two manage it"


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
"""The writes to objects of others."""


def part_of(found: object, fields: object) -> object:
    """What ``found`` has at the places of ``fields``; entries of lists are found by their names, if they have some.

    >>> part_of({"a": 1, "b": [{"name": "x", "c": 2, "d": 3}, {"name": "y"}]}, {"b": [{"name": "x", "c": 9}]})
    {'b': [{'name': 'x', 'c': 2}]}
    """
    if isinstance(fields, Mapping):
        known = found if isinstance(found, Mapping) else {}
        return {key: part_of(known.get(key), value) for key, value in fields.items()}
    if isinstance(fields, list) and _are_named(fields):
        listed = found if isinstance(found, list) else []
        entries = {each.get("name"): each for each in listed if isinstance(each, Mapping)}
        return [part_of(entries.get(each["name"]), each) for each in fields]
    return found


def _lost(fields: JsonObject, stored: object, present: object) -> Json:
    """Those of ``fields`` that are no longer as they were stored."""
    old, new = child({"it": stored}, "it"), child({"it": present}, "it")
    return {
        key: _lost(value, old.get(key), new.get(key)) if isinstance(value, Mapping) else value
        for key, value in fields.items()
        if old.get(key) != new.get(key)
    }


def _are_named(fields: Sequence[object]) -> bool:
    return bool(fields) and all(isinstance(each, Mapping) and isinstance(each.get("name"), str) for each in fields)


def _merged(old: object, new: object) -> object:
    """The fields of both: entries of lists by their names, if they have some; otherwise those of ``new``."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}
    if isinstance(old, list) and isinstance(new, list) and _are_named(old) and _are_named(new):
        entries = {each["name"]: each for each in old}
        return [*{**entries, **{each["name"]: _merged(entries.get(each["name"]), each) for each in new}}.values()]
    return new


def manager_of(found: JsonObject, fields: Json) -> str:
    """Who wrote one of ``fields`` last, by ``managedFields``, and is not this program; empty if nobody is known."""
    entries = [
        each
        for each in items(found, "metadata", "managedFields")
        if text(each, "manager") != OURSELVES and _owns(each.get("fieldsV1"), fields)
    ]
    return max(((text(each, "time"), text(each, "manager")) for each in entries), default=("", ""))[1]


OURSELVES: Final = "autoscale-groups"


def _owns(owned: object, fields: object) -> bool:
    """Whether ``fieldsV1`` has one of the fields. What is owned as a whole has no entries of its own."""
    if not isinstance(owned, Mapping):
        return False
    if isinstance(fields, Mapping) and owned:
        return any(_owns(owned.get(f"f:{key}"), value) for key, value in fields.items())
    if isinstance(fields, list) and owned and _are_named(fields):
        keys = (f"k:{json.dumps({'name': each['name']}, separators=(',', ':'))}" for each in fields)
        return any(_owns(owned.get(key), each) for key, each in zip(keys, fields, strict=True))
    return True
