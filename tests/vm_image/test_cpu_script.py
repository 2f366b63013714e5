"""The guest's CPUs, switched in a folder that imitates the kernel's."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "vm_image" / "rootfs"
PERIOD = 100_000
CPUS = 4


@dataclass
class Guest:
    """A folder with CPUs, a control group, and the scripts that use them."""

    root: Path
    cpus: int = CPUS

    def __post_init__(self) -> None:
        for number in range(self.cpus):
            (self.root / "cpu" / f"cpu{number}").mkdir(parents=True)
        for name in ("cpu.sh", "cpu-now.sh"):
            script = (SCRIPTS / name).read_text().replace("/sys/devices/system/cpu", f"{self.root}/cpu")
            script = script.replace("/sys/fs/cgroup/work/cpu.max", f"{self.root}/cpu.max")
            (self.root / name).write_text(script.replace("/usr/lib/autoscale", str(self.root)))

    def has(self, milli: int) -> None:
        """Give the guest this much CPU."""
        for number in range(1, self.cpus):
            (self.root / "cpu" / f"cpu{number}" / "online").write_text(f"{int(number * 1000 < milli)}\n")
        quota = "max" if milli % 1000 == 0 else str(milli * PERIOD // 1000)
        (self.root / "cpu.max").write_text(f"{quota} {PERIOD}\n")

    def ordered(self, order: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["sh", "-x", self.root / "cpu.sh", order], capture_output=True, text=True, check=False)

    def now(self) -> int:
        said = subprocess.run(["sh", "-c", f'. {self.root}/cpu-now.sh; echo "$milli"'], capture_output=True, check=True)
        return int(said.stdout)


def offered_after_each_write(milli: int, trace: str) -> list[int]:
    """The CPU that the guest could use after each write of the script."""
    online, quota, found = -(-milli // 1000), milli if milli % 1000 else CPUS * 1000, []
    for line in trace.splitlines():
        match line.split():
            case ["+", "echo", ("0" | "1") as state]:
                online += 1 if state == "1" else -1
            case ["+", "echo", limit, _]:
                quota = CPUS * 1000 if limit == "max" else int(limit) * 1000 // PERIOD
            case _:
                continue
        found.append(min(online * 1000, quota))
    return found


@pytest.mark.parametrize("before", [250, 1000, 1500, 2500, 4000])
def test_resize_never_exceeds_the_larger_size(tmp_path: Path, before: int) -> None:
    guest = Guest(tmp_path)
    for after in (250, 1000, 1500, 2000, 2500, 4000):
        guest.has(before)
        done = guest.ordered(str(after))
        assert (done.returncode, guest.now()) == (0, after), done.stderr
        offered = offered_after_each_write(before, done.stderr)
        assert (offered[-1:], max(offered, default=0) <= max(before, after)) == ([after], True), (
            before,
            after,
            offered,
        )


@pytest.mark.parametrize(
    "order", ["", "0", "9", "4001", "0100", "0800", "-1", "1e3", "1000 ; echo 1", "1000000", "99999999999999999999"]
)
def test_invalid_cpu_amount_changes_nothing(tmp_path: Path, order: str) -> None:
    guest = Guest(tmp_path)
    guest.has(1500)
    assert (guest.ordered(order).returncode, guest.now()) == (1, 1500)


@pytest.mark.parametrize("order", [99_750, 100_000, 127_500, 128_000, 1000])
def test_guest_supports_hundreds_of_cpus(tmp_path: Path, order: int) -> None:
    """A hundred CPUs are six digits of thousandths, which the script once refused as too long."""
    guest = Guest(tmp_path, cpus=128)
    guest.has(2000)
    done = guest.ordered(str(order))
    assert (done.returncode, guest.now()) == (0, order), done.stderr


def test_quota_without_cpus_is_not_reported(tmp_path: Path) -> None:
    guest = Guest(tmp_path)
    guest.has(1000)
    (tmp_path / "cpu.max").write_text(f"250000 {PERIOD}\n")
    assert guest.now() == 1000
