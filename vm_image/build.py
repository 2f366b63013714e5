"""Builds the guest image: kernel, initrd and root disk (S4.11)."""

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
"""The initrd's first line on the console, which shows that the guest's kernel has booted."""

DPKG_STATUS: Final = "var/lib/dpkg/status"
"""dpkg's database of installed packages."""

_BASE: Final = "base.tar"
_DESCRIPTION: Final = "image.json"
_BUSYBOX: Final = "busybox"
_PACKAGES: Final = "packages"
_REPRODUCIBLE: Final = {"SOURCE_DATE_EPOCH": str(recipe.SOURCE_DATE_EPOCH)}
_INITRD_DIRECTORIES: Final = ("proc", "root", "modules", "bin")
_INITRD_COMMANDS: Final = ("sh", "mount", "umount", "insmod", "switch_root", "poweroff")


@dataclass(frozen=True, slots=True)
class GuestImage:
    """A finished image. Its files are read-only; each guest writes to its own overlay of the disk."""

    kernel: Path
    initrd: Path
    disk: Path

    @classmethod
    def at(cls, folder: Path) -> GuestImage:
        """The image in ``folder``."""
        return cls(folder / "vmlinuz", folder / "initrd", folder / "rootfs.raw")


def image_store() -> Store:
    """The cache of finished images."""
    return Store(cache_root() / "images")


def cached_image() -> GuestImage | None:
    """The image of the current recipe; None if it has not been built."""
    folder = image_store().cached(recipe.image_key())
    return None if folder is None else GuestImage.at(folder)


def ensure_image(report: Report, origin: Origin = NEWEST) -> GuestImage:
    """The image of the current recipe; if missing, it is built, which takes about 90 s.

    Safe to call from several processes at once. Raises ``BuildError``.
    """
    name = _name(recipe.image_key(), origin)
    return GuestImage.at(image_store().get(name, lambda work: _make_image(work, origin, report), report))


def ensure_base(report: Report, origin: Origin = NEWEST) -> Path:
    """The base of images, as a tar: Debian with postgres, a kernel, and an empty database.

    If missing, it is built, which takes about a minute. Raises ``BuildError``.
    """
    # Cached separately, so that changing a script in the image does not download packages again.
    folder = _layers().get(_name(recipe.base_key(), origin), lambda work: _make_base(work, origin, report), report)
    return folder / _BASE


def inputs_of(image: GuestImage) -> str:
    """Inputs of an image: its recipe and, as a digest, its base layer. Equal inputs give equal images."""
    # The digest of the base: after a rebuild, the same recipe may have newer packages.
    description = json.loads((image.disk.parent / _DESCRIPTION).read_text())
    return f"{description['recipe']} {description['baseDigest']}"


def busybox_of(image: GuestImage) -> bytes:
    """The busybox of an image."""
    return (image.disk.parent / _BUSYBOX).read_bytes()


def packages_of(image: GuestImage) -> bytes:
    """dpkg's status file of an image."""
    return (image.disk.parent / _PACKAGES).read_bytes()


def rebuild(report: Report, origin: Origin = NEWEST) -> GuestImage:
    """Rebuild the image with the newest packages. Raises ``BuildError``."""
    # The base too: otherwise the image would be built from the cached packages.
    _layers().drop(_name(recipe.base_key(), origin), report)
    image_store().drop(_name(recipe.image_key(), origin), report)
    return ensure_image(report, origin)


def _layers() -> Store:
    return Store(cache_root() / "layers")


def _name(key: str, origin: Origin) -> str:
    """The name in a store: images of a snapshot and of the newest packages are cached separately."""
    return f"{key}-{origin.snapshot}" if origin.snapshot else key


def _make_image(work: Path, origin: Origin, report: Report) -> None:
    report("1/4 checking the required programs")
    host.ensure_tools(report)
    host.check_rootless()
    report("2/4 packages, kernel and an empty database (about a minute, then cached)")
    base = ensure_base(report, origin)
    report("3/4 kernel and initrd")
    try:
        # A damaged base may lack a file.
        _make_boot(work, base)
    except KeyError as error:
        raise BuildError(f"the base layer lacks {error}; rebuild it: vm_image/build.sh --rebuild") from error
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
    """Create the base tar with mmdebstrap."""
    temporary = work / "tmp"
    temporary.mkdir()
    command = [
        *host.isolated(temporary),
        "mmdebstrap",
        # In mmdebstrap's user namespace (unshare), files can belong to root.
        f"--mode={'root' if host.is_root() else 'unshare'}",
        "--variant=minbase",
        "--skip=cleanup/apt",
        f"--include={','.join(recipe.PACKAGES)}",
        *(f"--dpkgopt=path-exclude={path}" for path in recipe.EXCLUDED),
        f"--customize-hook={recipe.HERE / 'rootfs' / 'customize.sh'}",
        SUITE,
        "-",
        *(origin.sources.splitlines() if origin.snapshot else ()),
    ]
    # A shell redirects standard output, the tar, to the file: `run` reads it as text.
    script = 'umask 022; out=$1; shift; exec "$@" >"$out"'
    host.run(["sh", "-c", script, "sh", str(work / _BASE), *command], work / "mmdebstrap.log", report, _REPRODUCIBLE)
    temporary.rmdir()


def _make_boot(work: Path, base: Path) -> None:
    with tarfile.open(base) as packed:
        (work / "vmlinuz").write_bytes(archives.member(packed, "boot/vmlinuz"))
        (work / _PACKAGES).write_bytes(archives.member(packed, DPKG_STATUS))
        modules = [
            archives.Entry(f"modules/{name}.ko", archives.member(packed, f"boot/modules/{name}.ko"))
            for name in recipe.MODULE_ORDER
        ]
        # With a merged /usr, it is in usr/bin.
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
    own_files = work / "own-files.tar"
    own_files.write_bytes(archives.tar(files))
    script = recipe.HERE / "rootfs" / "disk.sh"
    # The file system's UUID is derived from the key, because a random one would not be reproducible.
    identifier = uuid.uuid5(uuid.NAMESPACE_OID, recipe.image_key())
    arguments = [str(work), str(base), str(own_files), f"{recipe.DISK_MIB}M", str(identifier)]
    # Only root, if need be of a user namespace, can unpack files of other users.
    host.run([*host.as_root(), "sh", str(script), *arguments], work / "disk.log", report, _REPRODUCIBLE)
    own_files.unlink()
