"""Runs builds in a child process, which never outlives this one."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# In a PID namespace: killing its init process kills all compilers too.
_UNSHARE: Final = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--")


class NoProgramsError(Exception):
    """The programs could not be built; the message says why."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Folders of programs by module set, and a folder of image archives."""

    folders: Mapping[str, Path]
    images: Path

    @property
    def kubernetes(self) -> Path:
        """The folder of Kubernetes' own programs."""
        return next(folder for name, folder in self.folders.items() if name.startswith("kubernetes-"))


async def ensure_programs(minor: str, add_ons: Sequence[str], report: Callable[[str], None]) -> Programs:
    """The programs of Kubernetes ``minor`` and its add-ons; builds them if necessary. Raises ``NoProgramsError``."""
    output = await run_build("deploy.local.kubernetes.programs", [minor, *add_ons], report)
    folders = {name: Path(folder) for name, folder in json.loads(output).items()}
    return Programs({name: folder for name, folder in folders.items() if name != "images"}, folders["images"])


async def run_build(module: str, arguments: Sequence[str], report: Callable[[str], None]) -> str:
    """Run the build ``module`` in a child process; return the line of JSON that it prints, and report the others.

    Raises ``NoProgramsError``.
    """
    process = await asyncio.create_subprocess_exec(
        # The kernel kills the build when this process ends.
        *("setpriv", "--pdeathsig", "KILL", "--", *_UNSHARE),
        *(sys.executable, "-P", "-m", module, *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        # Both pipes are read concurrently, so that neither fills up and blocks the build.
        async with asyncio.TaskGroup() as tasks:
            error = tasks.create_task(_text(process.stderr))
            result = tasks.create_task(_result(process.stdout, report))
        if await process.wait():
            raise NoProgramsError(error.result().strip() or f"the build failed: exit code {process.returncode}")
    finally:
        # Shielded: a cancelled caller must not leave a build behind.
        await asyncio.shield(_kill(process))
    return result.result()


async def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()


async def _result(output: asyncio.StreamReader | None, report: Callable[[str], None]) -> str:
    """The line of JSON; reports other lines."""
    while output is not None and (line := (await output.readline()).decode(errors="replace").strip()):
        if line.startswith("{"):
            return line
        report(line)
    return ""


async def _text(output: asyncio.StreamReader | None) -> str:
    return (await output.read()).decode(errors="replace") if output is not None else ""
