"""The source of the Debian packages that an image is made of (pure)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

SUITE: Final = "bookworm"
KEYRING: Final = "/usr/share/keyrings/debian-archive-keyring.gpg"
_NEWEST: Final = "http://deb.debian.org"
_SNAPSHOT: Final = "http://snapshot.debian.org/archive"


@dataclass(frozen=True, slots=True)
class Origin:
    """Source of packages: the newest of Debian 12, or its state at ``snapshot`` (``20260102T030405Z``)."""

    snapshot: str = ""

    def __post_init__(self) -> None:
        """Raises ``ValueError`` if ``snapshot`` is no time."""
        if self.snapshot and not re.fullmatch(r"\d{8}T\d{6}Z", self.snapshot):
            raise ValueError(f"expected a time such as 20260102T030405Z, got {self.snapshot!r}")

    @property
    def sources(self) -> str:
        """apt's list of sources."""
        # The Valid-Until of a snapshot's lists has long passed.
        options = f"signed-by={KEYRING}" + (" check-valid-until=no" if self.snapshot else "")
        # Security updates are in an archive of their own, in the mirror and in the snapshot.
        parts = (("debian", SUITE), ("debian", f"{SUITE}-updates"), ("debian-security", f"{SUITE}-security"))
        return "".join(f"deb [{options}] {self._address(archive)} {suite} main\n" for archive, suite in parts)

    def _address(self, archive: str) -> str:
        return f"{_SNAPSHOT}/{archive}/{self.snapshot}" if self.snapshot else f"{_NEWEST}/{archive}"


NEWEST: Final = Origin()
"""The current packages of Debian 12."""
