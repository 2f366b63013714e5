"""Cache of finished layers, by their inputs."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.images.formats import oci
from deploy.images.formats.tree import File, Tree, compressed, files_in, tar_of, tree
from vm_image import archives
from vm_image.recipe import cache_key
from vm_image.store import Report, Store, cache_root

_CONTENT: Final = "layer.tar.gz"
_FACTS: Final = "layer.json"
_RULES: Final = ("formats", "rules", "building")
"""Packages whose code determines a layer's content, in addition to ``vm_image.archives``; it is part of every key."""


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """A layer's file, its descriptor, and the digest of its uncompressed tar."""

    path: Path
    descriptor: oci.Descriptor
    diff_id: str


def layer_key(parts: Iterable[bytes]) -> str:
    """The cache key of a layer with the inputs ``parts``."""
    folder = Path(__file__).parents[1]
    rules = (path.read_bytes() for package in _RULES for path in sorted((folder / package).glob("*.py")))
    return cache_key(*rules, Path(archives.__file__).read_bytes(), *parts)


def stored_layer(key: str, make: Callable[[], Tree], report: Report) -> StoredLayer:
    """The cached layer; if it is missing, it is built from the files that ``make`` returns."""
    folder = Store(cache_root() / "image-layers").get(key, lambda work: _write(work, make()), report)
    facts = json.loads((folder / _FACTS).read_text())
    descriptor = oci.Descriptor(oci.LAYER, facts["digest"], facts["size"])
    return StoredLayer(folder / _CONTENT, descriptor, facts["diffId"])


def files_of(layer: StoredLayer) -> dict[str, File]:
    """The files of a layer."""
    with tarfile.open(layer.path) as archive:
        return tree(files_in(archive))


def _write(work: Path, files: Tree) -> None:
    plain = tar_of(files)
    packed = compressed(plain)
    (work / _CONTENT).write_bytes(packed)
    # The diff id is the digest of the uncompressed tar.
    facts = {"digest": oci.digest_of(packed), "diffId": oci.digest_of(plain), "size": len(packed)}
    (work / _FACTS).write_text(json.dumps(facts))
