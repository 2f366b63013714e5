"""Reads Debian packages: ar archives of a control tar and a data tar (pure)."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from deploy.images.formats.tree import File, files_in, merged_usr

_MAGIC: Final = b"!<arch>\n"
_HEADER: Final = 60  # bytes of a member's header
_SIZE: Final = slice(48, 58)  # decimal ASCII, padded with spaces


class NotAPackageError(ValueError):
    """The bytes are not a valid Debian package."""


@dataclass(frozen=True, slots=True)
class Package:
    """A package: its control paragraph, and its files."""

    control: str
    files: tuple[File, ...]

    @property
    def name(self) -> str:
        """The package's name."""
        return self._field("Package")

    @property
    def version(self) -> str:
        """The package's version."""
        return self._field("Version")

    def _field(self, wanted: str) -> str:
        lines = (line.partition(": ") for line in self.control.splitlines())
        return next(value for name, _, value in lines if name == wanted)


def read_package(data: bytes) -> Package:
    """The package in ``data``. Raises ``NotAPackageError``."""
    # Member names include the compression, such as control.tar.xz; tarfile detects it.
    parts = {name.partition(".")[0]: content for name, content in _members(data)}
    try:
        control = next(file for file in _files(parts["control"]) if file.path == "control")
        return Package(control.content.decode(), tuple(merged_usr(file) for file in _files(parts["data"])))
    except (KeyError, StopIteration, ValueError, tarfile.TarError) as error:
        raise NotAPackageError(f"not a Debian package: {error!r}") from error


def _members(data: bytes) -> Iterator[tuple[str, bytes]]:
    if not data.startswith(_MAGIC):
        raise NotAPackageError("not a Debian package: not an ar archive")
    offset = len(_MAGIC)
    while offset + _HEADER <= len(data):
        header = data[offset : offset + _HEADER]
        size = int(header[_SIZE])
        content = data[offset + _HEADER : offset + _HEADER + size]
        if len(content) < size:
            raise NotAPackageError("the package is truncated")
        yield header[:16].decode().strip().rstrip("/"), content
        # ar pads members to an even offset.
        offset += _HEADER + size + size % 2


def _files(packed: bytes) -> list[File]:
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        return list(files_in(archive))
