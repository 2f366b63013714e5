"""The CPU limit that the kernel enforces on a pod's container, from its control group (version 1 or 2)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from protocol.units import MilliCpu
from tests.kubernetes.pod_processes import processes_of

_ROOT = Path("/sys/fs/cgroup")
_NANOSECONDS, _MICROSECONDS = 1e9, 1e6


@dataclass(frozen=True, slots=True)
class ContainerCpu:
    """One container's control group; version 1 accounts for CPU in another tree."""

    folder: Path
    accounts: Path

    @classmethod
    def of(cls, pod_uid: str, program: str) -> ContainerCpu:
        """The container in which a process runs whose command line names ``program``."""
        process, *_ = processes_of(pod_uid, program)
        lines = [line.split(":", 2) for line in Path(f"/proc/{process}/cgroup").read_text().splitlines()]
        paths = {kind: path.removeprefix("/") for _, kinds, path in lines for kind in kinds.split(",")}
        if "cpu" in paths:
            return cls(_ROOT / "cpu" / paths["cpu"], _ROOT / "cpuacct" / paths["cpuacct"])
        return cls(_ROOT / paths[""], _ROOT / paths[""])

    @property
    def limit(self) -> MilliCpu | None:
        """The limit; None if there is none."""
        one = self.folder / "cpu.max"
        both = one.read_text().split() if one.exists() else [self._read("cfs_quota_us"), self._read("cfs_period_us")]
        quota, period = both
        return None if quota in {"max", "-1"} else MilliCpu(round(int(quota) * 1000 / int(period)))

    @property
    def times_throttled(self) -> int:
        """Number of times that the kernel throttled the container."""
        return int(self._stat()["nr_throttled"])

    @property
    def used(self) -> float:
        """The seconds of CPU that it has used."""
        if (usage := self._stat().get("usage_usec")) is not None:
            return int(usage) / _MICROSECONDS
        return int((self.accounts / "cpuacct.usage").read_text()) / _NANOSECONDS

    @contextmanager
    def first(self) -> Iterator[None]:
        """Within it the whole cluster goes before the machine's other work, however busy that is."""
        is_version_1 = self.folder != self.accounts
        tree = _ROOT / "cpu" if is_version_1 else _ROOT
        top = tree / self.folder.relative_to(tree).parts[0]
        weight = top / ("cpu.shares" if is_version_1 else "cpu.weight")
        before = weight.read_text()
        weight.write_text("10000")
        try:
            yield
        finally:
            weight.write_text(before)

    def _read(self, name: str) -> str:
        return (self.folder / f"cpu.{name}").read_text().strip()

    def _stat(self) -> dict[str, str]:
        pairs = (line.partition(" ") for line in self._read("stat").splitlines())
        return {name: value for name, _, value in pairs}
