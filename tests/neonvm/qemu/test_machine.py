"""A machine's process: its monitor, why its guest fails, and its end. A small program imitates QEMU."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu import qemu_process
from deploy.neonvm.qemu.qemu_process import Qemu, QemuProcess

_PLAYED = """
import json, socket, sys
monitor = socket.socket(fileno=int(sys.argv[1]))
def say(what):
    monitor.sendall(json.dumps(what).encode() + b"\\n")
say({"QMP": {"version": {"qemu": {"major": 7, "minor": 2, "micro": 0}, "package": ""}, "capabilities": []}})
def orders():
    said = ""
    while part := monitor.recv(65536):
        said += part.decode()
        while said:
            order, end = json.JSONDecoder().raw_decode(said)
            said = said[end:].lstrip()
            yield order
for order in orders():
    named = {"id": order["id"]} if "id" in order else {}
    if order["execute"] == "hang up":
        sys.exit("terrible things happened")
    if order["execute"] == "complain":
        sys.stderr.write("bad guest\\n" * order["arguments"]["lines"])
        sys.stderr.flush()
    if order["execute"] == "query-status":
        say({"return": {"status": sys.argv[2], "running": False}, **named})
        continue
    if order["execute"] == "happen":
        for event in order["arguments"]["events"]:
            say({"timestamp": {"seconds": 1, "microseconds": 0}, **event})
    if order["execute"] == "refuse":
        say({"error": {"class": "GenericError", "desc": "no such property"}, **named})
        continue
    say({"return": order["arguments"] if order["execute"] == "echo" else {}, **named})
    if order["execute"] == "quit":
        sys.exit()
"""


def program(text: str, run_state: str = "running") -> Callable[[int], Sequence[str]]:
    return lambda fd: [sys.executable, "-c", text, str(fd), run_state]


async def test_orders_reach_machine_until_quit(tmp_path: Path) -> None:
    machine = await QemuProcess.launch("db", program(_PLAYED), tmp_path / "log")
    assert machine.alive
    assert await machine.call("echo", {"value": 1}) == {"value": 1}
    with pytest.raises(GuestError, match="db: QEMU refused refuse: no such property"):
        await machine.call("refuse")
    for _ in range(2):
        await machine.end()
        assert not machine.alive


async def test_dead_machine_refuses_orders(tmp_path: Path) -> None:
    machine = await QemuProcess.launch("db", program(_PLAYED), tmp_path / "log")
    with pytest.raises(GuestError, match="db: QEMU refused hang up"):
        await machine.call("hang up")
    await machine.end()
    assert not machine.alive
    assert (tmp_path / "log").read_text() == "terrible things happened\n"


async def test_output_of_qemu_fills_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest that breaks virtio's rules in a loop makes QEMU print a line each time: 40 GB a day."""
    monkeypatch.setattr(qemu_process, "_LOG_CHECK", 0.01)
    log = tmp_path / "log"
    machine = await QemuProcess.launch("db", program(_PLAYED), log)
    await machine.call("complain", {"lines": 1})
    assert log.read_text() == "bad guest\n"
    await machine.call("complain", {"lines": 100_000})
    for _ in range(500):
        if not log.stat().st_size:
            break
        await asyncio.sleep(0.01)
    with pytest.raises(GuestError):
        await machine.call("hang up")
    await machine.end()
    assert machine.output_tail() == "terrible things happened"


async def test_failed_start_quotes_last_output(tmp_path: Path) -> None:
    with pytest.raises(GuestError, match=r"db: QMP negotiation failed: .*; its output: no such machine type"):
        await Qemu().launch("db", program("import sys; sys.exit('no such machine type')"), tmp_path / "log")


async def test_a_program_that_is_missing_is_no_machine(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await Qemu().launch("db", lambda _: ["no-such-hypervisor"], tmp_path / "log")


@pytest.mark.parametrize(
    ("events", "run_state", "reason"),
    [
        ([{"event": "GUEST_PANICKED", "data": {"action": "poweroff"}}], "shutdown", "its kernel panicked"),
        ([{"event": "SHUTDOWN", "data": {"guest": True, "reason": "guest-reset"}}], "shutdown", "it rebooted"),
        (
            [{"event": "SHUTDOWN", "data": {"guest": True, "reason": "guest-shutdown"}}],
            "shutdown",
            "it powered off",
        ),
        (
            [{"event": "SHUTDOWN", "data": {"guest": False, "reason": "host-qmp-system-reset"}}],
            "shutdown",
            "its machine was reset",
        ),
        ([{"event": "RESET", "data": {"guest": False, "reason": "none"}}], "running", "its machine was reset"),
        (
            [{"event": "STOP"}],
            "internal-error",
            "internal-error: KVM cannot execute an instruction of the guest",
        ),
    ],
)
async def test_failure_reason_precedes_qemu_exit(
    tmp_path: Path, events: list[dict[str, object]], run_state: str, reason: str
) -> None:
    machine = await QemuProcess.launch("db", program(_PLAYED, run_state), tmp_path / "log")
    await machine.call("happen", {"events": events})
    async with asyncio.timeout(5):
        assert await machine.failed() == reason
    assert not machine.alive
    assert await machine.call("echo", {"value": 1}) == {"value": 1}
    await machine.end()
    assert await machine.failed() == reason


_FULL = _PLAYED.replace(
    "for order in orders():",
    """asked, tries = [], 0
for order in orders():
    asked.append(order["execute"])
    if order["execute"] == "cont":
        tries += 1
        say({"event": "RESUME", "timestamp": {}})
        if tries == 1:
            say({"event": "STOP", "timestamp": {}})
        else:
            sys.argv[2] = "running"
    if order["execute"] == "query-migrate":
        status = "active" if asked.count("query-migrate") == 1 else ""
        say({"return": {"status": status}, "id": order["id"]})
        continue
    if order["execute"] == "asked":
        say({"return": asked, "id": order["id"]})
        continue""",
)


async def test_guest_continues_once_there_is_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another pod had filled the node's disk; the guest is resumed until it keeps running. A guest that migrates is
    left alone.
    """
    monkeypatch.setattr(qemu_process, "_SPACE_SECONDS", 0.01)
    machine = await QemuProcess.launch("db", program(_FULL, "io-error"), tmp_path / "log")
    await machine.call("happen", {"events": [{"event": "STOP"}]})
    asked: object = []
    for _ in range(500):
        if isinstance(asked := await machine.call("asked"), list) and asked.count("cont") == 2:
            break
        await asyncio.sleep(0.01)
    check = ["query-status", "query-migrate", "query-status", "cont"]
    assert isinstance(asked, list)
    told = [order for order in asked if order in check]
    assert told[:10] == [*check[:2], *check, *check]
    assert machine.alive
    await machine.end()


async def test_hanging_failed_machine_is_killed(tmp_path: Path) -> None:
    deaf = _PLAYED.replace('order["execute"] == "quit"', "False")
    machine = await QemuProcess.launch("db", program(deaf, "internal-error"), tmp_path / "log")
    await machine.call("happen", {"events": [{"event": "STOP"}]})
    assert (await machine.failed()).startswith("internal-error")
    async with asyncio.timeout(3):
        await machine.end()
    assert not machine.alive


async def test_reported_failure_needs_no_further_answer(tmp_path: Path) -> None:
    """It was known half a minute later, after three attempts to ask a QEMU that hangs for more."""
    answer = 'say({"return": {"status": sys.argv[2], "running": False}, **named})'
    assert answer in _PLAYED
    machine = await QemuProcess.launch("db", program(_PLAYED.replace(answer, "pass")), tmp_path / "log")
    await machine.call("happen", {"events": [{"event": "GUEST_PANICKED", "data": {"action": "poweroff"}}]})
    async with asyncio.timeout(5):
        assert await machine.failed() == "its kernel panicked"
    await machine.end()


async def test_migration_pause_is_no_failure(tmp_path: Path) -> None:
    machine = await QemuProcess.launch("db", program(_PLAYED, "postmigrate"), tmp_path / "log")
    await machine.call("happen", {"events": [{"event": "STOP"}, {"event": "RESUME"}]})
    assert await machine.call("echo", {"value": 1}) == {"value": 1}
    assert machine.alive
    await machine.end()
    assert await machine.failed() == "QEMU exited with code 0"


async def test_killed_process_fails_at_once(tmp_path: Path) -> None:
    machine = await QemuProcess.launch("db", program(_PLAYED), tmp_path / "log")
    waiting = asyncio.ensure_future(machine.failed())
    os.kill(machine._process.pid, signal.SIGKILL)
    async with asyncio.timeout(1):
        assert await waiting == "QEMU was killed by SIGKILL"
    assert not machine.alive
    await machine.kill()
