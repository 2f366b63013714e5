"""Image archives: OCI layouts in a tar, for ``ctr image import``, ``docker load``, podman and skopeo."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Final

from deploy.images.building.layer_store import StoredLayer
from deploy.images.formats import oci

LAYOUT: Final = oci.encoded({"imageLayoutVersion": "1.0.0"})


@dataclass(frozen=True)
class Contents:
    """An image for one platform: its run configuration, and its layers as files."""

    run: oci.RunConfig
    layers: Sequence[StoredLayer]

    @cached_property
    def config(self) -> bytes:
        """The config document."""
        return oci.config(self.run, (layer.diff_id for layer in self.layers))

    @cached_property
    def manifest(self) -> bytes:
        """The manifest."""
        descriptors = (layer.descriptor for layer in self.layers)
        return oci.manifest(oci.Descriptor.of(oci.CONFIG, self.config), descriptors, self.run.labels)

    @property
    def manifest_descriptor(self) -> oci.Descriptor:
        """The manifest's entry in an index."""
        return oci.Descriptor.of(oci.MANIFEST, self.manifest)

    @property
    def size(self) -> int:
        """Size in a registry, in bytes."""
        return len(self.config) + len(self.manifest) + sum(layer.descriptor.size for layer in self.layers)


def write_archive(path: Path, image: Contents, reference: str) -> None:
    """Write the archive atomically. ``reference`` is ``[REGISTRY/]NAME:TAG``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".half")
    try:
        with tarfile.open(half, "w", format=tarfile.PAX_FORMAT) as archive:
            for name, content in _documents(image, reference):
                add_file(archive, name, len(content), io.BytesIO(content))
            # Layers with equal content share a blob.
            for layer in {layer.descriptor.digest: layer for layer in image.layers}.values():
                with layer.path.open("rb") as packed:
                    add_file(archive, blob_path(layer.descriptor.digest), layer.descriptor.size, packed)
        half.rename(path)
    finally:
        half.unlink(missing_ok=True)


def blob_path(digest: str) -> str:
    """Path of a blob in an archive."""
    return f"blobs/{digest.replace(':', '/')}"


def _documents(image: Contents, reference: str) -> Iterator[tuple[str, bytes]]:
    config = blob_path(oci.digest_of(image.config))
    # In ``ref.name``, only the tag is allowed; containerd has its own key for the full name.
    annotations = {oci.REFERENCE_NAME: reference.rpartition(":")[2], oci.CONTAINERD_NAME: reference}
    layers = [blob_path(layer.descriptor.digest) for layer in image.layers]
    yield "oci-layout", LAYOUT
    yield "index.json", oci.index({image.run.architecture: image.manifest_descriptor}, annotations)
    # For Docker without containerd's image store.
    yield "manifest.json", json.dumps([{"Config": config, "Layers": layers, "RepoTags": [reference]}]).encode()
    yield config, image.config
    yield blob_path(image.manifest_descriptor.digest), image.manifest


def add_file(archive: tarfile.TarFile, name: str, size: int, content: IO[bytes], mode: int = 0o644) -> None:
    """Add a file without its time and owner, so that equal inputs give equal archives."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, mode
    archive.addfile(info, content)
