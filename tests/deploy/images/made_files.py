"""Small Debian packages, wheels and ELF files for the tests, made as the real ones are."""

from __future__ import annotations

import io
import lzma
import struct
import tarfile
import zipfile
from collections.abc import Mapping, Sequence

from deploy.images.formats.tree import File, PathType

_BASE = 0x400000


def deb(name: str, files: Sequence[File], hard_links: Mapping[str, str] | None = None) -> bytes:
    """A Debian package."""
    control = f"Package: {name}\nVersion: 1.2-3\nArchitecture: amd64\nDescription: a package\n of two lines\n"
    data = lzma.compress(_tar(files, hard_links or {}))
    parts = {
        "debian-binary": b"2.0\n",
        "control.tar.xz": lzma.compress(_tar([File("control", control.encode())], {})),
        "data.tar.xz": data,
    }
    return b"!<arch>\n" + b"".join(_member(name, content) for name, content in parts.items())


def _member(name: str, content: bytes) -> bytes:
    header = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
    return header + content + b"\n" * (len(content) % 2)


def _tar(files: Sequence[File], hard_links: Mapping[str, str]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for file in (File("", mode=0o755, kind=PathType.DIRECTORY), *files):
            info = tarfile.TarInfo(f"./{file.path}")
            info.type, info.mode, info.linkname, info.size = file.kind.value, file.mode, file.target, len(file.content)
            archive.addfile(info, io.BytesIO(file.content))
        for path, target in hard_links.items():
            info = tarfile.TarInfo(f"./{path}")
            info.type, info.linkname = tarfile.LNKTYPE, f"./{target}"
            archive.addfile(info)
    return packed.getvalue()


def wheel(files: Mapping[str, bytes]) -> bytes:
    """A wheel."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return packed.getvalue()


def elf(needed: Sequence[str] = (), loader: str = "", machine: int = 62) -> bytes:
    """An ELF file that needs these libraries: header, three segments, names, dynamic section."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in needed)
    places = [names.index(b"\0" + name.encode() + b"\0") + 1 for name in needed]
    first = 64 + 3 * 56
    path = loader.encode() + b"\0" if loader else b""
    strings = first + len(path)
    entries = [*((1, place) for place in places), (5, _BASE + strings), (0, 0)]
    dynamic = b"".join(struct.pack("<qQ", *entry) for entry in entries)
    start = strings + len(names)
    header = b"\x7fELF\x02\x01" + bytes(10) + struct.pack("<HHIQQQIHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 3)
    segments = (
        (3 if loader else 0, first, len(path)),
        (1, 0, start + len(dynamic)),
        (2, start, len(dynamic)),
    )
    table = b"".join(
        struct.pack("<IIQQQQQQ", kind, 4, place, _BASE + place, 0, size, size, 8) for kind, place, size in segments
    )
    return header.ljust(64, b"\0") + table + path + names + dynamic
