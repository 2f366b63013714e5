"""Starting, stopping and cleaning up clusters, for the command line.

The processes of a killed cluster die with it (PR_SET_PDEATHSIG). This module removes its other leftovers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import msgspec

from deploy.local.cluster.folder import AlreadyRunningError, ClusterFolder, ClusterLock
from deploy.local.cluster.progress import Step, StepFailedError, StepState
from deploy.local.cluster.spec import ClusterSpec, SpecError
from deploy.local.kubernetes.machine.control_groups import remove_group
from deploy.local.kubernetes.machine.survey import survey
from deploy.local.kubernetes.plan.cluster_plan import cgroup_of
from deploy.local.kubernetes.plan.requirements import missing
from deploy.neonvm.network.hub import HubNetwork
from deploy.neonvm.network.namespaces import NamespaceNetwork
from deploy.neonvm.qemu.qemu_process import Qemu
from protocol.runtime.clock import Clock, wait_until
from protocol.runtime.open_files import open_files_limit
from protocol.units import Seconds

_TIMEOUT: Final = Seconds(30.0)
_KILL_TIMEOUT: Final = Seconds(5.0)
MIN_OPEN_FILES: Final = 1024
"""The process of a small cluster opens a few hundred files."""


class LaunchedCluster:
    """A cluster's process, started by ``launch``."""

    def __init__(self, folder: ClusterFolder, process: subprocess.Popen[bytes]) -> None:
        self._folder = folder
        self._process = process

    async def follow(self, on_step: Callable[[Step], None]) -> None:
        """Call ``on_step`` for every step; return when the cluster is ready. Raises ``StepFailedError``."""
        async with _output(self._process) as lines:
            while line := await lines.readline():
                step = msgspec.json.decode(line, type=Step)
                if step.state is StepState.FAILED:
                    # The process has the folder's lock until it ends.
                    await self.wait()
                    raise StepFailedError(step.text, step.log)
                on_step(step)
                if step.state is StepState.READY:
                    return
        raise StepFailedError("the cluster's process exited unexpectedly", str(self._folder.log("cluster")))

    async def wait(self) -> int:
        """Wait until the cluster has ended; return the exit code."""
        return await asyncio.to_thread(self._process.wait)

    async def end(self) -> None:
        """Stop the cluster with SIGTERM, then SIGKILL; return when its process has exited."""
        self._process.terminate()
        try:
            async with asyncio.timeout(_TIMEOUT):
                await self.wait()
        except TimeoutError:
            self._process.kill()
            await self.wait()
        # If another command has the lock, that command cleans up.
        with suppress(AlreadyRunningError), self._folder.locked():
            await remove_leftovers(self._folder)


@asynccontextmanager
async def _output(process: subprocess.Popen[bytes]) -> AsyncIterator[asyncio.StreamReader]:
    """A reader of the process's standard output."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, process.stdout)
    try:
        yield reader
    finally:
        transport.close()


async def launch(
    folder: ClusterFolder, spec: ClusterSpec, *, attached: bool, fresh: bool = False, recorder: Sequence[str] = ()
) -> LaunchedCluster:
    """Start the cluster of ``folder``.

    ``attached``: the cluster ends with this process. ``fresh``: remove the state of an earlier cluster first.
    ``recorder``: the command line of the history recorder, which the cluster keeps running.

    Raises ``AlreadyRunningError``, and ``SpecError`` before anything is created.
    """
    if folder.is_running():
        raise AlreadyRunningError(folder.name)
    spec.check()
    # -1: unlimited.
    if 0 <= (hard := open_files_limit()) < MIN_OPEN_FILES:
        remedy = f"raise the hard limit (ulimit -Hn {MIN_OPEN_FILES}, as root)"
        raise SpecError(f"a local cluster needs {MIN_OPEN_FILES} open files, the limit is {hard}: {remedy}")
    if spec.kubernetes and (unmet := missing(await survey(folder.root.parent), len(spec.node_specs))):
        raise SpecError(f"a real Kubernetes cannot run here: {'; '.join(unmet)}")
    with folder.locked() as lock:
        await remove_leftovers(folder)
        if fresh:
            folder.clear()
        folder.write_spec(spec)
        folder.logs.mkdir(parents=True, exist_ok=True)
        return LaunchedCluster(folder, _spawn(folder, lock, recorder, attached=attached))


def _spawn(
    folder: ClusterFolder, lock: ClusterLock, recorder: Sequence[str], *, attached: bool
) -> subprocess.Popen[bytes]:
    """Start the cluster's process, which inherits the lock."""
    # -P: do not import modules from the working directory.
    command = [sys.executable, "-P", "-m", "deploy.local.cluster", folder.name, *recorder]
    # The kernel stops the cluster when this process ends, even by SIGKILL.
    prefix = ["setpriv", "--pdeathsig", "TERM", "--"] if attached else []
    with folder.log("cluster").open("wb") as log:
        # Not asyncio's: since Python 3.13, closing the event loop kills the process, even a detached one.
        return subprocess.Popen(
            [*prefix, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "AUTOSCALE_HOME": str(folder.root.parent), **lock.environment},
            pass_fds=lock.descriptors,
            # Ctrl-C reaches this process only, which then stops the cluster.
            start_new_session=True,
        )


async def stop(folder: ClusterFolder, clock: Clock) -> bool:
    """Stop the cluster of ``folder`` and remove the folder; return True if it was running.

    Raises ``AlreadyRunningError`` if another command is starting or removing it.
    """
    owner = folder.owner()
    if owner is not None:
        for number, time_limit in ((signal.SIGTERM, _TIMEOUT), (signal.SIGKILL, _KILL_TIMEOUT)):
            with suppress(ProcessLookupError):
                os.kill(owner, number)
            # Check the lock and not the pid, which may be reused.
            if await wait_until(lambda: not folder.is_running(), clock, time_limit):
                break
    with folder.locked():
        await remove_leftovers(folder)
        folder.remove()
    return owner is not None


async def remove_leftovers(folder: ClusterFolder) -> None:
    """Remove a killed cluster's namespaces, control groups and network hub."""
    if not folder.exists():
        return
    # Only root can create namespaces and control groups.
    if os.geteuid() == 0:
        await NamespaceNetwork(folder.name, "to be removed").down()
        await asyncio.to_thread(remove_group, cgroup_of(folder.name))
    await HubNetwork(folder.name, "to be removed", Qemu()).down()
    folder.control.unlink(missing_ok=True)


def log_tail(log: str) -> str:
    """The last lines of a log; empty if it cannot be read."""
    try:
        with open(log, errors="replace") as file:  # noqa: PTH123 - the path came as text
            return "".join(file.readlines()[-12:]).rstrip()
    except OSError:
        return ""
