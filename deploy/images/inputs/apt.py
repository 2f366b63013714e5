"""Downloads Debian packages for an image with apt, without root, for any architecture."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from deploy.images.catalogue import Image, Packages
from deploy.images.rules.platforms import Platform
from vm_image import host
from vm_image.host import BuildError
from vm_image.recipe import KEYRING, Origin
from vm_image.store import Report, Store, cache_root

# Declared as installed, so that apt does not download them.
STAND_INS: Final = (
    *("adduser", "awk", "debconf", "dpkg", "openssl", "passwd", "perl-base", "tar"),
    *("libbrlapi0.8", "libcacard0", "libcap2-bin", "libgstreamer-plugins-base1.0-0", "libgstreamer1.0-0"),
    *("libspice-server1", "libsndio7.0"),
)
"""Dependencies that no image needs: for installation only, or for audio and displays of QEMU."""


def installed(architecture: str) -> str:
    """The dpkg status file for apt, with the stand-ins."""
    return "".join(
        f"Package: {name}\nStatus: install ok installed\nArchitecture: {architecture}\nMulti-Arch: foreign\n"
        # Epoch 99: newer than any real version.
        f"Version: 99:999\nMaintainer: none\nDescription: not in images\n\n"
        for name in STAND_INS
    )


def packages_store() -> Store:
    """Cache of downloaded packages."""
    return Store(cache_root() / "packages")


def packages_key(packages: Sequence[str], platform: Platform, origin: Origin) -> str:
    """The cache key of a set of packages."""
    parts = (*packages, platform.debian, origin.sources, installed(platform.debian))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def drop_packages(images: Iterable[Image], platform: Platform, origin: Origin, report: Report) -> None:
    """Drop the packages of ``images`` from the cache, so that the next build downloads the newest."""
    for layer in {layer for image in images for layer in image.layers if isinstance(layer, Packages)}:
        packages_store().drop(packages_key(layer.packages, platform, origin), report)


def fetch_packages(packages: Sequence[str], platform: Platform, origin: Origin, report: Report) -> list[Path]:
    """The files of ``packages`` and their dependencies, from the cache if possible. Raises ``BuildError``."""
    key = packages_key(packages, platform, origin)
    folder = packages_store().get(key, lambda work: _fetch(work, packages, platform, origin, report), report)
    return sorted(folder.glob("*.deb"))


def check_tools(has_apt: bool, has_keys: bool) -> None:
    """Raise ``BuildError`` if apt or Debian's keys are missing."""
    missing = [name for exists, name in ((has_apt, "apt"), (has_keys, "debian-archive-keyring")) if not exists]
    if missing:
        raise BuildError(f"cannot download Debian packages without {' and '.join(missing)}: install it, or use docker")


def _fetch(work: Path, packages: Sequence[str], platform: Platform, origin: Origin, report: Report) -> None:
    check_tools(shutil.which("apt-get") is not None, Path(KEYRING).exists())
    report(f"fetching Debian packages for {platform.name}: {', '.join(packages)}")
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (work / folder).mkdir(parents=True)
    (work / "status").write_text(installed(platform.debian))
    (work / "sources.list").write_text(origin.sources)
    apt = ["apt-get", "--quiet", *_options(work, platform)]
    log = work / "apt.log"
    # --error-on=any: otherwise apt continues with incomplete lists.
    host.run([*apt, "update", "--error-on=any"], log, report)
    host.run([*apt, "install", "--yes", "--download-only", "--no-install-recommends", *packages], log, report)
    # Keep the packages only: lists and cache are large.
    for package in (work / "cache/archives").glob("*.deb"):
        package.rename(work / package.name)
    for leftover in ("state", "cache"):
        shutil.rmtree(work / leftover)


def _options(work: Path, platform: Platform) -> list[str]:
    settings = {
        "APT::Architecture": platform.debian,
        "APT::Default-Release": "",
        "APT::Architectures": platform.debian,
        # As root, apt would switch to the user ``_apt``, who cannot write to this folder.
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Dir::State": f"{work}/state",
        "Dir::State::status": f"{work}/status",
        "Dir::Cache": f"{work}/cache",
        "Dir::Etc::sourcelist": f"{work}/sources.list",
        # Ignore this machine's sources and preferences.
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
