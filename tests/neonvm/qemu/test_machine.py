"""A machine's process: its monitor on an inherited socket, its last words, and its end. A small program plays QEMU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.machine import Qemu, QemuProcess

_PLAYED = """
import json, socket, sys
monitor = socket.socket(fileno=int(sys.argv[1]))
def say(what):
    monitor.sendall(json.dumps(what).encode() + b"\\n")
say({"QMP": {"version": {"qemu": {"major": 7, "minor": 2, "micro": 0}, "package": ""}, "capabilities": []}})
while said := monitor.recv(65536):  # the client waits for each answer, so one piece is one order
    order = json.loads(said)
    named = {"id": order["id"]} if "id" in order else {}
    if order["execute"] == "hang up":
        sys.exit("terrible things happened")
    if order["execute"] == "refuse":
        say({"error": {"class": "GenericError", "desc": "no such property"}, **named})
        continue
    say({"return": order["arguments"] if order["execute"] == "echo" else {}, **named})
    if order["execute"] == "quit":
        sys.exit()
"""


def program(text: str) -> Callable[[int], Sequence[str]]:
    return lambda fd: [sys.executable, "-c", text, str(fd)]


async def test_orders_reach_the_machine_and_it_ends_when_told(tmp_path: Path) -> None:
    machine = await QemuProcess.launch("db", program(_PLAYED), tmp_path / "log")
    assert machine.alive
    assert await machine.call("echo", {"value": 1}) == {"value": 1}
    with pytest.raises(GuestError, match="db: QEMU refused refuse: no such property"):
        await machine.call("refuse")
    for _ in range(2):
        await machine.end()
        assert not machine.alive


async def test_a_machine_that_dies_is_dead_and_says_so_to_the_next_order(tmp_path: Path) -> None:
    machine = await QemuProcess.launch("db", program(_PLAYED), tmp_path / "log")
    with pytest.raises(GuestError, match="db: QEMU refused hang up"):
        await machine.call("hang up")
    await machine.end()
    assert not machine.alive
    assert (tmp_path / "log").read_text() == "terrible things happened\n"


async def test_a_machine_that_does_not_come_up_leaves_its_last_words_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(GuestError, match=r"db: QEMU did not open its monitor: .*; it said: no such machine type"):
        await Qemu().launch("db", program("import sys; sys.exit('no such machine type')"), tmp_path / "log")


async def test_a_program_that_is_missing_is_no_machine(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await Qemu().launch("db", lambda _: ["no-such-hypervisor"], tmp_path / "log")
