"""Images for pods of postgres: CloudNativePG from its Go module, and postgres from the base of our guests' image."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from deploy.images.building.image_build import native_platform
from deploy.images.building.layer_store import layer_key, stored_layer
from deploy.images.building.oci_archive import Contents, write_archive
from deploy.images.formats import oci
from deploy.images.formats.tree import File, PathType, Tree, symlink, tree
from deploy.local.kubernetes.programs.build import Builder
from deploy.local.kubernetes.programs.images import ProgramImage, write_image
from deploy.local.kubernetes.programs.toolchain import find_go
from tests.module_sets import CLOUDNATIVE_PG, CLOUDNATIVE_PG_VERSION
from vm_image.build import ensure_base, ensure_image, inputs_of

OPERATOR_IMAGE: Final = f"localhost/cloudnative-pg:{CLOUDNATIVE_PG_VERSION}"
POSTGRES_IMAGE: Final = "localhost/postgresql:15"
POSTGRES_UID: Final = 26
"""The user that CloudNativePG starts postgres as."""

_PROGRAMS: Final = "/usr/lib/postgresql/15/bin"
_LEFT_OUT: Final = (
    *("boot/", "dev/", "var/lib/", "var/cache/", "usr/lib/autoscale/", "usr/share/i18n/"),
    # The guests' image has no LLVM. Without this library postgres does not try to compile queries.
    "usr/lib/postgresql/15/lib/llvmjit",
)
_ACCOUNTS: Final = (
    File("etc/passwd", f"root:x:0:0::/:\npostgres:x:{POSTGRES_UID}:{POSTGRES_UID}::/:\n".encode()),
    File("etc/group", f"root:x:0:\npostgres:x:{POSTGRES_UID}:\n".encode()),
)


class _OperatorImage(ProgramImage):
    """The operator copies its program into pods of postgres, from the path that has this architecture in its name."""

    @property
    def files(self) -> Tree:
        path = f"operator/manager_{native_platform().debian}"
        return tree((File(path, self.program.read_bytes(), 0o755), symlink("manager", path)))

    def run_facts(self, architecture: str) -> oci.RunFacts:
        # The class by name: a dataclass with slots is another class than the one that the method was defined in.
        return replace(ProgramImage.run_facts(self, architecture), entrypoint=("/manager",))


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


def postgres_image(folder: Path) -> Path:
    """The archive with postgres. Raises ``BuildError`` if the base of our guests' image cannot be built."""
    base = inputs_of(ensure_image(print))
    key = layer_key((b"postgres in a pod", base.encode(), repr((_LEFT_OUT, _ACCOUNTS)).encode()))
    layer = stored_layer(key, lambda: tree((*_files(ensure_base(print)), *_ACCOUNTS)), print)
    debian = native_platform().debian
    environment = {"LANG": "C.UTF-8", "PATH": f"{_PROGRAMS}:/usr/sbin:/usr/bin"}
    run = oci.RunFacts(debian, user=f"{POSTGRES_UID}:{POSTGRES_UID}", environment=environment)
    configuration = oci.config(run, [layer.facts])
    document = oci.manifest(oci.Descriptor.of(oci.CONFIG, configuration), [layer.facts], {})
    path = folder / "postgresql.tar"
    write_archive(path, Contents(debian, configuration, document, (layer,)), POSTGRES_IMAGE)
    return path


def _operator() -> Path:
    return Builder.usual(find_go()).ensure(CLOUDNATIVE_PG, print)


def _files(base: Path) -> Iterator[File]:
    with tarfile.open(base) as packed:
        for info in packed:
            path = info.name.removeprefix("./").rstrip("/")
            if not path or f"{path}/".startswith(_LEFT_OUT):
                continue
            content = packed.extractfile(info) if info.isreg() or info.islnk() else None
            kind = PathType.REGULAR if info.islnk() else PathType(info.type)
            yield File(path, content.read() if content else b"", info.mode, kind, info.linkname if info.issym() else "")
