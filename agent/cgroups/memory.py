"""Memory usage of one cgroup, v1 or v2."""

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
    """Memory of a cgroup in bytes: ``used`` of ``limit`` (None: unlimited); ``cache`` is reclaimable page cache.

    ``refaulted`` is page cache that was evicted and read again since the cgroup was created, None if the kernel lacks
    the counter.
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
    """Paths of a cgroup's memory files; ``prefix`` is the prefix of hierarchical counters."""

    used: Path
    limit: Path
    stat: Path
    prefix: bytes

    @classmethod
    def of(cls, group: ControlGroup) -> MemoryFiles:
        """The memory files of ``group``."""
        names = ("current", "max", "stat") if group.is_v2 else ("usage_in_bytes", "limit_in_bytes", "stat")
        used, limit, stat = (group.file("memory", f"memory.{name}") for name in names)
        return cls(used, limit, stat, b"" if group.is_v2 else b"total_")

    def read(self) -> Memory:
        """Read the current memory. Raises ``OSError`` or ``ValueError``."""
        return Memory(read(self.used, number), read(self.limit, byte_limit), *read(self.stat, self._parse))

    def _parse(self, text: bytes) -> tuple[int, float | None]:
        stat = counters(text)
        # Only the file LRU lists: ``file`` also counts shared memory, such as shared_buffers, which is not reclaimable.
        cache = sum(counter(stat, self.prefix + name) for name in (b"inactive_file", b"active_file"))
        # Kernels before 5.9 have one counter for file and anonymous pages.
        name = next(
            (name for name in (b"workingset_refault_file", b"workingset_refault") if self.prefix + name in stat), None
        )
        return cache, None if name is None else float(counter(stat, self.prefix + name) * _PAGE)
