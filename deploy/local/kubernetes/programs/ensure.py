"""Has the programs built in a process of their own, which ends with this one however that ends."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# A PID namespace of its own: if its first process is killed, the kernel kills all compilers with it.
_APART: Final = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--")


class NoProgramsError(Exception):
    """The programs could not be built; the message says why."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Folders of each module set's programs, by name, and the images made of them."""

    folders: Mapping[str, Path]
    images: Path

    @property
    def kubernetes(self) -> Path:
        """The folder with the programs of Kubernetes itself."""
        return next(folder for name, folder in self.folders.items() if name.startswith("kubernetes-"))


async def ensure_programs(minor: str, add_ons: Sequence[str], report: Callable[[str], None]) -> Programs:
    """The programs for a minor version of Kubernetes and its add-ons, built if they are missing.

    Raises ``NoProgramsError``.
    """
    output = await built_apart("deploy.local.kubernetes.programs", [minor, *add_ons], report)
    folders = {name: Path(folder) for name, folder in json.loads(output).items()}
    return Programs({name: folder for name, folder in folders.items() if name != "images"}, folders["images"])


async def built_apart(module: str, arguments: Sequence[str], report: Callable[[str], None]) -> str:
    """Has a module build in a process of its own; returns the line of JSON that it prints. Other lines are reported.

    Raises ``NoProgramsError`` if it fails.
    """
    process = await asyncio.create_subprocess_exec(
        # The kernel kills the build with this process, however that ends.
        *("setpriv", "--pdeathsig", "KILL", "--", *_APART),
        *(sys.executable, "-P", "-m", module, *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        # Both pipes are read while the process runs, so that neither fills up and blocks it.
        async with asyncio.TaskGroup() as tasks:
            complaint = tasks.create_task(_text(process.stderr))
            outcome = tasks.create_task(_outcome(process.stdout, report))
        if await process.wait():
            raise NoProgramsError(complaint.result().strip() or "the build ended without a word")
    finally:
        # Shielded: a cancelled caller must not leave a build behind.
        await asyncio.shield(_end(process))
    return outcome.result()


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends the build and everything that it started at once; the cache stays consistent."""
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()


async def _outcome(said: asyncio.StreamReader | None, report: Callable[[str], None]) -> str:
    """The line that is JSON; all others are reported as they come."""
    while said is not None and (line := (await said.readline()).decode(errors="replace").strip()):
        if line.startswith("{"):
            return line
        report(line)
    return ""


async def _text(said: asyncio.StreamReader | None) -> str:
    return (await said.read()).decode(errors="replace") if said is not None else ""
