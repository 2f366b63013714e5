"""Control groups of one container made in a folder, as the kernel shows them, for each version and driver."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

UID = "0f7ab1c2-8d4e-4b7a-9c1d-2e3f4a5b6c7d"
CONTAINER = "ab" * 32
MIB = 1024**2
UNLIMITED = "9223372036854771712\n"

_V1_FILES = {
    "cpuacct": {"cpuacct.usage": "12500000000\n", "cpuacct.stat": "user 1000\nsystem 250\n"},
    "cpu": {
        "cpu.stat": "nr_periods 500\nnr_throttled 30\nthrottled_time 900000000\nnr_bursts 0\nburst_time 0\n",
        "cpu.cfs_period_us": "100000\n",
    },
    "memory": {
        "memory.usage_in_bytes": f"{400 * MIB}\n",
        "memory.limit_in_bytes": f"{512 * MIB}\n",
        "memory.stat": (
            f"cache 1\nrss 2\nhierarchical_memory_limit {512 * MIB}\ntotal_cache {250 * MIB}\ntotal_shmem {50 * MIB}\n"
            f"total_workingset_refault_anon 7\ntotal_workingset_refault_file 1000\n"
            f"total_inactive_file {120 * MIB}\ntotal_active_file {80 * MIB}\n"
        ),
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    },
}
_PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n"
_V2_FILES = {
    "cpu.stat": (
        "usage_usec 12500000\nuser_usec 10000000\nsystem_usec 2500000\n"
        "nr_periods 500\nnr_throttled 30\nthrottled_usec 900000\n"
    ),
    "cpu.max": "100000 100000\n",
    "cpu.pressure": _PRESSURE.format(1_500_000),
    "memory.pressure": _PRESSURE.format(250_000),
    "io.pressure": _PRESSURE.format(750_000),
    "io.stat": (
        "253:0 rbytes=4096000 wbytes=8192000 rios=10 wios=20 dbytes=0 dios=0\n"
        "8:0 rbytes=4096000 wbytes=8000000 rios=10 wios=20 dbytes=0 dios=0\n"
        "7:0 \n"
    ),
    "memory.current": f"{400 * MIB}\n",
    "memory.max": f"{512 * MIB}\n",
    "memory.stat": (
        f"anon {100 * MIB}\nfile {250 * MIB}\nshmem {50 * MIB}\ninactive_file {120 * MIB}\nactive_file {80 * MIB}\n"
        "workingset_refault_anon 7\nworkingset_refault_file 1000\n"
    ),
    "memory.events": "low 0\nhigh 0\nmax 12\noom 2\noom_kill 2\noom_group_kill 0\n",
}


@dataclass(frozen=True)
class Layout:
    """A version of control groups and a driver of the kubelet; ``prefix`` is the kubelet's ``--cgroup-root``."""

    is_v2: bool
    is_systemd: bool
    prefix: tuple[str, ...] = ()
    quality: str = "burstable"

    @property
    def pod(self) -> str:
        """The path of the pod's group below that of a controller."""
        parts = (*self.prefix, "kubepods", self.quality, f"pod{UID}")
        if not self.is_systemd:
            return "/".join(filter(None, parts))
        names = [part.replace("-", "_") for part in parts if part]
        return "/".join("-".join(names[: at + 1]) + ".slice" for at in range(len(names)))

    @property
    def container(self) -> str:
        """The path of the container's group below that of a controller."""
        return f"{self.pod}/{f'cri-containerd-{CONTAINER}.scope' if self.is_systemd else CONTAINER}"

    def __str__(self) -> str:
        driver = "systemd" if self.is_systemd else "cgroupfs"
        return f"v{1 + self.is_v2}-{driver}-{'-'.join(self.prefix)}-{self.quality}"


LAYOUTS = [
    Layout(is_v2, is_systemd, prefix, quality)
    for is_v2 in (False, True)
    for is_systemd in (False, True)
    for prefix, quality in (((), "burstable"), ((), ""), (("autoscale.local", "node-1"), "burstable"))
]


@dataclass(frozen=True)
class Tree:
    """Control groups of one pod with one container below ``root``."""

    root: Path
    layout: Layout

    def file(self, name: str, *, of_pod: bool = False) -> Path:
        """The path of a file of the container, or of its pod."""
        below = self.layout.pod if of_pod else self.layout.container
        return (self.root if self.layout.is_v2 else self.root / name.partition(".")[0]) / below / name

    def write(self, name: str, text: str, *, of_pod: bool = False) -> None:
        self.file(name, of_pod=of_pod).write_text(text)

    def make(self) -> Tree:
        """Create all files of the container and its pod, next to cgroups of the node."""
        v1 = {name: text for files in _V1_FILES.values() for name, text in files.items()}
        for name, text in (_V2_FILES if self.layout.is_v2 else v1).items():
            for of_pod in (True, False):
                self.file(name, of_pod=of_pod).parent.mkdir(parents=True, exist_ok=True)
                self.write(name, text, of_pod=of_pod)
        top = self.root if self.layout.is_v2 else self.root / "memory"
        (top / "system.slice/sshd.service").mkdir(parents=True, exist_ok=True)
        if self.layout.is_v2:
            (self.root / "cgroup.controllers").write_text("cpu io memory\n")
            self.write("memory.high", "max\n", of_pod=True)
        return self
