"""Reads Debian packages (pure): an ar archive of two tars, one about the package and one with its files."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from deploy.images.formats.tree import File, PathType, merged_usr

_MAGIC: Final = b"!<arch>\n"
_HEADER: Final = 60  # bytes of a member's header
_SIZE: Final = slice(48, 58)  # in decimal ASCII, padded with spaces
_KINDS: Final = {
    tarfile.DIRTYPE: PathType.DIRECTORY,
    tarfile.REGTYPE: PathType.REGULAR,
    tarfile.SYMTYPE: PathType.SYMLINK,
}


class NotAPackageError(ValueError):
    """These bytes are no readable Debian package."""


@dataclass(frozen=True, slots=True)
class Package:
    """A package: its control paragraph as Debian wrote it, and its files."""

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
    # Members are named for their compression, such as control.tar.xz; tarfile detects it by itself.
    parts = {name.partition(".")[0]: content for name, content in _members(data)}
    try:
        control = next(file for file in _files(parts["control"]) if file.path == "control")
        return Package(control.content.decode(), tuple(merged_usr(file) for file in _files(parts["data"])))
    except (KeyError, StopIteration, tarfile.TarError) as error:
        raise NotAPackageError(f"no Debian package: {error!r}") from error


def _members(data: bytes) -> Iterator[tuple[str, bytes]]:
    if not data.startswith(_MAGIC):
        raise NotAPackageError("no Debian package: it does not begin as an ar archive")
    place = len(_MAGIC)
    while place + _HEADER <= len(data):
        header = data[place : place + _HEADER]
        size = int(header[_SIZE])
        content = data[place + _HEADER : place + _HEADER + size]
        if len(content) < size:
            raise NotAPackageError("the package is cut off")
        yield header[:16].decode().strip().rstrip("/"), content
        # ar pads members to an even offset.
        place += _HEADER + size + size % 2


def _files(packed: bytes) -> Iterator[File]:
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for info in archive:
            # dpkg-deb writes paths as ``./usr/bin/x`` and directories with a trailing slash.
            path = info.name.removeprefix("./").rstrip("/")
            if path in {"", "."}:
                continue
            # A hard link becomes a file of its own, since the first name may be left out of the image.
            content = archive.extractfile(info) if info.isreg() or info.islnk() else None
            # Devices and FIFOs have no place in an image.
            kind = PathType.REGULAR if info.islnk() else _KINDS.get(info.type)
            if kind is None:
                raise NotAPackageError(f"{path} is of a kind that an image cannot hold")
            target = info.linkname if info.issym() else ""
            # Permissions of links mean nothing; one value keeps equal trees equal.
            mode = 0o777 if info.issym() else info.mode & 0o7777
            yield File(path, content.read() if content else b"", mode, kind, target)
