"""The demo of sleep: its verdict, its output, and the options that it rejects."""

import os
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from typer import BadParameter

from protocol.kubernetes.objects import Json
from protocol.messages import ObjectName
from protocol.units import Resources, Seconds
from scripts.autoscale.demo import _check_sleep_options
from scripts.autoscale.demonstration.report import Observations, report
from scripts.autoscale.demonstration.scenario import demo_vm
from scripts.autoscale.demonstration.sleep.qemu_process import qemu_memory
from scripts.autoscale.demonstration.sleep.sleep_points import SleepPoint, sleep_line
from scripts.autoscale.demonstration.sleep.sleep_scenario import SleepScenario
from scripts.autoscale.demonstration.watcher import Watcher
from scripts.autoscale.local import GuestKind
from tests.fake_clock import FakeClock

SIZE, FREED = Resources.parse(1, "256Mi"), Resources.parse("999m", "255Mi")
GOOD = SleepPoint(
    woken_by="the idle session",
    node="node-1",
    asleep_seconds=1.25,
    sessions=1,
    saved_bytes=100 * 1024**2,
    qemu_bytes=300 * 1024**2,
    qemu_ended=True,
    size_cpu=SIZE.cpu.as_cores,
    size_bytes=SIZE.mem.value,
    freed_cpu=FREED.cpu.as_cores,
    freed_bytes=FREED.mem.value,
    permit='{"vCPUs":0,"mem":0}',
    answer_seconds=0.31,
    wake_seconds=0.2,
    state="Awake",
    table="42",
)


def problems(*points: SleepPoint, ended: str = "") -> list[str]:
    return report(Observations(sleeps=list(points), load_problem=ended), Seconds(60.0)).problems


def test_two_sleeps_without_fault_succeed() -> None:
    assert problems(GOOD, GOOD) == []
    assert sleep_line(GOOD) == (
        "asleep 1.25 s after the order, 100 MiB saved: its QEMU of 300 MiB has ended, node-1 reserves 999m cpu, 255Mi "
        "less; the idle session was answered in 0.31 s (awake after 0.20 s)"
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"qemu_bytes": None}, "no QEMU of the VM was seen before it slept"),
        ({"qemu_ended": False}, "its QEMU kept running while it slept"),
        ({"permit": '{"vCPUs":1,"mem":0}'}, 'its permit was {"vCPUs":1,"mem":0} while it slept, not zero'),
        ({"permit": ""}, "its permit was missing while it slept, not zero"),
        ({"freed_cpu": 0.5}, "node-1 still reserved more than 1m cpu, 1Mi for it"),
        ({"freed_bytes": 0}, "node-1 still reserved more than 1m cpu, 1Mi for it"),
        ({"state": "Restarted"}, "its state after waking is Restarted, not Awake"),
        ({"table": ""}, "the temporary table contains nothing, not 42"),
    ],
)
def test_one_fault_fails_the_demonstration(change: dict[str, object], problem: str) -> None:
    broken = msgspec.structs.replace(GOOD, **change)
    assert problems(GOOD, broken) == [f"the sleep ended by the idle session: {problem}"]


def test_early_end_fails_the_demonstration() -> None:
    assert problems(GOOD) == ["it ended after 1 of 2 sleeps"]
    assert problems(GOOD, ended="no answer") == ["no answer"]


@pytest.mark.parametrize(
    ("guests", "kubernetes", "groups", "picture"),
    [
        ("simulated", False, False, False),
        ("qemu", True, False, False),
        ("qemu", False, True, False),
        ("qemu", False, False, True),
    ],
)
def test_sleep_is_shown_alone(guests: GuestKind, kubernetes: bool, groups: bool, picture: bool) -> None:
    with pytest.raises(BadParameter, match="--sleep"):
        _check_sleep_options(guests, kubernetes=kubernetes, groups=groups, picture=picture)


def test_only_own_qemu_is_counted(tmp_path: Path) -> None:
    """A VM of the same name in another cluster does not count."""
    process = tmp_path / str(os.getpid())
    process.mkdir()
    (process / "cmdline").write_bytes(b"qemu\0-name\0guest=default.demo\0-drive\0file=/clusters/demo/vms/disk\0")
    demo = ObjectName("default", "demo")
    assert (qemu_memory(Path("/clusters/demo"), demo, tmp_path) or 0) > 0
    assert qemu_memory(Path("/clusters/dem"), demo, tmp_path) is None
    assert qemu_memory(Path("/clusters/demo"), ObjectName("default", "dem"), tmp_path) is None


class OrderedError(Exception):
    """The VM has been ordered to sleep."""


class AwakeSite:
    """A cluster in which the VM of the demonstration has just woken."""

    def __init__(self) -> None:
        self.client = self

    async def get(self, *_: object) -> Json:
        return {**demo_vm(), "status": {"node": "node-1", "cpus": "1", "memorySize": "256Mi"}}

    async def merge_patch(self, *_: object) -> Json:
        raise OrderedError

    async def of_scheduler(self, _: str) -> Json:
        return {"nodes": [{"name": "node-1", "reserved": {"cpu": "1", "mem": "256Mi"}}]}


async def test_next_sleep_does_not_wait_for_watch() -> None:
    """The watch may still have the sleeping VM, which has no size, when the API says that it woke."""
    site, clock = cast("Any", AwakeSite()), FakeClock()
    watcher = Watcher(site, ObjectName("default", "demo"), clock, lambda _: None, lambda *_: None)
    watcher.database = {"status": {"node": "node-1", "phase": "Asleep"}}
    scenario = SleepScenario(site, clock, lambda _: None, watcher, lambda: None)
    with pytest.raises(OrderedError):
        await scenario._sleep("a new session", cast("Any", None), cast("Any", None))
