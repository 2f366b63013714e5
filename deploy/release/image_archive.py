"""Reads an image archive: its digest, and the files that list its packages."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

from deploy.images.building.oci_archive import blob_path
from deploy.images.formats import oci
from deploy.release.documents import ReleasedImage
from deploy.release.inventory import components, is_listed


class ArchiveError(Exception):
    """The file is no image archive of ours; the message says what it lacks."""


def read_image(path: Path) -> ReleasedImage:
    """The image in the archive at ``path``. Raises ``ArchiveError``."""
    with tarfile.open(path) as archive:
        (entry,) = json.loads(_content(archive, "index.json"))["manifests"]
        manifest = json.loads(_content(archive, blob_path(entry["digest"])))
        files: dict[str, bytes] = {}
        for layer in manifest["layers"]:
            # A file in a higher layer replaces the one in a lower layer.
            files |= _listed(_content(archive, blob_path(layer["digest"])))
    name = manifest.get("annotations", {}).get("org.opencontainers.image.title", path.stem)
    try:
        packages = tuple(components(files))
    except ValueError as error:
        raise ArchiveError(f"{path.name}: {error}") from error
    descriptor = oci.Descriptor(entry["mediaType"], entry["digest"], entry["size"])
    return ReleasedImage(name, entry["platform"]["architecture"], path.name, descriptor, packages)


def _listed(layer: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(layer)) as packed:
        return {
            info.name: content.read()
            for info in packed
            if info.isfile() and is_listed(info.name) and (content := packed.extractfile(info)) is not None
        }


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    try:
        content = archive.extractfile(name)
    except KeyError:
        content = None
    # ``extractfile`` also gives None, for a directory or device of that name.
    if content is None:
        raise ArchiveError(f"this is no image archive: it has no {name}")
    return content.read()
