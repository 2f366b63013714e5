"""The files of a wheel in an image (pure). pip has verified the wheel's hash."""

from __future__ import annotations

import io
import zipfile
from typing import Final

from deploy.images.formats.tree import File

SITE: Final = "usr/local/lib/python3.11/dist-packages"
"""Debian's folder of Python packages that are not from Debian."""
# purelib and platlib are one folder in Debian's Python.
_INTO_SITE: Final = ("purelib", "platlib")
_LEFT_OUT: Final = ("/tests/", "/testing/_private/", ".pyx", ".pxd", ".pyi", ".c", ".h")


def wheel_files(data: bytes) -> list[File]:
    """The wheel's packages and metadata, without tests, C sources and scripts."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        wanted = ((path, entry) for entry in entries if (path := _path_in_site(entry.filename)))
        return [File(f"{SITE}/{path}", archive.read(entry), _mode(entry)) for path, entry in wanted]


def _path_in_site(name: str) -> str:
    """The path below ``SITE``; empty if the file is left out."""
    if any(part in name if part.startswith("/") else name.endswith(part) for part in _LEFT_OUT):
        return ""
    first, _, rest = name.partition("/")
    if not first.endswith(".data"):
        return name
    # NAME.data/SCHEME/… has files for other folders, such as scripts and headers.
    scheme, _, inner = rest.partition("/")
    return inner if scheme in _INTO_SITE else ""


def _mode(entry: zipfile.ZipInfo) -> int:
    # The upper 16 bits are the Unix mode.
    return 0o755 if entry.external_attr >> 16 & 0o100 else 0o644
