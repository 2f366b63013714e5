"""Starting, ending and cleaning up clusters from another process: what the command line does.

- A launch that is cancelled ends what it launched before it returns.
- A killed cluster leaves no process (the kernel sees to that); whatever else it leaves is removed here.
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

from deploy.local.cluster.folder import AlreadyRunsError, ClusterFolder, ClusterLock
from deploy.local.cluster.progress import Step, StepFailedError, StepState
from deploy.local.cluster.spec import ClusterSpec, SpecError
from deploy.local.kubernetes.machine.control_groups import remove_group
from deploy.local.kubernetes.machine.survey import survey
from deploy.local.kubernetes.plan.cluster_plan import cgroup_of
from deploy.local.kubernetes.plan.requirements import missing
from deploy.neonvm.network.hub import HubNetwork
from deploy.neonvm.network.namespaces import NamespaceNetwork
from deploy.neonvm.qemu.qemu_process import Qemu
from protocol.runtime.clock import Clock
from protocol.runtime.open_files import open_files_limit
from protocol.units import Instant, Seconds

_PATIENCE: Final = Seconds(30.0)
_LAST_PATIENCE: Final = Seconds(5.0)
_PAUSE: Final = Seconds(0.05)
LEAST_OPEN_FILES: Final = 1024
"""A small cluster's process opens a few hundred; with a lower limit it would retry, and log, endlessly."""


class LaunchedCluster:
    """The process of a cluster that was started here."""

    def __init__(self, folder: ClusterFolder, process: subprocess.Popen[bytes]) -> None:
        self._folder = folder
        self._process = process

    async def follow(self, on_step: Callable[[Step], None]) -> None:
        """Reports every step; returns when the cluster is ready. Raises ``StepFailedError``."""
        async with _lines(self._process) as lines:
            while line := await lines.readline():
                step = msgspec.json.decode(line, type=Step)
                if step.state is StepState.FAILED:
                    # The lock of the folder is free only once the process has ended.
                    await self.wait()
                    raise StepFailedError(step.text, step.log)
                on_step(step)
                if step.state is StepState.READY:
                    return
        raise StepFailedError("the cluster's process ended without a word", str(self._folder.log("cluster")))

    async def wait(self) -> int:
        """Returns the exit code when the cluster has ended."""
        return await asyncio.to_thread(self._process.wait)

    async def end(self) -> None:
        """Ends the cluster; returns when its process is gone. One that does not end by itself is killed."""
        self._process.terminate()
        try:
            async with asyncio.timeout(_PATIENCE):
                await self.wait()
        except TimeoutError:
            self._process.kill()
            await self.wait()
        # If another command holds the lock already, that command cleans up.
        with suppress(AlreadyRunsError), self._folder.locked():
            await remove_remains(self._folder)


@asynccontextmanager
async def _lines(process: subprocess.Popen[bytes]) -> AsyncIterator[asyncio.StreamReader]:
    """Output of the process; its pipe is closed afterwards."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, process.stdout)
    try:
        yield reader
    finally:
        transport.close()


async def launch(
    folder: ClusterFolder, spec: ClusterSpec, *, attached: bool, fresh: bool = False, beside: Sequence[str] = ()
) -> LaunchedCluster:
    """Starts the cluster of ``folder``; ``attached`` ones end with this process, however it ends. ``fresh`` forgets an
    earlier cluster of that name first. ``beside`` is a command that the cluster keeps running, its recorder.

    Raises ``AlreadyRunsError``, and ``SpecError`` if there can be no such cluster; then it has no folder.
    """
    if folder.runs():
        raise AlreadyRunsError(folder.name)
    spec.check()
    # Negative means unlimited.
    if 0 <= (hard := open_files_limit()) < LEAST_OPEN_FILES:
        remedy = f"raise the hard limit (ulimit -Hn {LEAST_OPEN_FILES}, as root)"
        raise SpecError(f"a local cluster needs {LEAST_OPEN_FILES} open files, and may have {hard}: {remedy}")
    if spec.kubernetes and (lacks := missing(await survey(folder.root.parent), len(spec.node_specs))):
        raise SpecError(f"a real Kubernetes cannot run here: {'; '.join(lacks)}")
    # The lock keeps another command from starting or removing a cluster of that name meanwhile.
    with folder.locked() as lock:
        await remove_remains(folder)
        if fresh:
            folder.clear()
        folder.write_spec(spec)
        folder.logs.mkdir(parents=True, exist_ok=True)
        return LaunchedCluster(folder, _started(folder, lock, beside, attached=attached))


def _started(
    folder: ClusterFolder, lock: ClusterLock, beside: Sequence[str], *, attached: bool
) -> subprocess.Popen[bytes]:
    """The cluster's process, which has the lock from now on."""
    # -P: a folder named "agent" or "deploy" in the working directory must not hide ours.
    command = [sys.executable, "-P", "-m", "deploy.local.cluster", folder.name, *beside]
    # The kernel ends the cluster with this process, even if this process is killed with SIGKILL.
    fate = ["setpriv", "--pdeathsig", "TERM", "--"] if attached else []
    with folder.log("cluster").open("wb") as log:
        # Not asyncio's: Python 3.13 and later kill such processes with their event loop, so a detached cluster would
        # end with the command that started it.
        return subprocess.Popen(
            [*fate, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "AUTOSCALE_HOME": str(folder.root.parent), **lock.passed_on},
            pass_fds=lock.descriptors,
            # Ctrl-C reaches this process alone, which then ends the cluster in order.
            start_new_session=True,
        )


async def stop(folder: ClusterFolder, clock: Clock) -> bool:
    """Ends the running cluster of ``folder``; returns True if there was one. Nothing of it is left afterwards.

    Raises ``AlreadyRunsError`` if another command starts or removes it at the same time.
    """
    owner = folder.owner()
    if owner is not None:
        # SIGKILL leaves it no time to clean up; `remove_remains` below does that.
        for number, patience in ((signal.SIGTERM, _PATIENCE), (signal.SIGKILL, _LAST_PATIENCE)):
            with suppress(ProcessLookupError):
                os.kill(owner, number)
            if await _ended(folder, clock, patience):
                break
    with folder.locked():
        await remove_remains(folder)
        folder.remove()
    return owner is not None


async def _ended(folder: ClusterFolder, clock: Clock, patience: Seconds) -> bool:
    deadline = Instant(clock.now() + patience)
    # Asks the lock and not for the pid, which another process could reuse.
    while folder.runs():
        if clock.now() >= deadline:
            return False
        await clock.sleep(_PAUSE)
    return True


async def remove_remains(folder: ClusterFolder) -> None:
    """Removes what a killed cluster may have left in the kernel and in the file system outside of its folder."""
    if not folder.exists():
        return
    # Other users cannot make namespaces and control groups, so they leave none.
    if os.geteuid() == 0:
        await NamespaceNetwork(folder.name, "to be removed").down()
        await asyncio.to_thread(remove_group, cgroup_of(folder.name))
    await HubNetwork(folder.name, "to be removed", Qemu()).down()
    folder.control.unlink(missing_ok=True)


def log_tail(log: str, lines: int = 12) -> str:
    """The last lines of a log; empty if there is none."""
    try:
        with open(log, errors="replace") as file:  # noqa: PTH123 - the path came as text
            return "".join(file.readlines()[-lines:]).rstrip()
    except OSError:
        return ""
