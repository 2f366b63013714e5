"""OCI image documents (pure). They are reproducible: keys are sorted, and no time of the build is included."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
INDEX: Final = "application/vnd.oci.image.index.v1+json"
CONFIG: Final = "application/vnd.oci.image.config.v1+json"
LAYER: Final = "application/vnd.oci.image.layer.v1.tar+gzip"
REFERENCE_NAME: Final = "org.opencontainers.image.ref.name"
CONTAINERD_NAME: Final = "io.containerd.image.name"

Document = dict[str, object]


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A descriptor: media type, digest and size in bytes."""

    media_type: str
    digest: str
    size: int

    @classmethod
    def of(cls, media_type: str, content: bytes) -> Descriptor:
        """The descriptor of ``content``."""
        return cls(media_type, digest_of(content), len(content))

    @property
    def document(self) -> Document:
        """The descriptor as JSON."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Run configuration of an image. ``created`` is the source's time (RFC 3339), not the build's."""

    architecture: str
    entrypoint: Sequence[str] = ()
    user: str = ""
    ports: Sequence[int] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    created: str = "1970-01-01T00:00:00Z"


def digest_of(content: bytes) -> str:
    """The SHA-256 digest, with its prefix."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def encoded(document: Document) -> bytes:
    """The document as canonical JSON: its digest must be reproducible."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def config(run: RunConfig, diff_ids: Iterable[str]) -> bytes:
    """The image's config document; ``diff_ids`` are the digests of the layers' uncompressed tars."""
    process: Document = {"Env": [f"{name}={value}" for name, value in sorted(run.environment.items())]}
    optional: Document = {
        "Entrypoint": list(run.entrypoint),
        "User": run.user,
        "ExposedPorts": {f"{port}/tcp": {} for port in sorted(run.ports)},
        "Labels": dict(run.labels),
    }
    process |= {name: value for name, value in optional.items() if value}
    return encoded(
        {
            "architecture": run.architecture,
            "os": "linux",
            "created": run.created,
            "config": process,
            "rootfs": {"type": "layers", "diff_ids": list(diff_ids)},
        }
    )


def manifest(configuration: Descriptor, layers: Iterable[Descriptor], annotations: Mapping[str, str]) -> bytes:
    """The manifest of an image for one platform."""
    return encoded(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": configuration.document,
            "layers": [layer.document for layer in layers],
            "annotations": dict(annotations),
        }
    )


def index(manifests: Mapping[str, Descriptor], annotations: Mapping[str, str] | None = None) -> bytes:
    """The index of an image's manifests by architecture; each entry has the ``annotations``."""
    return encoded(
        {
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": [
                descriptor.document
                | {"platform": {"architecture": architecture, "os": "linux"}}
                | ({"annotations": dict(annotations)} if annotations else {})
                for architecture, descriptor in sorted(manifests.items())
            ],
        }
    )


def digest_under_tag(manifests: Mapping[str, Descriptor]) -> str:
    """The digest of the tag: of a single manifest, or of the index of several."""
    if len(manifests) == 1:
        return next(iter(manifests.values())).digest
    return digest_of(index(manifests))
