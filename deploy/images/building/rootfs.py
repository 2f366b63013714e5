"""Writes the files of an image into a folder, to look at or to run them there."""

from __future__ import annotations

from pathlib import Path

from deploy.images.formats.tree import File, PathType, Tree


def write_tree(files: Tree, folder: Path) -> None:
    """Writes ``files`` below ``folder``. They belong to the user who runs this."""
    # Sorted, so that an explicit directory comes before its contents.
    for path in sorted(files):
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        _write(files[path], place)


def _write(file: File, place: Path) -> None:
    if file.kind is PathType.SYMLINK:
        place.symlink_to(file.target)
        return  # chmod would follow the link and change its target
    if file.kind is PathType.DIRECTORY:
        place.mkdir(exist_ok=True)
    else:
        place.write_bytes(file.content)
    place.chmod(file.mode)
