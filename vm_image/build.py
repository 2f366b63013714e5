"""Builds the guest image: kernel, initrd and root disk (S4.11). Each step is reported as it begins."""

from __future__ import annotations

import hashlib
import json
import tarfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vm_image import archives, host, recipe
from vm_image.host import BuildError
from vm_image.recipe import NEWEST, SUITE, Origin
from vm_image.store import Report, Store, cache_root

FIRST_LINE: Final = "autoscale: the first program runs"
"""The initrd's first line on the console: from here on the machine runs the guest."""

DPKG_STATUS: Final = "var/lib/dpkg/status"
"""Dpkg's list of what it has installed."""

_BASE: Final = "base.tar"
_DESCRIPTION: Final = "image.json"
_BUSYBOX: Final = "busybox"
_PACKAGES: Final = "packages"
_REPEATABLE: Final = {"SOURCE_DATE_EPOCH": str(recipe.SOURCE_DATE_EPOCH)}
_INITRD_DIRECTORIES: Final = ("proc", "root", "modules", "bin")
_INITRD_COMMANDS: Final = ("sh", "mount", "umount", "insmod", "switch_root", "poweroff")


@dataclass(frozen=True, slots=True)
class GuestImage:
    """A finished image: what a guest boots from. All three are read-only; a guest's writes go to its own overlay."""

    kernel: Path
    initrd: Path
    disk: Path

    @classmethod
    def at(cls, folder: Path) -> GuestImage:
        """The image in ``folder``."""
        return cls(folder / "vmlinuz", folder / "initrd", folder / "rootfs.raw")


def image_store() -> Store:
    """Folder of finished images."""
    return Store(cache_root() / "images")


def cached_image() -> GuestImage | None:
    """The image of the present recipe; None if it has not been built."""
    folder = image_store().kept(recipe.image_key())
    return None if folder is None else GuestImage.at(folder)


def ensure_image(report: Report, origin: Origin = NEWEST) -> GuestImage:
    """The image of the present recipe, built if it is missing (about a minute and a half the first time). Safe to call
    from several processes at once. Raises ``BuildError``.
    """
    name = _name(recipe.image_key(), origin)
    return GuestImage.at(image_store().get(name, lambda work: _make_image(work, origin, report), report))


def ensure_base(report: Report, origin: Origin = NEWEST) -> Path:
    """The root file system that images are made from, as a tar: Debian with postgres, and what a guest boots from.
    Built if it is missing (about a minute). Raises ``BuildError``.
    """
    # A store of its own, so that a changed script in the image does not fetch packages again.
    return (
        _layers().get(_name(recipe.base_key(), origin), lambda work: _make_base(work, origin, report), report) / _BASE
    )


def inputs_of(image: GuestImage) -> str:
    """Inputs of an image: its recipe and, as a digest, its base layer. Equal inputs give equal images."""
    # The base is named by digest: the same recipe has other packages after a rebuild.
    description = json.loads((image.disk.parent / _DESCRIPTION).read_text())
    return f"{description['recipe']} {description['baseDigest']}"


def busybox_of(image: GuestImage) -> bytes:
    """The busybox of an image."""
    return (image.disk.parent / _BUSYBOX).read_bytes()


def packages_of(image: GuestImage) -> bytes:
    """dpkg's list of the packages in an image."""
    return (image.disk.parent / _PACKAGES).read_bytes()


def rebuild(report: Report, origin: Origin = NEWEST) -> GuestImage:
    """The image from nothing, with the packages that the distribution has now. Raises ``BuildError``."""
    # The base goes first: dropping only the image would build it again from the cached base.
    _layers().drop(_name(recipe.base_key(), origin), report)
    image_store().drop(_name(recipe.image_key(), origin), report)
    return ensure_image(report, origin)


def _layers() -> Store:
    return Store(cache_root() / "layers")


def _name(key: str, origin: Origin) -> str:
    """The name in a store for that key: a snapshot's packages are stored beside the newest."""
    return f"{key}-{origin.snapshot}" if origin.snapshot else key


def _make_image(work: Path, origin: Origin, report: Report) -> None:
    report("1/4 looking for the programs that the build needs")
    host.ensure_tools(report)
    host.check_rootless()
    report("2/4 packages, kernel and an empty database (once, about a minute)")
    base = ensure_base(report, origin)
    report("3/4 kernel and initrd")
    try:
        # An old or damaged base may lack a file that this version needs.
        _make_boot(work, base)
    except KeyError as error:
        raise BuildError(f"the base layer has no {error}; build it again: vm_image/build.sh --rebuild") from error
    report("4/4 root disk")
    _make_disk(work, base, report)
    with base.open("rb") as packed:
        digest = hashlib.file_digest(packed, "sha256").hexdigest()
    description = {
        "suite": SUITE,
        "packages": recipe.PACKAGES,
        "recipe": recipe.image_key(),
        "base": recipe.base_key(),
        "baseDigest": digest,
        "diskMiB": recipe.DISK_MIB,
    }
    (work / _DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n")


def _make_base(work: Path, origin: Origin, report: Report) -> None:
    """The root file system as a tar, by mmdebstrap; the longest step."""
    temporary = work / "tmp"
    temporary.mkdir()
    command = [
        *host.contained(temporary),
        "mmdebstrap",
        # unshare gives mmdebstrap a user namespace, in which files can belong to root.
        f"--mode={'root' if host.is_root() else 'unshare'}",
        "--variant=minbase",
        "--skip=cleanup/apt",
        f"--include={','.join(recipe.PACKAGES)}",
        *(f"--dpkgopt=path-exclude={path}" for path in recipe.LEFT_OUT),
        f"--customize-hook={recipe.HERE / 'rootfs' / 'customize.sh'}",
        SUITE,
        "-",
        *(origin.sources.splitlines() if origin.snapshot else ()),
    ]
    # A shell for the redirection: the tar on standard output is too large to pass through this process.
    script = 'umask 022; out=$1; shift; exec "$@" >"$out"'
    host.run(["sh", "-c", script, "sh", str(work / _BASE), *command], work / "mmdebstrap.log", report, _REPEATABLE)
    temporary.rmdir()


def _make_boot(work: Path, base: Path) -> None:
    with tarfile.open(base) as packed:
        (work / "vmlinuz").write_bytes(archives.member(packed, "boot/vmlinuz"))
        (work / _PACKAGES).write_bytes(archives.member(packed, DPKG_STATUS))
        modules = [
            archives.Entry(f"modules/{name}.ko", archives.member(packed, f"boot/modules/{name}.ko"))
            for name in recipe.MODULE_ORDER
        ]
        # Debian with a merged /usr has it in usr/bin.
        busybox = archives.member(packed, "bin/busybox", "usr/bin/busybox")
    (work / _BUSYBOX).write_bytes(busybox)
    entries = [
        archives.Entry("init", (recipe.HERE / "initrd" / "init.sh").read_bytes(), 0o755),
        archives.Entry("modules/order", "".join(f"{name}\n" for name in recipe.MODULE_ORDER).encode()),
        *modules,
        archives.Entry("bin/busybox", busybox, 0o755),
        *(archives.Entry(f"bin/{name}", b"busybox", archives.SYMLINK) for name in _INITRD_COMMANDS),
    ]
    (work / "initrd").write_bytes(archives.initrd(entries, _INITRD_DIRECTORIES))


def _make_disk(work: Path, base: Path, report: Report) -> None:
    files = [
        archives.Entry(file.target, (recipe.HERE / file.source).read_bytes(), file.mode) for file in recipe.GUEST_FILES
    ]
    ours = work / "ours.tar"
    ours.write_bytes(archives.tar(files))
    script = recipe.HERE / "rootfs" / "disk.sh"
    # The file system's UUID is derived, since a random one would make equal images differ.
    identifier = uuid.uuid5(uuid.NAMESPACE_OID, recipe.image_key())
    arguments = [str(work), str(base), str(ours), f"{recipe.DISK_MIB}M", str(identifier)]
    # Only root, or a user namespace, can unpack files that belong to other users.
    host.run([*host.as_root(), "sh", str(script), *arguments], work / "disk.log", report, _REPEATABLE)
    ours.unlink()
