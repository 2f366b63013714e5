"""``python -m deploy.local.kubernetes.programs.own_images MINOR FOLDER``: the images that an installation needs.

It prints progress, and last what it built, as JSON. It is a process of its own, so that the whole build ends with the
process that asked for it; finished parts stay in the cache.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from deploy.images.building.image_build import build, native_platform
from deploy.images.building.layers import LayerMaker
from deploy.images.catalogue import IMAGES
from deploy.images.inputs.checkout import Checkout
from deploy.local.kubernetes.plan.installation_plan import OWN_IMAGES, REFERENCE, kube_scheduler_image
from deploy.local.kubernetes.programs.build import MODULES, Builder, printed
from deploy.local.kubernetes.programs.images import ProgramImage, write_image
from deploy.local.kubernetes.programs.toolchain import find_go
from deploy.local.kubernetes.programs.versions import KUBERNETES, kubernetes_set, required_version
from vm_image.origin import Origin
from vm_image.store import Report


class InstallationParts(msgspec.Struct, frozen=True):
    """Parts of an installation: image archives, the version of Kubernetes, and its kubectl."""

    archives: list[str]
    version: str
    kubectl: str


def build_parts(minor: str, folder: Path, report: Report) -> InstallationParts:
    """Builds what is not in the cache, and writes the archives into ``folder``.

    Raises ``BuildError``, ``LockError``, ``BuildFailedError`` and ``NoGoError``.
    """
    platform = native_platform()
    maker = LayerMaker(Checkout(), platform, platform, Origin(), report)
    folder.mkdir(parents=True, exist_ok=True)
    kubernetes = kubernetes_set(minor)
    programs = Builder.usual(find_go()).ensure(kubernetes, report)
    # Only go.mod says which patch release belongs to the minor version.
    version = required_version((MODULES / kubernetes.name / "go.mod").read_text(), KUBERNETES)
    scheduler = folder / "kube-scheduler.tar"
    write_image(ProgramImage(kube_scheduler_image(version), programs / "kube-scheduler"), scheduler, report)
    own = [build(IMAGES[name], maker, REFERENCE.format(name=name), folder).path for name in OWN_IMAGES]
    return InstallationParts([str(path) for path in (scheduler, *own)], version, str(programs / "kubectl"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds; returns the exit code."""
    minor, folder = sys.argv[1:] if arguments is None else arguments
    return printed(lambda report: msgspec.json.encode(build_parts(minor, Path(folder), report)).decode())


if __name__ == "__main__":
    sys.exit(main())
