"""The images of a cluster's own pods, made of the programs that were built: no registry and no docker.

They are archives as ``docker save`` writes them, which containerd imports. The same content gives the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import shutil
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.local.kubernetes.plan.image_names import BUSYBOX_IMAGE, COREDNS_IMAGE, METRICS_SERVER_IMAGE, PAUSE_IMAGE
from deploy.local.kubernetes.programs.build import Builder
from deploy.local.kubernetes.programs.versions import COREDNS, METRICS_SERVER, PAUSE
from vm_image.store import Report

_RECIPE: Final = "1"
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_UNPRIVILEGED: Final = "65532:65532"


@dataclass(frozen=True, slots=True)
class Image:
    """An image of one program. ``links`` are further names of it, beside it."""

    name: str
    program: Path
    target: str
    arguments: Sequence[str] = ()
    links: Sequence[str] = ()
    user: str = _UNPRIVILEGED


def image_set(builder: Builder, report: Report) -> Path:
    """The folder with an archive for each image, made where it is missing. The programs must have been built."""
    images = _images(builder, report)
    digest = hashlib.sha256(_RECIPE.encode())
    for image in images:
        digest.update(f"{image}\n".encode() + hashlib.sha256(image.program.read_bytes()).digest())

    def make(work: Path) -> None:
        for image in images:
            (work / f"{image.program.name}.tar").write_bytes(archive(image))

    return builder.store.get(f"images-{digest.hexdigest()[:16]}", make, report)


def _images(builder: Builder, report: Report) -> list[Image]:
    pause, dns, metrics = (builder.ensure(each, report) for each in (PAUSE, COREDNS, METRICS_SERVER))
    images = [
        Image(PAUSE_IMAGE, pause / "pause", "pause"),
        Image(COREDNS_IMAGE, dns / "coredns", "coredns"),
        Image(METRICS_SERVER_IMAGE, metrics / "metrics-server", "metrics-server"),
    ]
    if busybox := shutil.which("busybox"):
        images.append(Image(BUSYBOX_IMAGE, Path(busybox), "bin/busybox", ("sh",), APPLETS, user=""))
    return images


APPLETS: Final = (
    *("cat", "dd", "echo", "env", "false", "grep", "head", "httpd", "id", "ip", "ls", "mkdir", "mount", "nc"),
    *("nslookup", "ping", "ps", "sh", "sleep", "tail", "test", "true", "wget"),
)
"""The names under which busybox is found in its image."""


def archive(image: Image) -> bytes:
    """The image as a tar: one layer, its configuration and the manifest."""
    layer = _layer(image)
    digest = hashlib.sha256(layer).hexdigest()
    configuration = json.dumps(
        {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {
                "Entrypoint": [f"/{image.target}"] if not image.links else None,
                "Cmd": list(image.arguments),
                "Env": ["PATH=/bin"],
                "User": image.user,
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        },
        sort_keys=True,
    ).encode()
    name = f"{hashlib.sha256(configuration).hexdigest()}.json"
    manifest = json.dumps([{"Config": name, "RepoTags": [image.name], "Layers": [f"{digest}.tar"]}]).encode()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for member, content in ((name, configuration), (f"{digest}.tar", layer), ("manifest.json", manifest)):
            _add(tar, member, content)
    return packed.getvalue()


def _layer(image: Image) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for folder, mode in (("bin", 0o755), ("tmp", 0o1777)):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
        _add(tar, image.target, image.program.read_bytes(), 0o755)
        for link in image.links:
            entry = tarfile.TarInfo(f"bin/{link}")
            entry.type, entry.linkname = tarfile.SYMTYPE, Path(image.target).name
            tar.addfile(entry)
    return packed.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))
