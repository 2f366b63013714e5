"""Reads Debian packages: ar archives of a control tar and a data tar (pure)."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from deploy.images.formats.tree import File, PathType, merged_usr

_MAGIC: Final = b"!<arch>\n"
_HEADER: Final = 60  # bytes of a member's header
_SIZE: Final = slice(48, 58)  # decimal ASCII, padded with spaces
_KINDS: Final = {
    tarfile.DIRTYPE: PathType.DIRECTORY,
    tarfile.REGTYPE: PathType.REGULAR,
    tarfile.SYMTYPE: PathType.SYMLINK,
}


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
    except (KeyError, StopIteration, tarfile.TarError) as error:
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


def _files(packed: bytes) -> Iterator[File]:
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for info in archive:
            # dpkg-deb writes paths as ``./usr/bin/x`` and directories with a trailing slash.
            path = info.name.removeprefix("./").rstrip("/")
            if path in {"", "."}:
                continue
            # A hard link becomes a file: its target may be left out of the image.
            content = archive.extractfile(info) if info.isreg() or info.islnk() else None
            kind = PathType.REGULAR if info.islnk() else _KINDS.get(info.type)
            if kind is None:
                raise NotAPackageError(f"{path} is a device or FIFO, which images cannot have")
            target = info.linkname if info.issym() else ""
            # Permissions of symbolic links are meaningless; make them equal.
            mode = 0o777 if info.issym() else info.mode & 0o7777
            yield File(path, content.read() if content else b"", mode, kind, target)
