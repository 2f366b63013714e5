"""The image for postgres in pods: Debian with postgres, from the base of the guest image."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Final

from deploy.images.building.image_build import native_platform
from deploy.images.building.layer_store import layer_key, stored_layer
from deploy.images.building.oci_archive import Contents, write_archive
from deploy.images.formats import oci
from deploy.images.formats.tree import File, files_in, tree
from deploy.local.kubernetes.plan.installation_plan import POSTGRES_IMAGE, POSTGRES_UID
from vm_image.build import ensure_base, ensure_image, inputs_of
from vm_image.store import Report

_PROGRAMS: Final = "/usr/lib/postgresql/15/bin"
_LEFT_OUT: Final = (
    *("boot/", "dev/", "var/lib/", "var/cache/", "usr/lib/autoscale/", "usr/share/i18n/"),
    # The guest image has no LLVM; without this library, postgres does not try to use JIT.
    "usr/lib/postgresql/15/lib/llvmjit",
)
_ACCOUNTS: Final = (
    File("etc/passwd", f"root:x:0:0::/:\npostgres:x:{POSTGRES_UID}:{POSTGRES_UID}::/:\n".encode()),
    File("etc/group", f"root:x:0:\npostgres:x:{POSTGRES_UID}:\n".encode()),
)


def postgres_image(folder: Path, report: Report) -> Path:
    """Write the archive; return its path. Raises ``BuildError`` if the guest image's base cannot be built."""
    base = inputs_of(ensure_image(report))
    key = layer_key((b"postgres in a pod", base.encode(), repr((_LEFT_OUT, _ACCOUNTS)).encode()))
    layer = stored_layer(key, lambda: _files(ensure_base(report)), report)
    environment = {"LANG": "C.UTF-8", "PATH": f"{_PROGRAMS}:/usr/sbin:/usr/bin"}
    user = f"{POSTGRES_UID}:{POSTGRES_UID}"
    run = oci.RunConfig(native_platform().debian, user=user, environment=environment)
    path = folder / "postgresql.tar"
    write_archive(path, Contents(run, [layer]), POSTGRES_IMAGE)
    return path


def _files(base: Path) -> dict[str, File]:
    with tarfile.open(base) as packed:
        return tree((*files_in(packed, _LEFT_OUT), *_ACCOUNTS))
