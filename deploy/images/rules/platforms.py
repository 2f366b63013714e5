"""The platforms of images, and their names in Debian, wheel tags and markers (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_OLDEST_GLIBC, _GLIBC = 5, 36
"""Minor versions of glibc 2: the oldest of wheels, and Debian 12's."""
_OLD_NAMES: Final = ("manylinux1", "manylinux2010", "manylinux2014")


@dataclass(frozen=True, slots=True)
class Platform:
    """One platform: its OCI ``name``, Debian architecture, and ``machine`` as of ``uname -m``."""

    name: str
    debian: str
    machine: str

    @property
    def wheel_tags(self) -> tuple[str, ...]:
        """Compatible wheel platform tags, newest first."""
        newer = (f"manylinux_2_{minor}_{self.machine}" for minor in range(_GLIBC, _OLDEST_GLIBC - 1, -1))
        # Then the names from before PEP 600.
        return (*newer, *(f"{name}_{self.machine}" for name in _OLD_NAMES))

    @property
    def markers(self) -> Mapping[str, str]:
        """Environment for requirement markers."""
        return {
            "implementation_name": "cpython",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_system": "Linux",
            "sys_platform": "linux",
        }


PLATFORMS: Final[Mapping[str, Platform]] = {
    platform.name: platform
    for platform in (Platform("linux/amd64", "amd64", "x86_64"), Platform("linux/arm64", "arm64", "aarch64"))
}
"""Platforms by name."""
