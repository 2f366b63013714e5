"""Decodes lists and watch events object by object, so that one invalid object does not affect the others.

Anything that is not a page or an event raises ``UnreadableAnswerError``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import msgspec

from protocol.field_errors import field_message
from protocol.kubernetes.objects import Json, name_of, text, uid_of, version_of
from protocol.kubernetes.refusals import Refusal, refusal_in
from protocol.messages import ObjectName
from protocol.wire.json_scan import UnclosedError, elements, members

LONGEST_LINE: Final = 10 * 1024 * 1024
"""Bytes. etcd stores an object in at most 1.5 MiB, and JSON takes six bytes for each character that it escapes, such as
``<``. Anyone who may create a pod may fill it with them.
"""


class UnreadableAnswerError(ValueError):
    """The server's answer is malformed; the message says how."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An object that cannot be decoded, with its identity, parts of which may be empty."""

    name: ObjectName
    uid: str
    version: str
    reason: str


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list. ``continue_token`` is for the next page; empty on the last one."""

    version: str
    continue_token: str
    objects: list[Json]
    unreadable: list[Unreadable]


@dataclass(frozen=True, slots=True)
class EncodedPage:
    """A ``Page`` whose objects are decoded one by one, because a decoded one may take 20 times its length in memory."""

    version: str
    continue_token: str
    encoded: Sequence[bytes | msgspec.Raw]

    def objects(self) -> Iterator[Json | Unreadable]:
        """The objects in their order."""
        return (_object(bytes(raw)) for raw in self.encoded)


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One line of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR.

    ``object`` is empty and ``unreadable`` set if the object cannot be decoded.
    """

    type: str
    object: Json
    unreadable: Unreadable | None = None

    @property
    def name(self) -> ObjectName:
        """The name of the event's object, as far as known."""
        return name_of(self.object) if self.unreadable is None else self.unreadable.name

    @property
    def version(self) -> str:
        """The object's version, from which a watch can resume; empty if unknown."""
        return version_of(self.object) if self.unreadable is None else self.unreadable.version

    @property
    def refusal(self) -> Refusal | None:
        """The reason why the server ends the watch, if this is an ERROR event.

        >>> read_event(b'{"type":"ERROR","object":{"code":410,"reason":"Expired"}}').refusal.kind.value
        'gone'
        """
        return refusal_in(self.object) if self.type == "ERROR" else None


@dataclass(slots=True)
class LineSplitter:
    """Splits the chunks from a socket into lines. An incomplete last line is dropped.

    >>> lines = LineSplitter()
    >>> lines.feed(b'{"a":1}\\n{"b"'), lines.feed(b':2}\\n')
    ([b'{"a":1}'], [b'{"b":2}'])
    """

    longest: int = LONGEST_LINE
    _pieces: list[bytes] = field(default_factory=list)
    _size: int = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that ``chunk`` completes. Raises ``UnreadableAnswerError`` if a line grows too long."""
        if not self._size and chunk.find(b"\n") == len(chunk) - 1 <= self.longest:
            return [chunk[:-1]] if len(chunk) > 1 else []  # one whole line, like most chunks of a quiet watch
        first, *others = chunk.split(b"\n")
        lines = []
        self._add(first)
        for following in others:
            # Join once per line: appending to a growing text would take quadratic time.
            lines.append(b"".join(self._pieces))
            self._pieces, self._size = [], 0
            self._add(following)
        return [line for line in lines if line]

    def _add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > self.longest:
            raise UnreadableAnswerError(f"a line of the watch has more than {self.longest} bytes")


def read_object(body: bytes) -> Json:
    """Decode an answer that is one object. Raises ``UnreadableAnswerError``.

    >>> read_object(b'{"kind": "Pod"}')
    {'kind': 'Pod'}
    >>> read_object(b'[]')
    Traceback (most recent call last):
    protocol.kubernetes.pages.UnreadableAnswerError: document: expected object, got array
    """
    try:
        return _OBJECT.decode(body)
    except (ValueError, RecursionError) as error:
        raise UnreadableAnswerError(field_message(error)) from None


def read_page(body: bytes) -> Page:
    """Decode one page of a list. Raises ``UnreadableAnswerError``.

    >>> page = read_page(b'{"metadata":{"resourceVersion":"9"},"items":[{"metadata":{"name":"a"}},7]}')
    >>> page.version, len(page.objects), page.unreadable[0].reason
    ('9', 1, 'document: expected object, got int')
    """
    try:
        decoded = _PAGE.decode(body)
    # One invalid object fails the whole page, so decode each object separately.
    except (ValueError, RecursionError):
        return _by_parts(body)
    return Page(*_head(decoded.metadata or {}), decoded.items or [], [])


def read_encoded_page(body: bytes) -> EncodedPage:
    """Decode one page of a list, but not its objects. Raises ``UnreadableAnswerError``.

    >>> page = read_encoded_page(b'{"metadata":{"continue":"more"},"items":[{"kind":"Pod"},7]}')
    >>> page.continue_token, [type(found).__name__ for found in page.objects()]
    ('more', ['dict', 'Unreadable'])
    """
    try:
        whole = _ENCODED_PAGE.decode(body)
    except (ValueError, RecursionError):
        return _split(body)
    return EncodedPage(*_head(whole.metadata or {}), whole.items or ())


def read_event(line: bytes) -> WatchEvent:
    """Decode one line of a watch. Raises ``UnreadableAnswerError``.

    >>> event = read_event(b'{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"7"}}}')
    >>> event.type, str(event.name), event.version
    ('ADDED', '/a', '7')
    """
    try:
        decoded = _EVENT.decode(line)
    except (ValueError, RecursionError):
        return _event_by_parts(line)
    return WatchEvent(decoded.type, decoded.body or {})


T = TypeVar("T")


class _Page(msgspec.Struct, Generic[T], frozen=True):
    items: list[T] | None
    metadata: Json | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str
    body: Json | None = msgspec.field(name="object")


_OBJECT: Final = msgspec.json.Decoder(Json)
_PAGE: Final = msgspec.json.Decoder(_Page[Json])
_ENCODED_PAGE: Final = msgspec.json.Decoder(_Page[msgspec.Raw])
_EVENT: Final = msgspec.json.Decoder(_Event)
_TEXT: Final = msgspec.json.Decoder(str)


def _head(metadata: Json) -> tuple[str, str]:
    """The version of a list, and its continue token."""
    return text(metadata, "resourceVersion"), text(metadata, "continue")


def _split(body: bytes) -> EncodedPage:
    parts = _members(body)
    try:
        raw_items = list(elements(parts["items"])) if parts["items"].startswith(b"[") else None
    except (UnclosedError, KeyError):
        raw_items = None
    if raw_items is None:
        raise UnreadableAnswerError("items: expected an array of objects")
    # With invalid metadata the version is empty, and a watch from it starts with the current state.
    empty: Json = {}
    return EncodedPage(*_head(_or(_OBJECT.decode, parts.get("metadata", b""), empty)), raw_items)


def _by_parts(body: bytes) -> Page:
    encoded = _split(body)
    objects = list(encoded.objects())
    readable = [obj for obj in objects if not isinstance(obj, Unreadable)]
    unreadable = [obj for obj in objects if isinstance(obj, Unreadable)]
    return Page(encoded.version, encoded.continue_token, readable, unreadable)


def _event_by_parts(line: bytes) -> WatchEvent:
    parts = _members(line)
    kind = _or(_TEXT.decode, parts.get("type", b""), "")
    if not kind or "object" not in parts:
        raise UnreadableAnswerError("expected an event with a type and an object")
    obj = _object(parts["object"])
    return WatchEvent(kind, {}, obj) if isinstance(obj, Unreadable) else WatchEvent(kind, obj)


def _members(body: bytes) -> dict[str, bytes]:
    if not body.lstrip().startswith(b"{"):
        raise UnreadableAnswerError("document: expected an object")
    try:
        return members(body)
    except UnclosedError as error:
        raise UnreadableAnswerError(f"document: {error}") from None


def _object(raw: bytes) -> Json | Unreadable:
    try:
        return _OBJECT.decode(raw)
    except (ValueError, RecursionError) as error:
        reason = field_message(error)
    # The object is nested too deeply or contains an invalid value, but its metadata is usually still readable.
    try:
        metadata = members(members(raw).get("metadata", b"{}"))
    except UnclosedError:
        metadata = {}
    # Best effort: an invalid part reads as empty.
    identity_fields = {key: _or(_TEXT.decode, metadata.get(key, b""), "") for key in _IDENTITY}
    identity = {"metadata": identity_fields}
    return Unreadable(name_of(identity), uid_of(identity), version_of(identity), reason)


_IDENTITY: Final = ("namespace", "name", "uid", "resourceVersion")


def _or(read: Callable[[bytes], T], raw: bytes, otherwise: T) -> T:
    try:
        return read(raw)
    except (ValueError, RecursionError):
        return otherwise
