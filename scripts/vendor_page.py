"""Vendors the page's chart library, and the library that checks its accessibility in tests: from the npm
registry, by the hashes that are locked here.

Run ``python -m scripts.vendor_page`` after a version is changed; it needs npm. Nothing else does: the files are in the
tree, and the charts in the wheel and in the image.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]


class VendorError(Exception):
    """The fetched file is not the locked one."""


@dataclass(frozen=True, slots=True)
class Library:
    """A package at a version, where its files go, and which: (path in the package, name here, SHA-256)."""

    package: str
    version: str
    folder: str
    files: tuple[tuple[str, str, str], ...]


CHARTS: Final = Library(
    "uplot",
    "1.6.32",
    "scheduler_plugin/dashboard/static/vendor",
    (
        (
            "dist/uPlot.iife.min.js",
            "uPlot.iife.min.js",
            "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
        ),
        ("dist/uPlot.min.css", "uPlot.min.css", "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04"),
        ("LICENSE", "uPlot.LICENSE.txt", "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd"),
    ),
)
ACCESSIBILITY: Final = Library(
    "axe-core",
    "4.14.1",
    "tests/browser/vendor",
    (
        ("axe.min.js", "axe.min.js", "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"),
        ("LICENSE", "axe.LICENSE.txt", "af175b9d96ee93c21a036152e1b905b0b95304d4ae8c2c921c7609100ba8df7e"),
    ),
)


def vendored(library: Library) -> Mapping[str, str]:
    """The hash of each file by its name here."""
    return {name: digest for _, name, digest in library.files}


def bring(library: Library, folder: Path) -> None:
    """Fetches the library and puts its files into ``folder``. Raises ``VendorError`` and changes nothing then."""
    bodies = {}
    with tempfile.TemporaryDirectory() as place:
        what = f"{library.package}@{library.version}"
        # No script of a package runs before the hashes of its files are checked.
        subprocess.run(["npm", "pack", "--silent", "--ignore-scripts", what], cwd=place, check=True, stdout=sys.stderr)
        with tarfile.open(next(Path(place).glob("*.tgz"))) as archive:
            # Nothing is written until every file has its locked hash: a half-updated library would be worse than an
            # old one.
            for path, name, digest in library.files:
                member = archive.extractfile(f"package/{path}")
                body = b"" if member is None else member.read()
                if hashlib.sha256(body).hexdigest() != digest:
                    raise VendorError(f"{what}: {path} is not what is locked")
                bodies[name] = body
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in bodies.items():
        (folder / name).write_bytes(body)


def main() -> int:
    """Fetches the charts and the library for tests into the tree; returns 0, or 1 if a hash differs."""
    try:
        for library in (CHARTS, ACCESSIBILITY):
            bring(library, ROOT / library.folder)
    except VendorError as error:
        print(f"vendor_page: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
