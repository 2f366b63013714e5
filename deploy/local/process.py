"""Child processes that are kept running, and never outlive this process.

A child ends with the thread that started it (``deploy.owned_process``), so children are started from the main thread.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from deploy.owned_process import owned
from protocol.backoff import Backoff, Retries
from protocol.runtime.clock import Clock
from protocol.units import Seconds

_PATIENCE: Final = Seconds(4.0)
_BACKOFF: Final = Backoff(Seconds(1.0), Seconds(15.0))
# A program that ran this long counts as healthy, and its next failure starts at the shortest pause again.
_STEADY: Final = Seconds(30.0)
_STRANGE: Final = ("CONTAINERD_", "ETCD_", "ETCDCTL_", "KUBECONFIG", "KUBERNETES_")


@dataclass(frozen=True, slots=True)
class LocalProgram:
    """A program to run: ``enter`` leads into its network, ``environment`` is added to ours, its output goes to ``log``.

    ``patience`` is how long it may take to end after SIGTERM.
    """

    command: Sequence[str]
    log: Path
    enter: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    inherit: Sequence[int] = ()
    patience: Seconds = _PATIENCE

    @property
    def argv(self) -> list[str]:
        """The whole command line."""
        return owned(self.command, self.enter)


def without_strange_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` without settings that would mislead programs of a cluster."""
    # A proxy leads out of a network that has no way out, and etcd exits if a variable repeats one of its flags.
    return {
        name: value
        for name, value in environment.items()
        if not name.lower().endswith("_proxy") and not name.startswith(_STRANGE)
    }


async def start(program: LocalProgram) -> asyncio.subprocess.Process:
    """Starts ``program`` once. Raises ``OSError``."""
    program.log.parent.mkdir(parents=True, exist_ok=True)
    # Append mode: after a restart, the log of the crashed run explains it.
    with program.log.open("ab") as log:
        return await asyncio.create_subprocess_exec(
            *program.argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**without_strange_settings(os.environ), **program.environment},
            pass_fds=tuple(program.inherit),
            # A session of its own: Ctrl-C reaches the owner alone, which then ends its children in order.
            start_new_session=True,
        )


async def end(process: asyncio.subprocess.Process, patience: Seconds = _PATIENCE) -> None:
    """Ends ``process`` with SIGTERM, or SIGKILL after ``patience``; returns when it is gone."""
    with suppress(ProcessLookupError):
        if process.returncode is None:
            process.terminate()
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await process.wait()
    finally:
        # Also runs if this task is cancelled while it waits: the child must not stay behind.
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


class ProcessSupervisor:
    """Keeps one program running: one that ends is started again, after a pause if it ends quickly."""

    def __init__(self, program: LocalProgram, clock: Clock) -> None:
        self._program = program
        self._clock = clock
        self.pid: int | None = None
        self.restarts = 0

    async def run(self) -> None:
        """Runs the program until cancelled, which ends it. One that cannot be started counts as ended."""
        retries = Retries(_BACKOFF, _STEADY)
        while True:
            began = self._clock.now()
            await self._once()
            self.restarts += 1
            ran = Seconds(self._clock.now() - began)
            await self._clock.sleep(retries.failed(self._clock.jitter(), ran))

    async def _once(self) -> None:
        try:
            process = await start(self._program)
        except OSError as error:
            with suppress(OSError):  # the error may be that the log cannot be written
                self._program.log.write_text(f"{self._program.argv[0]} cannot be started: {error}\n")
            return
        self.pid = process.pid
        try:
            await process.wait()
        finally:
            await end(process, self._program.patience)
            self.pid = None
