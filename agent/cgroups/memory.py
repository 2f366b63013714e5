"""The memory of one control group, in both versions."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.cgroups.files import read
from agent.cgroups.formats import byte_limit, counter, counters, number
from agent.cgroups.locate import ControlGroup

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a control group in bytes: ``used`` of ``limit`` (None: no limit); ``cache`` can be dropped.

    ``refaulted`` is file cache that was read again since the group was made, None if the kernel does not count it.
    """

    used: int
    limit: int | None
    cache: int
    refaulted: float | None = None

    @property
    def needed(self) -> int:
        """Bytes that cannot be reclaimed."""
        return max(0, self.used - self.cache)


@dataclass(frozen=True, slots=True)
class MemoryFiles:
    """The paths of a group's files that tell its memory; ``prefix``: of the counters that include its children."""

    used: Path
    limit: Path
    stat: Path
    prefix: bytes

    @classmethod
    def of(cls, group: ControlGroup) -> MemoryFiles:
        """The files of ``group``."""
        names = ("current", "max", "stat") if group.is_v2 else ("usage_in_bytes", "limit_in_bytes", "stat")
        used, limit, stat = (group.file("memory", f"memory.{name}") for name in names)
        return cls(used, limit, stat, b"" if group.is_v2 else b"total_")

    def read(self) -> Memory:
        """The memory now. Raises ``OSError`` or ``ValueError``."""
        return Memory(read(self.used, number), read(self.limit, byte_limit), *read(self.stat, self._parse))

    def _parse(self, text: bytes) -> tuple[int, float | None]:
        stat = counters(text)
        # The file lists only: shared memory, such as the buffers of postgres, is file cache that cannot be dropped.
        cache = sum(counter(stat, self.prefix + name) for name in (b"inactive_file", b"active_file"))
        # Kernels before 5.9 count anonymous pages with them.
        name = next(
            (name for name in (b"workingset_refault_file", b"workingset_refault") if self.prefix + name in stat), None
        )
        return cache, None if name is None else float(counter(stat, self.prefix + name) * _PAGE)
