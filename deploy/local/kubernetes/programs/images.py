"""Image archives of the cluster's pods, built from the programs without docker or a registry."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from deploy.images.building.image_build import build, native_platform
from deploy.images.building.layer_store import layer_key, stored_layer
from deploy.images.building.layers import LayerMaker
from deploy.images.building.oci_archive import Contents, write_archive
from deploy.images.catalogue import IMAGES
from deploy.images.formats import oci
from deploy.images.formats.elf import read_binary
from deploy.images.formats.tree import File, Tree, directory, symlink, tree
from deploy.images.inputs.checkout import Checkout
from deploy.local.kubernetes.plan import cluster_plan
from deploy.local.kubernetes.plan.installation_plan import POSTGRES, REFERENCE, kube_scheduler_image
from deploy.local.kubernetes.programs import versions
from deploy.local.kubernetes.programs.build import MODULES, Builder, print_build
from deploy.local.kubernetes.programs.postgres_image import postgres_image
from deploy.local.kubernetes.programs.toolchain import find_go
from vm_image.recipe import Origin
from vm_image.store import Report

# Change this when the build of images changes, to invalidate the cache.
_RECIPE: Final = "2"
# `nonroot` of distroless images.
_UNPRIVILEGED: Final = "65532:65532"
APPLETS: Final = (
    *("cat", "dd", "echo", "env", "false", "grep", "head", "httpd", "id", "ip", "ls", "mkdir", "mount", "nc"),
    *("nslookup", "ping", "ps", "sh", "sleep", "tail", "test", "true", "wget"),
)
"""busybox's commands in its image."""


@dataclass(frozen=True, slots=True)
class ProgramImage:
    """An image of one program. With ``links`` (other names of the program), it has no entry point."""

    name: str
    program: Path
    links: Sequence[str] = ()

    @property
    def files(self) -> Tree:
        """The contents of the image."""
        program = File(f"bin/{self.program.name}", self.program.read_bytes(), 0o755)
        links = [symlink(f"bin/{link}", self.program.name) for link in self.links]
        return tree((directory("tmp", 0o1777), program, *links))

    def run_config(self, architecture: str) -> oci.RunConfig:
        """The image's run configuration: unprivileged, unless it has ``links``."""
        config = oci.RunConfig(architecture=architecture, environment={"PATH": "/bin"})
        return config if self.links else replace(config, entrypoint=(f"/bin/{self.program.name}",), user=_UNPRIVILEGED)


def image_set(builder: Builder, add_ons: Sequence[str], report: Report) -> Path:
    """The folder of the cluster's image archives; builds them if necessary."""
    images = _images(builder, add_ons, report)
    digest = hashlib.sha256(_RECIPE.encode())
    for image in images:
        digest.update(f"{image.name} {image.links}\n".encode() + hashlib.sha256(image.program.read_bytes()).digest())

    def make(work: Path) -> None:
        for image in images:
            report(f"images: {image.name}")
            write_image(image, work / f"{image.program.name}.tar", report)

    return builder.store.get(f"images-{digest.hexdigest()[:16]}", make, report)


def write_image(image: ProgramImage, path: Path, report: Report) -> None:
    """Write the image's archive."""
    files = image.files
    key = layer_key(f"{file.path} {file.mode} {file.target}\n".encode() + file.content for file in files.values())
    layer = stored_layer(key, lambda: files, report)
    write_archive(path, Contents(image.run_config(native_platform().debian), [layer]), image.name)


def _images(builder: Builder, add_ons: Sequence[str], report: Report) -> list[ProgramImage]:
    pause, dns, metrics = (
        builder.ensure(module_set, report) for module_set in (versions.PAUSE, versions.COREDNS, versions.METRICS_SERVER)
    )
    images = [
        ProgramImage(cluster_plan.PAUSE_IMAGE, pause / "pause"),
        ProgramImage(cluster_plan.COREDNS_IMAGE, dns / "coredns"),
        ProgramImage(cluster_plan.METRICS_SERVER_IMAGE, metrics / "metrics-server"),
    ]
    if versions.VERTICAL_POD_AUTOSCALER.name in add_ons:
        recommender = builder.ensure(versions.VERTICAL_POD_AUTOSCALER, report) / "vpa-recommender"
        images.append(ProgramImage(cluster_plan.VPA_RECOMMENDER_IMAGE, recommender))
    # `is_static` rejects `Path('')`, the current folder.
    busybox = Path(shutil.which("busybox") or "")
    if is_static(busybox):
        images.append(ProgramImage(cluster_plan.BUSYBOX_IMAGE, busybox, APPLETS))
    else:
        report(f"images: no {cluster_plan.BUSYBOX_IMAGE}; it needs Debian's package busybox-static")
    return images


def is_static(program: Path) -> bool:
    """Return True if ``program`` is a statically linked ELF file."""
    binary = read_binary(program.read_bytes()) if program.is_file() else None
    return binary is not None and not binary.loader


class InstallationParts(msgspec.Struct, frozen=True):
    """Image archives of an installation, the version of Kubernetes, and the path of its kubectl."""

    archives: list[str]
    version: str
    kubectl: str


def build_parts(minor: str, folder: Path, names: Sequence[str], report: Report) -> InstallationParts:
    """Build the images ``names`` and kube-scheduler's, and write their archives into ``folder``.

    Raises ``BuildError``, ``LockError``, ``BuildFailedError`` and ``NoGoError``.
    """
    platform = native_platform()
    maker = LayerMaker(Checkout(), platform, platform, Origin(), report)
    folder.mkdir(parents=True, exist_ok=True)
    kubernetes = versions.kubernetes_set(minor)
    programs = Builder.default(find_go()).ensure(kubernetes, report)
    # The patch release is in go.mod only.
    version = versions.required_version((MODULES / kubernetes.name / "go.mod").read_text(), versions.KUBERNETES)
    scheduler = folder / "kube-scheduler.tar"
    write_image(ProgramImage(kube_scheduler_image(version), programs / "kube-scheduler"), scheduler, report)
    own = [build(IMAGES[name], maker, REFERENCE.format(name=name), folder).path for name in names if name in IMAGES]
    others = [postgres_image(folder, report)] if POSTGRES in names else []
    return InstallationParts([str(path) for path in (scheduler, *own, *others)], version, str(programs / "kubectl"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Build; return the exit code."""
    minor, folder, *names = sys.argv[1:] if arguments is None else arguments
    return print_build(lambda report: msgspec.json.encode(build_parts(minor, Path(folder), names, report)).decode())


if __name__ == "__main__":
    sys.exit(main())
