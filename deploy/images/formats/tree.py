"""File trees of layers, and their tars (pure).

Tars are reproducible: sorted, owned by root, without times. Paths are relative to the root.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import PurePosixPath
from typing import Final

from vm_image import archives

# Since Debian 12 these are symbolic links into /usr, but packages still ship files under the old paths.
_MERGED: Final = ("bin", "sbin", "lib", "lib64", "lib32", "libx32")


class PathType(Enum):
    """Type of a path."""

    DIRECTORY = tarfile.DIRTYPE
    REGULAR = tarfile.REGTYPE
    SYMLINK = tarfile.SYMTYPE


@dataclass(frozen=True, slots=True)
class File:
    """One path of a layer. ``target`` is the target of a symbolic link."""

    path: str
    content: bytes = b""
    mode: int = 0o644
    kind: PathType = PathType.REGULAR
    target: str = ""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


Tree = Mapping[str, File]
"""Files by path."""


def directory(path: str, mode: int = 0o755) -> File:
    """A directory."""
    return File(path, mode=mode, kind=PathType.DIRECTORY)


def symlink(path: str, target: str) -> File:
    """A symbolic link."""
    return File(path, mode=0o777, kind=PathType.SYMLINK, target=target)


def tree(files: Iterable[File]) -> dict[str, File]:
    """The files by path; the last one wins."""
    return {file.path: file for file in files}


def merged_usr(file: File) -> File:
    """The file with its path on a merged-/usr system."""
    first = file.path.partition("/")[0]
    return replace(file, path=f"usr/{file.path}") if first in _MERGED else file


def root_links(paths: Iterable[str]) -> list[File]:
    """The symbolic links in the root that a merged-/usr system needs for ``paths``."""
    present = {path.split("/")[1] for path in paths if path.startswith("usr/") and path.count("/") > 1}
    return [symlink(name, f"usr/{name}") for name in _MERGED if name in present]


def changed_entries(lower: Tree, upper: Tree) -> dict[str, File]:
    """The entries of ``upper`` that are new or differ from ``lower``."""
    return {path: file for path, file in upper.items() if lower.get(path) != file}


def tar_of(files: Tree) -> bytes:
    """An uncompressed tar. Missing parents become directories of mode 0755."""
    # Explicit directories win, because their mode may differ.
    parents = {str(parent) for path in files for parent in PurePosixPath(path).parents if parent.name}
    files_and_folders = {**tree(map(directory, parents)), **files}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(files_and_folders):
            _add(archive, files_and_folders[path])
    return packed.getvalue()


def files_in(archive: tarfile.TarFile, left_out: tuple[str, ...] = ()) -> Iterator[File]:
    """The files of a tar, without those below ``left_out``. Raises ``ValueError`` for a device or FIFO."""
    for info in archive:
        # dpkg-deb and mmdebstrap write paths as ``./usr/bin/x`` and directories with a trailing slash.
        path = info.name.removeprefix("./").rstrip("/")
        if path in {"", "."} or f"{path}/".startswith(left_out):
            continue
        if info.isdev():
            raise ValueError(f"{path} is a device or FIFO, which images cannot have")
        # A hard link becomes a file: its target may be left out of the image.
        content = archive.extractfile(info) if info.isreg() or info.islnk() else None
        kind = PathType.REGULAR if info.islnk() else PathType(info.type)
        # Permissions of symbolic links are meaningless; make them equal.
        mode = 0o777 if info.issym() else info.mode & 0o7777
        yield File(path, content.read() if content else b"", mode, kind, info.linkname if info.issym() else "")


def compressed(data: bytes) -> bytes:
    """``data`` in gzip, which every registry and runtime supports."""
    return archives.compressed(data, level=9)


def _add(archive: tarfile.TarFile, file: File) -> None:
    # TarInfo's defaults are owner 0 and time 0.
    info = tarfile.TarInfo(file.path)
    info.type, info.mode, info.linkname, info.size = file.kind.value, file.mode, file.target, len(file.content)
    archive.addfile(info, io.BytesIO(file.content))
