"""Caches finished layers by their inputs, so that a second build takes seconds."""

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
"""The packages whose code decides what a layer holds, beside ``vm_image.archives``. The catalogue's part of a layer
is among the ``parts`` of its key.
"""


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """A layer in its two forms: as documents name it, and as a file."""

    facts: oci.LayerFacts
    path: Path


def layer_key(parts: Iterable[bytes]) -> str:
    """The name of a layer made of ``parts`` by the present rules."""
    digest = hashlib.sha256()
    folder = Path(__file__).parents[1]
    # The code that makes layers decides their content, so it is part of the key.
    rules = (path.read_bytes() for package in _RULES for path in sorted((folder / package).glob("*.py")))
    for part in (*rules, Path(archives.__file__).read_bytes(), *parts):
        # The length in front keeps two lists of parts apart that concatenate to the same bytes.
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]


def stored_layer(key: str, make: Callable[[], Tree], report: Report) -> StoredLayer:
    """The layer of that name; ``make`` gives its files if it is missing."""
    folder = Store(cache_root() / "image-layers").get(key, lambda work: _write(work, make()), report)
    facts = json.loads((folder / _FACTS).read_text())
    descriptor = oci.Descriptor(oci.LAYER, facts["digest"], facts["size"])
    return StoredLayer(oci.LayerFacts(descriptor, facts["diffId"]), folder / _CONTENT)


def files_of(layer: StoredLayer) -> dict[str, File]:
    """The files of a layer as they were given to it."""
    with tarfile.open(layer.path) as archive:
        return {info.name: _file(archive, info) for info in archive}


def _file(archive: tarfile.TarFile, info: tarfile.TarInfo) -> File:
    content = archive.extractfile(info) if info.isreg() else None
    return File(info.name, content.read() if content else b"", info.mode, PathType(info.type), info.linkname)


def _write(work: Path, files: Tree) -> None:
    plain = tar_of(files)
    packed = compressed(plain)
    (work / _CONTENT).write_bytes(packed)
    # The diff id is of the uncompressed tar, the digest of what a registry stores; a config needs both.
    facts = {"digest": oci.digest_of(packed), "diffId": oci.digest_of(plain), "size": len(packed)}
    (work / _FACTS).write_text(json.dumps(facts))
