"""The application in a real terminal: it ends by q and Ctrl-C, and restores the terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time

import pytest

pytestmark = pytest.mark.terminal

_PROGRAM = """
import asyncio
from tests.scripts.top.fleet_fixture import Scene
from scripts.autoscale.top.app import TopApp
asyncio.run(TopApp(Scene(), 1.0).run_async())
"""
_PATIENCE = 60.0
_FIRST_SIGN_OF_LIFE = b"orders-10"


def _read_until(terminal: int, sign: bytes) -> bytes:
    """Everything until ``sign``, or until the program has ended."""
    found, deadline = b"", time.monotonic() + _PATIENCE
    while sign not in found:
        assert time.monotonic() < deadline, found[-500:]
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                found += os.read(terminal, 65536)
            except OSError:  # the other end is closed
                return found
    return found


@pytest.mark.parametrize("key", [b"q", b"\x03"], ids=["q", "ctrl-c"])
def test_quit_key_restores_the_terminal(key: bytes) -> None:
    terminal, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
    before = termios.tcgetattr(theirs)
    environment = {**os.environ, "TERM": "xterm-256color"}
    actions = [(os.POSIX_SPAWN_DUP2, theirs, each) for each in (0, 1, 2)]
    child = os.posix_spawn(sys.executable, [sys.executable, "-c", _PROGRAM], environment, file_actions=actions)
    shown = _read_until(terminal, _FIRST_SIGN_OF_LIFE)
    os.write(terminal, key)
    shown += _read_until(terminal, b"\x1b[?1049l")
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (b"\x1b[?1049h" in shown, termios.tcgetattr(theirs)) == (True, before)
    os.close(terminal)
    os.close(theirs)
