"""Cache of finished layers, by their inputs."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.images.formats import oci
from deploy.images.formats.tree import File, PathType, Tree, compressed, tar_of
from vm_image import archives
from vm_image.store import Report, Store, cache_root

_CONTENT: Final = "layer.tar.gz"
_FACTS: Final = "layer.json"
_RULES: Final = ("formats", "rules", "building")
"""Packages whose code determines a layer's content, besides ``vm_image.archives``; it is part of every key."""


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """A layer's file, and its entries in OCI documents."""

    facts: oci.LayerFacts
    path: Path


def layer_key(parts: Iterable[bytes]) -> str:
    """The cache key of a layer with the inputs ``parts``."""
    digest = hashlib.sha256()
    folder = Path(__file__).parents[1]
    rules = (path.read_bytes() for package in _RULES for path in sorted((folder / package).glob("*.py")))
    for part in (*rules, Path(archives.__file__).read_bytes(), *parts):
        # With the length, so that different lists cannot hash like one.
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]


def stored_layer(key: str, make: Callable[[], Tree], report: Report) -> StoredLayer:
    """The cached layer; if it is missing, it is built from the files that ``make`` returns."""
    folder = Store(cache_root() / "image-layers").get(key, lambda work: _write(work, make()), report)
    facts = json.loads((folder / _FACTS).read_text())
    descriptor = oci.Descriptor(oci.LAYER, facts["digest"], facts["size"])
    return StoredLayer(oci.LayerFacts(descriptor, facts["diffId"]), folder / _CONTENT)


def files_of(layer: StoredLayer) -> dict[str, File]:
    """The files of a layer."""
    with tarfile.open(layer.path) as archive:
        return {info.name: _file(archive, info) for info in archive}


def _file(archive: tarfile.TarFile, info: tarfile.TarInfo) -> File:
    content = archive.extractfile(info) if info.isreg() else None
    return File(info.name, content.read() if content else b"", info.mode, PathType(info.type), info.linkname)


def _write(work: Path, files: Tree) -> None:
    plain = tar_of(files)
    packed = compressed(plain)
    (work / _CONTENT).write_bytes(packed)
    # The diff id is the digest of the uncompressed tar.
    facts = {"digest": oci.digest_of(packed), "diffId": oci.digest_of(plain), "size": len(packed)}
    (work / _FACTS).write_text(json.dumps(facts))
