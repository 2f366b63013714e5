"""The guest image as layers of container images: its root disk as NeonVM takes it, and its kernel for the runner."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from deploy.images.catalogue import GUEST
from deploy.images.formats.tree import File, symlink
from deploy.images.rules.platforms import Platform
from vm_image import host
from vm_image.build import DPKG_STATUS, GuestImage, busybox_of, packages_of
from vm_image.host import BuildError
from vm_image.store import Report

# NeonVM starts a VM with an init container that runs ``sh -c "mv /disk.qcow2 … && chown … && sysctl …"`` in the image.
COMMANDS: Final = ("sh", "mv", "chown", "sysctl", "cp", "ls")


def check_platform(platform: Platform) -> None:
    """Raises ``BuildError`` if there is no guest for the platform."""
    if platform.name != GUEST:
        raise BuildError(f"the guest's disk is built for {GUEST} only: leave postgres-vm out for {platform.name}")


def kernel_files(image: GuestImage) -> list[File]:
    """The kernel and the initrd of a guest image; a guest is an amd64 machine wherever it runs."""
    return [File(f"vm/kernel/{path.name}", path.read_bytes()) for path in (image.kernel, image.initrd)]


def disk_files(image: GuestImage, report: Report) -> list[File]:
    """The disk of a guest image with its commands."""
    report("packing the root disk (qcow2)")
    with tempfile.TemporaryDirectory(prefix="autoscale-pack-") as work:
        disk = Path(work, "disk.qcow2")
        # -c compresses the clusters: the qcow2 travels inside the layer.
        convert = ["qemu-img", "convert", "-c", "-f", "raw", "-O", "qcow2", str(image.disk), str(disk)]
        host.run(convert, Path(work, "convert.log"), report)
        return with_commands(disk.read_bytes(), busybox_of(image), packages_of(image))


def with_commands(disk: bytes, busybox: bytes, packages: bytes) -> list[File]:
    """The files around a packed disk. ``packages`` is dpkg's list of what is in it."""
    links = (symlink(f"bin/{name}", "busybox") for name in COMMANDS)
    # The list of packages is beside the disk, so that scanners need not open the disk.
    return [File("bin/busybox", busybox, 0o755), *links, File("disk.qcow2", disk), File(DPKG_STATUS, packages)]
