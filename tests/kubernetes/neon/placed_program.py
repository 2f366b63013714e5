"""A program that runs in a place: its output and its responses, and how to start ours."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.neonvm.network.netns import socket_in
from tests.deploy.manifests import ROOT
from tests.kubernetes.failing.fleet import until
from tests.kubernetes.neon.places import Place
from tests.kubernetes.real_kubernetes import PATIENCE
from tests.kubernetes.scheduling.programs import asked


@dataclass(slots=True)
class Program:
    """One that runs in a place: its pod, its log, and its process."""

    name: str
    place: Place
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def said(self) -> str:
        """Its log."""
        return (self.folder / "log").read_text()

    def ask(self, method: str, port: int, path: str, body: object = None) -> tuple[int, Any]:
        """Status and content of one answer of the program. Raises ``OSError`` if there is none."""
        return asked(self._namespace, self.place.address, method, port, path, body=body)

    def explains(self, port: int, path: str) -> tuple[int, Any]:
        """Its response to a request from its own loopback, as from a port-forward."""
        return asked(self._namespace, "127.0.0.1", "GET", port, path)

    @property
    def _namespace(self) -> str:
        return f"/proc/{self.place.holder}/ns/net"


def listens(place: Place, port: int) -> bool:
    """True if something listens at that port of the place."""
    with socket_in(f"/proc/{place.holder}/ns/net") as probe:
        probe.settimeout(2.0)
        return probe.connect_ex((place.address, port)) == 0


async def until_up(answers: Callable[[], Awaitable[object]], program: Program) -> None:
    """Wait until ``answers`` returns True; an ``OSError`` means not yet."""

    async def is_up() -> bool:
        assert program.process is None or program.process.poll() is None, program.said[-3000:]
        try:
            return bool(await answers())
        except OSError:
            return False

    await until(is_up, f"{program.name} answers; {program.folder / 'log'}", PATIENCE)


@asynccontextmanager
async def ours_in(
    made: Program, *command: str, program: str = sys.executable, log: str = "log", **environment: str
) -> AsyncIterator[None]:
    """One of our programs at work in its place; it must still run when it is ended."""
    argv = [*made.place.enter, "setpriv", "--pdeathsig", "KILL", "--", program, *command]
    path = made.folder / log
    with path.open("ab") as said:
        known = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
            argv, stdout=said, stderr=said, env=known, start_new_session=True
        )
    try:
        yield
        assert process.poll() is None, f"it has ended: {path.read_text()[-3000:]}"
        assert "Traceback" not in path.read_text()
    finally:
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, 10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
