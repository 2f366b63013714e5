"""JSON values that remember which of their parts were read.

- A leaf is a scalar or an empty container. It counts as read once it was taken out of what holds it.
- Paths are dotted: ``input.segments.0.at``. What is read and not there raises ``MissingError`` with its path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload


class MissingError(KeyError):
    """A value that is read does not exist; ``path`` is its path."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


def tracked(value: Mapping[str, Any]) -> TrackedMapping:
    """``value`` as a mapping whose ``unread()`` names the leaves that were not read yet."""
    return TrackedMapping(value, "", set(_leaves(value, "")))


def plain(value: Any) -> Any:
    """``value`` as ordinary dicts and lists; every leaf of it counts as read."""
    if isinstance(value, TrackedMapping):
        return {key: plain(value[key]) for key in value}
    if isinstance(value, TrackedList):
        return [plain(each) for each in value]
    return value


class TrackedMapping(Mapping[str, Any]):
    """A JSON object."""

    def __init__(self, value: Mapping[str, Any], path: str, unread: set[str]) -> None:
        self._value, self._path, self._unread = value, path, unread

    def __getitem__(self, key: str) -> Any:
        if key not in self._value:
            raise MissingError(f"{self._path}{key}")
        return _wrap(self._value[key], f"{self._path}{key}", self._unread)

    def __iter__(self) -> Iterator[str]:
        return iter(self._value)

    def __len__(self) -> int:
        return len(self._value)

    def __repr__(self) -> str:
        return repr(self._value)

    def path(self, key: str) -> str:
        """The path of one of its values."""
        return f"{self._path}{key}"

    def unread(self) -> list[str]:
        """The paths of all leaves below that were not read yet, sorted."""
        return sorted(path for path in self._unread if path.startswith(self._path))


class TrackedList(Sequence[Any]):
    """A JSON array."""

    def __init__(self, value: Sequence[Any], path: str, unread: set[str]) -> None:
        self._value, self._path, self._unread = value, path, unread

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        numbers = range(len(self._value))[index]
        if isinstance(numbers, range):
            return [self[number] for number in numbers]
        return _wrap(self._value[numbers], f"{self._path}{numbers}", self._unread)

    def __len__(self) -> int:
        return len(self._value)

    def __repr__(self) -> str:
        return repr(self._value)


def _wrap(value: Any, path: str, unread: set[str]) -> Any:
    if isinstance(value, dict) and value:
        return TrackedMapping(value, f"{path}.", unread)
    if isinstance(value, list) and value:
        return TrackedList(value, f"{path}.", unread)
    unread.discard(path)
    return value


def _leaves(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from _leaves(each, f"{path}{key}.")
    elif isinstance(value, list) and value:
        for number, each in enumerate(value):
            yield from _leaves(each, f"{path}{number}.")
    elif path:
        yield path.removesuffix(".")
