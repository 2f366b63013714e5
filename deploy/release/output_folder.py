"""The folder that a release is written into: it gets a complete release, and loses nothing but an earlier one."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from vm_image.host import BuildError

IMAGES: Final = "images"
SUMMARY: Final = "release.json"
SUMS: Final = "SHA256SUMS"


def check_output(folder: Path) -> None:
    """Raises ``BuildError`` if ``folder`` has anything that is no part of an earlier release."""
    foreign = sorted(_foreign(folder)) if folder.exists() else []
    if foreign:
        # Three names are enough to recognize the folder.
        named = ", ".join([*foreign[:3], *(["…"] if len(foreign) > 3 else [])])
        raise BuildError(f"{folder} is left as it is, since it has what is no release ({named}): give another --output")


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """A new folder, which takes the place of ``folder`` when the block ends well. Raises ``BuildError`` beforehand."""
    check_output(folder)
    place = folder.resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that the renames stay on one file system and are atomic.
    with tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as work:
        new = Path(work, "new")
        new.mkdir()
        yield new
        # A rename onto a folder that is not empty fails, so the earlier release moves away first.
        if place.exists():
            place.rename(Path(work, "old"))
        new.rename(place)


def _foreign(folder: Path) -> Iterator[str]:
    """Entries that belong to no release: all that its sums do not name, except for image archives."""
    released = _files_of_a_release(folder)
    for path in folder.iterdir():
        if path.name == IMAGES and released and path.is_dir():
            yield from (f"{IMAGES}/{image.name}" for image in path.iterdir() if image.suffix != ".tar")
        elif path.name not in released:
            yield path.name


def _files_of_a_release(folder: Path) -> set[str]:
    """The names of the files of the release in ``folder``; empty if there is none."""
    with suppress(OSError, ValueError, AttributeError):
        summary = json.loads((folder / SUMMARY).read_text())
        names = {line.partition("  ")[2] for line in (folder / SUMS).read_text().splitlines()}
        # Another project's SHA256SUMS does not make its folder a release.
        if SUMMARY in names and summary.keys() >= {"version", "revision", "images"}:
            return {*names, SUMS}
    return set()
