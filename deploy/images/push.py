"""Pushes image archives to a registry with skopeo, which supports logins, credential helpers and proxies."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from deploy.images.building.oci_archive import LAYOUT, blob_path
from deploy.images.formats import oci
from vm_image.recipe import HERE
from vm_image.store import Report

_LOOPBACK: Final = ("localhost", "127.", "[::1]")
_REFUSED: Final = "connection refused"


class PushError(Exception):
    """skopeo is not installed or failed; the message says why."""


@dataclass(frozen=True, slots=True)
class PushTarget:
    """Destination of an image: ``registry`` (``HOST[:PORT][/PATH]``), name and tag."""

    registry: str
    name: str
    tag: str
    plain_http: bool = False

    @property
    def repository(self) -> str:
        """The image reference without the tag."""
        return f"{self.registry}/{self.name}"

    @property
    def reference(self) -> str:
        """The image reference."""
        return f"{self.repository}:{self.tag}"

    @property
    def is_plain(self) -> bool:
        """True for plain HTTP: if requested, or for a registry on loopback."""
        return self.plain_http or self.registry.startswith(_LOOPBACK)


def push(archives: Mapping[str, Path], target: PushTarget, report: Report) -> str:
    """Push the archives of one image (by architecture) and return the digest of the tag.

    Several archives are pushed with an index. Raises ``PushError``.
    """
    pushed = {}
    for architecture, path in sorted(archives.items()):
        report(f"pushing {target.name} for {architecture} to {target.registry}")
        pushed[architecture] = descriptor = _descriptor(path)
        # With several platforms, only the index gets the tag.
        destination = target.reference if len(archives) == 1 else f"{target.repository}@{descriptor.digest}"
        _copy(path.parent, f"oci-archive:{path.name}", destination, target)
    # Last: registries reject an index whose manifests are missing.
    if len(pushed) > 1:
        _push_index(oci.index(pushed), target)
    return oci.digest_under_tag(pushed)


def _descriptor(path: Path) -> oci.Descriptor:
    with tarfile.open(path) as archive:
        content = archive.extractfile("index.json")
        (entry,) = json.load(content)["manifests"] if content is not None else ({},)
    return oci.Descriptor(entry["mediaType"], entry["digest"], entry["size"])


def _push_index(index: bytes, target: PushTarget) -> None:
    descriptor = oci.Descriptor.of(oci.INDEX, index)
    with TemporaryDirectory(prefix="autoscale-push-") as name:
        folder = Path(name)
        (folder / "oci-layout").write_bytes(LAYOUT)
        (folder / "index.json").write_bytes(oci.encoded({"schemaVersion": 2, "manifests": [descriptor.document]}))
        blob = folder / blob_path(descriptor.digest)
        blob.parent.mkdir(parents=True)
        blob.write_bytes(index)
        _copy(folder, "oci:.", target.reference, target, "--multi-arch=index-only")


def _copy(folder: Path, source: str, destination: str, target: PushTarget, *options: str) -> None:
    """Copy ``source``, relative to ``folder``: in an absolute path, a colon would be the start of a tag for skopeo."""
    if shutil.which("skopeo") is None:
        raise PushError("skopeo is not installed: sudo apt-get install --no-install-recommends skopeo")
    # --insecure-policy: local files need no signatures.
    command = ["skopeo", "--insecure-policy", "copy", "--quiet", "--preserve-digests", *options, *_logins()]
    if target.is_plain:
        command.append("--dest-tls-verify=false")
    done = subprocess.run(
        [*command, source, f"docker://{destination}"], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        hint = f"; a local registry: {HERE / 'start-local-registry.sh'}" if _REFUSED in done.stderr else ""
        raise PushError(f"skopeo failed to push {destination}: {done.stderr.strip()[-600:]}{hint}")


def _logins() -> list[str]:
    # Older releases of skopeo ignore DOCKER_CONFIG.
    folder = os.environ.get("DOCKER_CONFIG")
    config = Path(folder) / "config.json" if folder else None
    return [f"--dest-authfile={config.resolve()}"] if config is not None and config.is_file() else []
