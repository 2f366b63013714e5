"""The contents of the guest image, the origin of its packages, and cache keys (pure).

A cache key is a hash of all inputs, so an image is rebuilt only if one of them changes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SUITE: Final = "bookworm"
KEYRING: Final = "/usr/share/keyrings/debian-archive-keyring.gpg"
_NEWEST: Final = "http://deb.debian.org"
_SNAPSHOT: Final = "http://snapshot.debian.org/archive"


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of packages: the newest of Debian 12, or those at the time ``snapshot`` (``20260102T030405Z``)."""

    snapshot: str = ""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` if ``snapshot`` is not a time."""
        if self.snapshot and not re.fullmatch(r"\d{8}T\d{6}Z", self.snapshot):
            raise ValueError(f"expected a time such as 20260102T030405Z, got {self.snapshot!r}")

    @property
    def sources(self) -> str:
        """Content of apt's sources.list."""
        # The lists of a snapshot have expired.
        options = f"signed-by={KEYRING}" + (" check-valid-until=no" if self.snapshot else "")
        # Security updates are a separate archive, both on the mirror and in snapshots.
        parts = (("debian", SUITE), ("debian", f"{SUITE}-updates"), ("debian-security", f"{SUITE}-security"))
        return "".join(f"deb [{options}] {self._address(archive)} {suite} main\n" for archive, suite in parts)

    def _address(self, archive: str) -> str:
        return f"{_SNAPSHOT}/{archive}/{self.snapshot}" if self.snapshot else f"{_NEWEST}/{archive}"


NEWEST: Final = Origin()
"""The current packages of Debian 12."""


HERE: Final = Path(__file__).parent
PACKAGES: Final = (
    "postgresql-15",
    "prometheus-node-exporter",
    "busybox-static",
    "iproute2",
    "socat",
    "passwd",
)
EXCLUDED: Final = (
    "/usr/lib/*/libLLVM*",
    "/usr/lib/postgresql/15/lib/bitcode/*",
    "/usr/share/man/*",
    "/usr/share/doc/*",
    "/usr/share/locale/*",
)
"""Files that dpkg does not unpack: the JIT compiler and documentation."""

MODULE_ORDER: Final = (
    "virtio_ring",
    "virtio",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "virtio_mmio",
    "virtio_blk",
    "failover",
    "net_failover",
    "virtio_net",
    "virtio_mem",
    "virtio-rng",
    "pvpanic",
    "pvpanic-pci",
)
"""The initrd's kernel modules, in load order: each after its dependencies."""

SOURCE_DATE_EPOCH: Final = 1767225600
"""Unix time (2026-01-01): upper limit of all file times in an image, and the time of its database."""

DISK_MIB: Final = 4096
"""Size of the root disk in MiB; the file is sparse."""


@dataclass(frozen=True, slots=True)
class GuestFile:
    """One of our files in the guest: path in this folder, path in the guest, and mode."""

    source: str
    target: str
    mode: int = 0o644


GUEST_FILES: Final = (
    GuestFile("rootfs/init.sh", "sbin/init", 0o755),
    GuestFile("rootfs/cpu.sh", "usr/lib/autoscale/cpu.sh", 0o755),
    GuestFile("rootfs/cpu-now.sh", "usr/lib/autoscale/cpu-now.sh"),
    GuestFile("rootfs/daemon.sh", "usr/lib/autoscale/daemon.sh", 0o755),
    GuestFile("rootfs/monitor.pl", "usr/lib/autoscale/monitor.pl"),
    GuestFile("rootfs/shutdown.sh", "usr/lib/autoscale/shutdown.sh", 0o755),
    GuestFile("rootfs/shutdown.sh", "etc/acpi/PWRF/00000080", 0o755),
    GuestFile("rootfs/neonvm.sh", "usr/lib/autoscale/neonvm.sh", 0o755),
    GuestFile("rootfs/plugged.sh", "usr/lib/autoscale/plugged.sh", 0o755),
    GuestFile("rootfs/postgres.sh", "usr/lib/autoscale/postgres.sh", 0o755),
    GuestFile("rootfs/password.sh", "usr/lib/autoscale/password.sh", 0o755),
    GuestFile("rootfs/standby.sh", "usr/lib/autoscale/standby.sh", 0o755),
    GuestFile("rootfs/database.sh", "usr/lib/autoscale/database.sh", 0o755),
    GuestFile("rootfs/database.sql", "usr/lib/autoscale/database.sql"),
    GuestFile("rootfs/sleep.pl", "usr/lib/autoscale/sleep.pl"),
    GuestFile("rootfs/quiet.sql", "usr/lib/autoscale/quiet.sql"),
    GuestFile("rootfs/dhcp.sh", "usr/lib/autoscale/dhcp.sh", 0o755),
    GuestFile("rootfs/postgresql.conf", "etc/autoscale/postgresql.conf"),
    GuestFile("rootfs/pg_hba.conf", "etc/autoscale/pg_hba.conf"),
)


def base_key() -> str:
    """The cache key of the base."""
    # With separators, so that different lists have different keys.
    texts = [SUITE, *PACKAGES, "|", *EXCLUDED, "|", *MODULE_ORDER, "|", str(SOURCE_DATE_EPOCH)]
    # Only inputs of the base, because building it takes a minute.
    return _key(texts, ["build.py", "rootfs/customize.sh", "rootfs/initdb.sh"])


def image_key() -> str:
    """The cache key of the finished image."""
    locations = [f"{file.target}:{file.mode:o}" for file in GUEST_FILES]
    return _key(
        [base_key(), str(DISK_MIB), *locations],
        ["archives.py", "initrd/init.sh", "rootfs/disk.sh", *(file.source for file in GUEST_FILES)],
    )


def _key(texts: Iterable[str], sources: Iterable[str]) -> str:
    return cache_key(*(text.encode() for text in texts), *((HERE / source).read_bytes() for source in sources))


def cache_key(*parts: bytes) -> str:
    """A cache key for an output that ``parts`` determine."""
    # With the length, so that different lists cannot hash like one.
    digest = hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts))
    return digest.hexdigest()[:16]  # 64 bits, enough for a cache
