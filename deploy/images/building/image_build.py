"""Builds an image: layers, checks, OCI documents, archive."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.images.building.layer_store import StoredLayer
from deploy.images.building.layers import LayerMaker, merged
from deploy.images.building.oci_archive import Contents, write_archive
from deploy.images.catalogue import Image
from deploy.images.formats import oci
from deploy.images.formats.tree import Tree
from deploy.images.rules import contents
from deploy.images.rules.base_files import ENVIRONMENT
from deploy.images.rules.platforms import PLATFORMS, Platform
from vm_image.host import BuildError


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """A finished image: path of its archive, digest of its manifest, and its size in a registry in bytes."""

    image: Image
    platform: Platform
    path: Path
    digest: str
    size: int


def native_platform() -> Platform:
    """The platform of this machine. Raises ``BuildError`` if it is not supported."""
    machine = os.uname().machine
    for platform in PLATFORMS.values():
        if platform.machine == machine:
            return platform
    raise BuildError(f"images can be built on amd64 and arm64, not on {machine}")


def build(image: Image, maker: LayerMaker, reference: str, folder: Path) -> BuiltImage:
    """Build ``image`` into an archive in ``folder``, with the image reference ``reference``.

    Raises ``BuildError`` and ``LockError``.
    """
    layers = maker.layers_of(image)
    check(image, maker.platform, merged(layers))
    content = _content(image, maker, layers)
    path = folder / archive_name(image.name, maker.platform)
    write_archive(path, content, reference)
    return BuiltImage(image, maker.platform, path, content.manifest_descriptor.digest, content.size)


def archive_name(name: str, platform: Platform) -> str:
    """The file name of an image's archive."""
    return f"{name}-{platform.debian}.tar"


def check(image: Image, platform: Platform, files: Tree) -> None:
    """Raise ``BuildError`` if an image has forbidden files, or lacks libraries of its programs."""
    problems = contents.unresolved(files, platform.debian)
    # A guest's image needs a busybox with a shell.
    if not image.is_guest:
        problems += [f"{path} is forbidden" for path in contents.forbidden(files)]
        problems += [f"{path} is setuid or setgid" for path in contents.privileged(files)]
    if problems:
        raise BuildError(f"invalid contents of image {image.name}: {'; '.join(problems[:8])}")


def _content(image: Image, maker: LayerMaker, layers: Sequence[StoredLayer]) -> Contents:
    checkout = maker.checkout
    labels = {
        "org.opencontainers.image.title": image.name,
        "org.opencontainers.image.description": image.title,
        "org.opencontainers.image.version": checkout.version,
        "org.opencontainers.image.revision": checkout.revision,
        "org.opencontainers.image.licenses": "Apache-2.0",
    }
    run = oci.RunConfig(
        architecture=maker.platform.debian,
        entrypoint=[] if image.is_guest else [f"/usr/local/bin/{image.name}"],
        user=image.user,
        ports=image.ports,
        # A guest's image has only busybox, in /bin.
        environment={"PATH": "/bin"} if image.is_guest else ENVIRONMENT,
        # Without git, the revision is empty.
        labels={name: value for name, value in labels.items() if value},
        created=checkout.created,
    )
    return Contents(run, layers)
