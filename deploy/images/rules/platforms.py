"""The platforms that images are built for, and their names with Debian, with wheels and in markers (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_OLDEST_GLIBC, _GLIBC = 5, 36
"""Minor versions of glibc 2: the oldest that wheels are built for, and Debian 12's."""
_OLD_NAMES: Final = ("manylinux1", "manylinux2010", "manylinux2014")


@dataclass(frozen=True, slots=True)
class Platform:
    """One platform: ``name`` as images name it, Debian's architecture, and the machine as the kernel names it."""

    name: str
    debian: str
    machine: str

    @property
    def wheel_tags(self) -> tuple[str, ...]:
        """The platform tags of the wheels that run there, the newest first."""
        # A wheel for an older glibc runs on every newer one, so all minor versions count.
        newer = (f"manylinux_2_{minor}_{self.machine}" for minor in range(_GLIBC, _OLDEST_GLIBC - 1, -1))
        # The names from before PEP 600, which names platforms by glibc version.
        return (*newer, *(f"{name}_{self.machine}" for name in _OLD_NAMES))

    @property
    def markers(self) -> Mapping[str, str]:
        """Values that requirement markers are compared with."""
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
"""The platforms by name."""


def platform_of(machine: str) -> Platform:
    """The platform of a machine as ``uname -m`` names it. Raises ``KeyError``."""
    return (
        # No platform is named like a machine, so the index raises the ``KeyError``.
        next((platform for platform in PLATFORMS.values() if platform.machine == machine), None) or PLATFORMS[machine]
    )
