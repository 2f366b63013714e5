"""The image of CloudNativePG, from its Go module."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from deploy.images.building.image_build import native_platform
from deploy.images.formats import oci
from deploy.images.formats.tree import File, Tree, symlink, tree
from deploy.local.kubernetes.programs.build import Builder
from deploy.local.kubernetes.programs.images import ProgramImage, write_image
from deploy.local.kubernetes.programs.toolchain import find_go
from tests.module_sets import CLOUDNATIVE_PG, CLOUDNATIVE_PG_VERSION

OPERATOR_IMAGE: Final = f"localhost/cloudnative-pg:{CLOUDNATIVE_PG_VERSION}"


class _OperatorImage(ProgramImage):
    """The operator copies its program into pods of postgres, from the path that has this architecture in its name."""

    @property
    def files(self) -> Tree:
        path = f"operator/manager_{native_platform().debian}"
        return tree((File(path, self.program.read_bytes(), 0o755), symlink("manager", path)))

    def run_config(self, architecture: str) -> oci.RunConfig:
        # The class by name: a dataclass with slots is another class than the one that the method was defined in.
        return replace(ProgramImage.run_config(self, architecture), entrypoint=("/manager",))


def operator_image(folder: Path) -> Path:
    """The archive with the operator, which is built unless it is in the cache."""
    path = folder / "cloudnative-pg.tar"
    write_image(_OperatorImage(OPERATOR_IMAGE, _operator() / "manager"), path, print)
    return path


def operator_manifest() -> str:
    """The release's manifest, with the image that nodes have."""
    text = (_operator() / Path(CLOUDNATIVE_PG.files[0]).name).read_text()
    published = f"ghcr.io/cloudnative-pg/cloudnative-pg:{CLOUDNATIVE_PG_VERSION}"
    assert published in text
    return text.replace(published, OPERATOR_IMAGE).replace("imagePullPolicy: Always", "imagePullPolicy: Never")


def _operator() -> Path:
    return Builder.default(find_go()).ensure(CLOUDNATIVE_PG, print)
