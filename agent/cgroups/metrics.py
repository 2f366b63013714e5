"""Metrics of one container from its cgroups, as a ``GuestSample`` (B.7).

Rules that hold here:

- Read-only and unprivileged: every file is world-readable.
- A value that the kernel does not count is None. A malformed file or a missing cgroup is ``Fault.GUEST``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from agent import texts
from agent.cgroups.files import read, read_optional
from agent.cgroups.formats import byte_limit, counter, counters, moved, number, stalled
from agent.cgroups.locate import ControlGroup, Locator
from agent.cgroups.memory import MemoryFiles
from agent.core.events import Fault
from agent.core.guest import CpuSeconds, GuestSample
from agent.ports import PortError
from protocol.units import Bytes

PERIOD: Final = 0.1
"""Seconds of a CPU quota period; the kubelet allows another only behind a feature gate."""

_TICK: Final = 1.0 / os.sysconf("SC_CLK_TCK")
_NODE: Final = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
_CPUS: Final = os.cpu_count() or 1


class CgroupMetrics:
    """The metrics of one container below ``root``, the node's ``/sys/fs/cgroup``.

    It locates the cgroup once, and again if a file is gone. Samples have no ``boot_time``: the counters fall after a
    container restart, and OOM kills still count.
    """

    def __init__(self, root: Path, pod_uid: str, container_id: str) -> None:
        self._locator = Locator(root)
        self._pod_uid = pod_uid
        self._container_id = container_id
        self._sample: Callable[[], GuestSample] | None = None

    async def scrape(self) -> GuestSample:
        """See ``MetricsSource``."""
        # No thread: reading takes about ten microseconds per file.
        try:
            self._sample = self._sample or self._located()
            return self._sample()
        except OSError as error:
            self._sample = None
            raise PortError(Fault.GUEST, texts.CGROUP_UNREADABLE.format(error=error)) from None
        except ValueError as error:
            raise PortError(Fault.GUEST, texts.CGROUP_MALFORMED.format(error=error)) from None

    def close(self) -> None:
        """See ``MetricsSource``. No file stays open between scrapes."""

    def _located(self) -> Callable[[], GuestSample]:
        pod, container = self._locator.container(self._pod_uid, self._container_id)
        return (_Version2 if pod.is_v2 else _Version1)(pod, container).sample


class _Version1:
    """One container on cgroup v1."""

    def __init__(self, pod: ControlGroup, container: ControlGroup) -> None:
        self._memory = _MemorySampler(pod, container)
        self._usage = container.file("cpuacct", "cpuacct.usage")
        self._times = container.file("cpuacct", "cpuacct.stat")
        self._quota = container.file("cpu", "cpu.stat")
        self._kills = container.file("memory", "memory.oom_control")

    def sample(self) -> GuestSample:
        busy = read(self._usage, number) / 1e9
        return replace(
            self._memory.sample(),
            cpus=_cpus(busy, read(self._times, lambda text: counter(counters(text), b"system")) * _TICK),
            # v1 has no PSI.
            cpu_stall=read(self._quota, _throttled),
            # ``oom_kill`` exists since kernel 4.13.
            oom_kills=read(self._kills, _oom_kills),
        )


class _Version2:
    """One container on cgroup v2."""

    def __init__(self, pod: ControlGroup, container: ControlGroup) -> None:
        self._memory = _MemorySampler(pod, container)
        self._times, self._io = container.file("", "cpu.stat"), container.file("", "io.stat")
        self._cpu_pressure, self._mem_pressure, self._io_pressure = (
            container.file("", f"{resource}.pressure") for resource in ("cpu", "memory", "io")
        )
        self._kills = container.file("", "memory.events")
        # An OOM-killed container loses its cgroup and thus the counter, so start from the pod's count. From then on,
        # kills in other containers do not count.
        self._killed_before = read(pod.file("", "memory.events"), _oom_kills) - read(self._kills, _oom_kills)

    def sample(self) -> GuestSample:
        busy, kernel, throttled = read(self._times, _times)
        cpu_stall, moved_bytes = read_optional(self._cpu_pressure, stalled), read_optional(self._io, moved)
        return replace(
            self._memory.sample(),
            cpus=_cpus(busy, kernel),
            cpu_stall=throttled if cpu_stall is None else cpu_stall,
            mem_stall=read_optional(self._mem_pressure, stalled),
            io_stall=read_optional(self._io_pressure, stalled),
            read=None if moved_bytes is None else float(moved_bytes[0]),
            written=None if moved_bytes is None else float(moved_bytes[1]),
            oom_kills=self._killed_before + read(self._kills, _oom_kills),
        )


class _MemorySampler:
    """A container's memory, presented as a guest whose memory is the limit."""

    def __init__(self, pod: ControlGroup, container: ControlGroup) -> None:
        self._files, self._pods = MemoryFiles.of(container), MemoryFiles.of(pod)

    def sample(self) -> GuestSample:
        memory = self._files.read()
        # The reclaimer lowers the pod's limit temporarily, so use that limit only if the container has none.
        limit = memory.limit or read(self._pods.limit, byte_limit) or _NODE
        free = max(0, limit - memory.used)
        return GuestSample(
            mem_total=Bytes(limit),
            mem_available=Bytes(min(limit, free + memory.cache)),
            mem_free=Bytes(free),
            refaulted=memory.refaulted,
        )


def _cpus(busy: float, kernel: float) -> dict[str, CpuSeconds]:
    return {"all": CpuSeconds(busy, kernel=kernel, cpus=_CPUS)}


def _times(text: bytes) -> tuple[float, float, float | None]:
    """Busy, kernel and throttled seconds of all CPUs, from v2's ``cpu.stat``."""
    counts = counters(text)
    busy, kernel = (counter(counts, name) / 1e6 for name in (b"usage_usec", b"system_usec"))
    return busy, kernel, _throttled(text) if b"nr_throttled" in counts else None


def _oom_kills(text: bytes) -> float:
    return float(counter(counters(text), b"oom_kill"))


def _throttled(text: bytes) -> float:
    """Seconds throttled by the CPU quota, in whole periods, from ``cpu.stat``."""
    return counter(counters(text), b"nr_throttled") * PERIOD
