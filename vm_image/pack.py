"""Packs the guest image as a NeonVM root disk: a container image with ``/disk.qcow2``, pushed without any engine.

NeonVM starts a VM by running the image's ``sh -c "mv /disk.qcow2 … && chown … && sysctl …"`` as an init container, so
beside the disk there is a busybox with those commands. NeonVM brings its own kernel and starts /neonvm/bin/init, which
the disk has. This has been checked up to the registry, not inside of a NeonVM cluster.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlencode, urljoin

from vm_image import archives, host
from vm_image.build import GuestImage
from vm_image.host import BuildError
from vm_image.store import Report

NAME: Final = "postgres-vm"
TAG: Final = "dev"
_COMMANDS: Final = ("sh", "mv", "chown", "sysctl", "cp", "ls")
_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
_LAYER: Final = "application/vnd.oci.image.layer.v1.tar+gzip"
_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class Blob:
    """One content-addressed part of a container image, as a file."""

    path: Path
    media_type: str
    digest: str

    @classmethod
    def of(cls, path: Path, media_type: str) -> Blob:
        """The blob that ``path`` is."""
        with path.open("rb") as content:
            return cls(path, media_type, f"sha256:{hashlib.file_digest(content, 'sha256').hexdigest()}")

    @property
    def descriptor(self) -> dict[str, object]:
        """How a manifest names it."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.path.stat().st_size}


def pack(image: GuestImage, busybox: bytes, work: Path, report: Report) -> tuple[Blob, Blob]:
    """The configuration and the only layer of the container image, made in ``work``. Raises ``BuildError``."""
    report("packing the root disk (qcow2)")
    disk = work / "disk.qcow2"
    convert = ["qemu-img", "convert", "-c", "-f", "raw", "-O", "qcow2", str(image.disk), str(disk)]
    host.run(convert, work / "convert.log", report)
    return layer_of(disk, busybox, work)


def layer_of(disk: Path, busybox: bytes, work: Path) -> tuple[Blob, Blob]:
    """The configuration and the layer around a packed ``disk``."""
    plain, packed = work / "layer.tar", work / "layer.tar.gz"
    entries = [
        archives.Entry("bin/busybox", busybox, 0o755),
        *(archives.Entry(f"bin/{name}", b"busybox", archives.SYMLINK) for name in _COMMANDS),
        archives.Entry("disk.qcow2", disk.read_bytes()),
    ]
    plain.write_bytes(archives.tar(entries))
    # The disk is compressed already: the fastest level loses nothing.
    packed.write_bytes(gzip.compress(plain.read_bytes(), compresslevel=1, mtime=0))
    config = work / "config.json"
    config.write_text(
        json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Env": ["PATH=/bin"]},
                "rootfs": {"type": "layers", "diff_ids": [Blob.of(plain, "").digest]},
            }
        )
    )
    return Blob.of(config, _CONFIG), Blob.of(packed, _LAYER)


def push(registry: str, config: Blob, layer: Blob, report: Report) -> str:
    """Pushes the image to ``registry``; returns its name there. Raises ``BuildError``."""
    base = f"http://{registry}/v2/{NAME}/"
    report(f"pushing to {registry}")
    for blob in (config, layer):
        started = _request("POST", urljoin(base, "blobs/uploads/"), b"", {})
        place = urljoin(base, started)
        place += ("&" if "?" in place else "?") + urlencode({"digest": blob.digest})
        _request("PUT", place, blob.path.read_bytes(), {"Content-Type": "application/octet-stream"})
    manifest = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": config.descriptor, "layers": [layer.descriptor]}
    _request("PUT", urljoin(base, f"manifests/{TAG}"), json.dumps(manifest).encode(), {"Content-Type": _MANIFEST})
    return f"{registry}/{NAME}:{TAG}"


def busybox_of(base: Path) -> bytes:
    """The busybox of the base layer, a tar. Raises ``BuildError``."""
    with tarfile.open(base) as packed:
        return archives.member(packed, "bin/busybox", "usr/bin/busybox")


def _request(method: str, url: str, body: bytes | None, headers: dict[str, str]) -> str:
    """Sends one request; returns where it says to go on. Raises ``BuildError``."""
    request = urllib.request.Request(url, data=body, headers=headers, method=method)  # noqa: S310 - always http
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310 - always http
            return str(answer.headers.get("Location", ""))
    except urllib.error.HTTPError as error:
        raise BuildError(f"the registry refused {method} {url}: {error.code} {error.read(300)!r}") from error
    except OSError as error:
        raise BuildError(
            f"no registry answers at {url}: {error}; start it: vm_image/start-local-registry.sh"
        ) from error
