"""Kinds of objects to watch, how to decode them into facts, and the receivers of changes."""

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
    """A change of one fact: ``before`` is None if it is new, ``after`` if it was deleted."""

    name: ObjectName
    before: F | None
    after: F | None


@dataclass(frozen=True, slots=True)
class Watched(Generic[F]):
    """A new or changed object, from a line of a watch."""

    name: ObjectName
    uid: str
    version: str
    fact: F


class WatchReport(Protocol):
    """Receives the status of watches."""

    def watch_delivered(self, kind: str) -> None:
        """A watch was opened or delivered data."""

    def watch_listed(self, kind: str, count: int) -> None:
        """A list is complete."""

    def watch_failed(self, kind: str, error: ApiError) -> None:
        """A list or watch failed; it will be retried."""

    def watch_missing(self, kind: str) -> None:
        """The cluster lacks this optional kind; it will be checked again."""

    def watch_restored(self, kind: str) -> None:
        """A response is older than the known state: the cluster's store was restored, and the kind is relisted."""

    def object_unreadable(self, kind: str, unreadable: Unreadable) -> None:
        """This version of an object cannot be decoded."""

    def unreadable_objects(self, kind: str, count: int) -> None:
        """The current number of objects that cannot be decoded."""


@dataclass(frozen=True, slots=True)
class Kind(Generic[F]):
    """A kind to watch, and its decoder from objects to facts (raises ``ValueError``).

    A cluster may lack a kind that ``is_optional``, and may forbid one that ``may_be_forbidden``. ``at_most`` returns
    the fact for an object that cannot be decoded: its maximum, from its readable parts (at least ``metadata``) and the
    reason; it never raises. ``read_line`` is a fast decoder for usual lines of a watch; it returns None for any other
    line, which then takes the general path. ``labels`` selects a subset of the objects.
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
        """The plural of the resource."""
        return self.resource.plural

    @property
    def path(self) -> str:
        """The path of the collection."""
        return self.resource.path()

    @property
    def query(self) -> dict[str, str]:
        """The query parameters that select the objects."""
        return {"labelSelector": self.labels} if self.labels else {}

    def tolerates(self, refusal: RefusalKind) -> bool:
        """Return True if a list with this refusal counts as empty."""
        # A role may lack permission for optional kinds. A 404 for a list means that the CRD is not installed.
        if refusal is RefusalKind.FORBIDDEN:
            return self.may_be_forbidden
        return self.is_optional and refusal is RefusalKind.NOT_FOUND
