"""Archive formats of a guest image: tar and cpio (pure).

Archives are reproducible: all files belong to root and have time 0.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

# Modes include the file type, as in ``stat``: directory, regular file, character device.
_DIRECTORY: Final = 0o040755
_REGULAR: Final = 0o100000
_CHARACTER: Final = 0o020600
SYMLINK: Final = 0o120777
"""The mode of a symbolic link, whose content is its target."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of an archive; parent directories are implied."""

    path: str
    content: bytes
    mode: int = 0o644


def tar(entries: Iterable[Entry]) -> bytes:
    """An uncompressed tar of the files, without directories."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for entry in entries:
            info = tarfile.TarInfo(f"./{entry.path}")  # like the members of mmdebstrap's tar
            if entry.mode == SYMLINK:
                info.type, info.linkname = tarfile.SYMTYPE, entry.content.decode()
                archive.addfile(info)
            else:
                info.size, info.mode = len(entry.content), entry.mode
                archive.addfile(info, io.BytesIO(entry.content))
    return packed.getvalue()


def member(packed: tarfile.TarFile, *names: str) -> bytes:
    """The content of the first of ``names`` that exists in the archive. Raises ``KeyError`` if none does."""
    for name in names:
        try:
            content = packed.extractfile(f"./{name}")
        except KeyError:
            continue
        # None for a directory or a device.
        if content is not None:
            return content.read()
    raise KeyError(names[0])


def initrd(entries: Iterable[Entry], directories: Iterable[str]) -> bytes:
    """An initrd: a gzipped newc cpio of ``entries``, ``directories``, all parents, and ``/dev/console``."""
    files = list(entries)
    # Without /dev/console, the errors of the guest's init process would be lost.
    explicit = {PurePosixPath(name) for name in ("dev", *directories)}
    parents = {parent for path in (*explicit, *(PurePosixPath(file.path) for file in files)) for parent in path.parents}
    folders = sorted(str(path) for path in (explicit | parents) - {PurePosixPath(".")})
    members = [
        *(_member(name, _DIRECTORY, b"") for name in folders),
        _member("dev/console", _CHARACTER, b"", device=(5, 1)),  # the console is always 5:1
        *(_member(file.path, _mode(file), file.content) for file in files),
        # Marks the end of a cpio archive.
        _member("TRAILER!!!", 0, b""),
    ]
    return compressed(b"".join(members), level=6)


def compressed(data: bytes, level: int) -> bytes:
    """``data`` in gzip, reproducibly. The header of ``gzip.compress`` depends on Python's version."""
    packed = io.BytesIO()
    # An empty name and time 0 make the header constant.
    with gzip.GzipFile(filename="", mode="wb", compresslevel=level, fileobj=packed, mtime=0) as file:
        file.write(data)
    return packed.getvalue()


def _mode(entry: Entry) -> int:
    return entry.mode if entry.mode == SYMLINK else _REGULAR | entry.mode


def _member(name: str, mode: int, content: bytes, device: tuple[int, int] = (0, 0)) -> bytes:
    """One newc record: thirteen hexadecimal fields, the name and the content, each padded to four bytes."""
    encoded = name.encode() + b"\0"
    # Inode, mode, uid, gid, links, mtime, size, device of the file, device number, length of the name, checksum.
    fields = (0, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(encoded), 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    return _padded(header + encoded) + _padded(content)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
