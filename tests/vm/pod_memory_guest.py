"""Runs as root in a guest with control groups of version 2: the reclaimer and an agent's trials, on a pod of its own.

Each line that begins with SAW has the name of what was seen, and its value.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, process_time, sleep

from msgspec import structs

from agent.adapters.pod_reclaim import PodReclaim
from agent.cgroups.locate import ControlGroup, Locator
from agent.cgroups.memory import MemoryFiles
from agent.cgroups.metrics import CgroupMetrics
from protocol.guest.monitor_messages import DownscaleRequest, DownscaleResult
from protocol.runtime.clock import SystemClock
from protocol.units import Bytes, MilliCpu, Resources

MIB = 1024**2
UID = "0f7ab1c2-8d4e-4b7a-9c1d-2e3f4a5b6c7d"
CONTAINER = "ab" * 32
ROOT = Path("/sys/fs/cgroup")
PARTS = ("kubepods", "burstable", f"pod{UID}", CONTAINER)
SOCKET = Path("/run/reclaimer/reclaimer.sock")
PYTHON = os.environ["PYTHON"]
FILE = Path("/var/lib/filled")

JOIN = "import os, sys; open(sys.argv[1] + '/cgroup.procs', 'w').write(str(os.getpid()));"
FILL = JOIN + "f = open(sys.argv[2], 'wb'); [f.write(bytes(1 << 20)) for _ in range(330)]; f.flush(); os.fsync(f)"
READ = JOIN + "f = open(sys.argv[2], 'rb', 0)\nwhile True:\n  f.seek(0)\n  while f.read(1 << 20): pass"
GROW = JOIN + "x = [bytearray(os.urandom(1 << 20)) for _ in range(500)]"
HOLD = JOIN + "x = bytearray(os.urandom(1 << 20) * 100); print('ready', flush=True); sys.stdin.read()"


def pod() -> ControlGroup:
    group = Locator(ROOT).pod(UID)
    assert group is not None
    return group


def container() -> ControlGroup:
    group = pod().container(CONTAINER)
    assert group is not None
    return group


def limit(name: str, group: ControlGroup, value: int | str | None = None) -> str:
    """A limit, after it was set to ``value``."""
    file = group.file("", name)
    if value is not None:
        file.write_text(str(value))
    text = file.read_text().strip()
    return text if text == "max" else f"{int(text) // MIB} MiB"


def make_pod() -> None:
    (ROOT / "cgroup.subtree_control").write_text("+cpu +memory +io")
    folder = ROOT
    for part in PARTS:
        folder /= part
        folder.mkdir()
        if part != CONTAINER:
            (folder / "cgroup.subtree_control").write_text("+cpu +memory +io")
    for group in (pod(), container()):
        limit("memory.max", group, 300 * MIB)


def in_container(code: str) -> subprocess.Popen[bytes]:
    command = [PYTHON, "-c", code, str(container().file("", "")), str(FILE)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@contextmanager
def running(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program in the container, until the block ends."""
    with in_container(code) as process:
        yield process
        process.kill()


def fill() -> None:
    """Fills the limit with page cache."""
    assert in_container(FILL).wait() == 0


@contextmanager
def reclaimer() -> Iterator[subprocess.Popen[bytes]]:
    """The program, as UID 0 without any capability."""
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    environment = {**os.environ, "CGROUP_ROOT": str(ROOT), "RECLAIMER_SOCKET": str(SOCKET)}
    process = subprocess.Popen([*drop, PYTHON, "-m", "agent.reclaimer"], env=environment, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        process.stderr.readline()
        yield process
    finally:
        process.terminate()
        process.wait()


async def ask(target: int) -> None:
    """The agent: prints the answer to one question, and keeps the conversation until it is ended."""
    async with PodReclaim(SOCKET, ROOT, UID, CONTAINER, SystemClock()).connect() as connection:
        await connection.send(DownscaleRequest(Resources(MilliCpu(1000), Bytes(target))), 2)
        answer = await connection.receive()
        assert isinstance(answer, DownscaleResult)
        print(json.dumps([answer.ok, answer.status]), flush=True)
        await asyncio.Event().wait()


@contextmanager
def asking(target: int, user: int = 65532) -> Iterator[subprocess.Popen[bytes]]:
    """An agent that asks for ``target``."""
    command = [PYTHON, __file__, str(target)]
    with subprocess.Popen(command, user=user, stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


def answer(process: subprocess.Popen[bytes]) -> tuple[bool, str]:
    assert process.stdout is not None
    ok, status = json.loads(process.stdout.readline())
    return ok, status


def wait_until_held() -> None:
    """A long reclaim comes in parts."""
    while limit("memory.high", pod()) != "152 MiB":
        sleep(0.05)


def seconds_until_released() -> float:
    began = monotonic()
    while limit("memory.high", pod()) != "max":
        sleep(0.05)
        assert monotonic() - began < 30
    return monotonic() - began


def used() -> int:
    return MemoryFiles.of(pod()).read().used // MIB


def kills() -> int:
    sample = asyncio.run(CgroupMetrics(ROOT, UID, CONTAINER).scrape())
    return int(sample.oom_kills or 0)


def main() -> Iterator[tuple[str, object]]:
    """The whole story."""
    make_pod()
    for story in (metered, agreed, harmed, crashed, killed):
        yield from story()


def metered() -> Iterator[tuple[str, object]]:
    """A pod full of page cache."""
    fill()
    sample = asyncio.run(CgroupMetrics(ROOT, UID, CONTAINER).scrape())
    yield (
        "sample",
        {name: getattr(value, "value", value) for name, value in structs.asdict(sample).items() if name != "cpus"},
    )
    yield "scrape_microseconds", scrape_cost()
    yield "full", used()


def agreed() -> Iterator[tuple[str, object]]:
    """It gives its page cache, and the hold goes once the limit is in force."""
    began = monotonic()
    with reclaimer(), asking(160 * MIB) as process:
        wait_until_held()
        yield "held_at", limit("memory.high", pod())
        sleep(2)
        yield "used_while_held", used()
        yield "answer", answer(process)
        yield "answered_after", monotonic() - began
        # As the kubelet does.
        for group in (container(), pod()):
            limit("memory.max", group, 160 * MIB)
        yield "released_after", seconds_until_released()
    for group in (pod(), container()):
        limit("memory.max", group, 300 * MIB)


def harmed() -> Iterator[tuple[str, object]]:
    """A pod that reads its page cache, one whose programs need it, and an agent that is none."""
    fill()
    with reclaimer():
        with running(READ):
            sleep(3)
            began = monotonic()
            with asking(120 * MIB) as process:
                yield "answer_of_a_reader", answer(process)
                yield "reader_answered_after", monotonic() - began
                yield "reader_released_after", seconds_until_released()
        with running(HOLD) as program:
            assert program.stdout is not None
            program.stdout.readline()
            with asking(128 * MIB) as process:
                yield "answer_of_a_program", answer(process)
            yield "program_lives", program.poll() is None
        with asking(160 * MIB, user=1000) as process:
            yield "answer_of_a_stranger", answer(process)


def crashed() -> Iterator[tuple[str, object]]:
    """A reclaimer that is killed while it holds."""
    with reclaimer() as process, asking(160 * MIB):
        wait_until_held()
        process.send_signal(signal.SIGKILL)
        process.wait()
        yield "left_by_a_crash", limit("memory.high", pod())
    with reclaimer():
        yield "after_the_next_start", limit("memory.high", pod())


def killed() -> Iterator[tuple[str, object]]:
    """Nothing has been killed so far; a program that grows beyond the limit is."""
    yield "kills", kills()
    in_container(GROW).wait()
    yield "kills_after_one", kills()


def scrape_cost() -> float:
    """Microseconds of CPU for one scrape."""
    source, times = CgroupMetrics(ROOT, UID, CONTAINER), 200

    async def scrape() -> None:
        for _ in range(times):
            await source.scrape()

    began = process_time()
    asyncio.run(scrape())
    return (process_time() - began) / times * 1e6


if __name__ == "__main__":
    if sys.argv[1:]:
        asyncio.run(ask(int(sys.argv[1])))
    else:
        for seen in main():
            print("SAW", json.dumps(seen), flush=True)
