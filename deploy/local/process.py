"""Supervised child processes that never outlive this process.

A child dies with the thread that started it (``deploy.owned_process``), so start children from the main thread.
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

_GRACE_PERIOD: Final = Seconds(4.0)
_BACKOFF: Final = Backoff(Seconds(1.0), Seconds(15.0))
_RESET_AFTER: Final = Seconds(30.0)
"""A program that ran this long counts as healthy: after its next exit, the backoff starts from the beginning."""
_MISLEADING: Final = ("CONTAINERD_", "ETCD_", "ETCDCTL_", "KUBECONFIG", "KUBERNETES_")


@dataclass(frozen=True, slots=True)
class LocalProgram:
    """A program to run.

    ``enter`` is the command prefix that enters its network namespace, ``environment`` is added to ours, ``inherit`` are
    file descriptors to pass on, stdout and stderr are appended to ``log``. SIGKILL follows
    SIGTERM after ``grace_period``.
    """

    command: Sequence[str]
    log: Path
    enter: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    inherit: Sequence[int] = ()
    grace_period: Seconds = _GRACE_PERIOD

    @property
    def argv(self) -> list[str]:
        """The command line, with the namespace prefix."""
        return owned(self.command, self.enter)


def without_misleading_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` without variables that break a cluster's programs."""
    # A proxy is unreachable from the cluster's network, and etcd exits if a variable repeats one of its flags.
    return {
        name: value
        for name, value in environment.items()
        if not name.lower().endswith("_proxy") and not name.startswith(_MISLEADING)
    }


async def start(program: LocalProgram) -> asyncio.subprocess.Process:
    """Start ``program`` once. Raises ``OSError``."""
    program.log.parent.mkdir(parents=True, exist_ok=True)
    # Append mode: a restart must keep the output of the crashed run.
    with program.log.open("ab") as log:
        return await asyncio.create_subprocess_exec(
            *program.argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**without_misleading_variables(os.environ), **program.environment},
            pass_fds=tuple(program.inherit),
            # Own session: Ctrl-C reaches the owner only, which then stops its children in order.
            start_new_session=True,
        )


async def end(process: asyncio.subprocess.Process, grace_period: Seconds = _GRACE_PERIOD) -> None:
    """Stop ``process`` with SIGTERM, then SIGKILL after ``grace_period``; return when it has exited."""
    with suppress(ProcessLookupError):
        if process.returncode is None:
            process.terminate()
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_period):
                await process.wait()
    finally:
        # Also on cancellation: the child must not be left behind.
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


class ProcessSupervisor:
    """Keeps one program running: restarts it when it exits, with backoff."""

    def __init__(self, program: LocalProgram, clock: Clock) -> None:
        self._program = program
        self._clock = clock
        self.pid: int | None = None
        self.restarts = 0

    async def run(self) -> None:
        """Run the program until cancelled, then stop it. Failing to start counts as an exit."""
        retries = Retries(_BACKOFF, _RESET_AFTER)
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
            await end(process, self._program.grace_period)
            self.pid = None
