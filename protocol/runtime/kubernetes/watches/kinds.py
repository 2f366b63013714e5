"""Kinds of objects to watch, their decoding into facts, and the receivers of changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from protocol.kubernetes.api import ApiError
from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.pages import Unreadable
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import Resource
from protocol.messages import ObjectName

F = TypeVar("F")


class FactChange(msgspec.Struct, Generic[F], frozen=True):
    """One fact before and after: ``before`` None is new, ``after`` None is deleted."""

    name: ObjectName
    before: F | None
    after: F | None


@dataclass(frozen=True, slots=True)
class Watched(Generic[F]):
    """An object that appeared or changed, from a line of a watch."""

    name: ObjectName
    uid: str
    version: str
    fact: F


class WatchReport(Protocol):
    """Receiver of a watch's status."""

    def watch_heard(self, kind: str) -> None:
        """A watch was opened or said something."""

    def watch_listed(self, kind: str, count: int) -> None:
        """A list was taken in whole."""

    def watch_failed(self, kind: str, error: ApiError) -> None:
        """A list or watch broke off; it will be tried again."""

    def watch_missing(self, kind: str) -> None:
        """The cluster lacks this kind, which it may; it will be looked for again."""

    def watch_restored(self, kind: str) -> None:
        """An answer is older than the known state: the cluster's store was restored, and is read again."""

    def object_unreadable(self, kind: str, found: Unreadable) -> None:
        """This version of an object cannot be read."""

    def unreadable_objects(self, kind: str, count: int) -> None:
        """This many objects cannot be read now."""


@dataclass(frozen=True, slots=True)
class Kind(Generic[F]):
    """A kind to watch, and the decoder of its objects into facts (raises ``ValueError``).

    A cluster may lack a kind that ``is_optional``, and may forbid one that ``may_be_forbidden``. ``at_most`` makes the
    fact of an object that cannot be read: its maximum, from its readable parts (at least its ``metadata``)
    and the reason. It never raises. ``read_line`` reads a usual line of a watch with less work, into the same fact; it
    returns None for any other line, which then takes the general path. ``labels`` selects some of the objects.
    """

    resource: Resource
    read: Callable[[JsonObject], F]
    is_optional: bool = False
    may_be_forbidden: bool = False
    at_most: Callable[[JsonObject, str], F] | None = None
    read_line: Callable[[bytes], Watched[F] | None] | None = None
    labels: str = ""

    @property
    def name(self) -> str:
        """Its plural."""
        return self.resource.plural

    @property
    def path(self) -> str:
        """The path of its collection."""
        return self.resource.path()

    @property
    def query(self) -> dict[str, str]:
        """The part of every query that selects the objects."""
        return {"labelSelector": self.labels} if self.labels else {}

    def can_do_without(self, refusal: RefusalKind) -> bool:
        """Return True if a list that is refused for this reason counts as empty."""
        # A role may lack rights on extras. A 404 on a list means that the CRD is not installed.
        if refusal is RefusalKind.FORBIDDEN:
            return self.may_be_forbidden
        return self.is_optional and refusal is RefusalKind.NOT_FOUND
