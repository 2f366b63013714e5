"""One node: mount, PID and network namespaces with containerd, a kubelet and kube-proxy.

The node's init process (``boot-node.sh``) sets up the mounts and keeps the namespaces. When it ends, the kernel kills
all other processes of the node. The kernel kills the init process when this process ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.local.kubernetes.plan import arguments
from deploy.local.kubernetes.plan.cluster_plan import BOOTED, CONTAINERD_SOCKET, IMAGES, PROGRAMS, NodePlan
from deploy.local.process import LocalProgram, ProcessSupervisor, end, start
from protocol.backoff import Backoff, Retries
from protocol.runtime.clock import Clock, wait_until
from protocol.units import Seconds

_BOOT_SCRIPT: Final = Path(__file__).with_name("boot-node.sh")
_TIMEOUT: Final = Seconds(60.0)
_PAUSE: Final = Seconds(0.05)
_BACKOFF: Final = Backoff(Seconds(1.0), Seconds(30.0))
_RESET_AFTER: Final = Seconds(120.0)
# Our programs first: the machine may have others with the same names.
_PATH: Final = (
    f"{PROGRAMS}/kubernetes:{PROGRAMS}/containerd:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)
_log: Final = logging.getLogger("nodes")

CONTAINERD: Final = "containerd"
KUBELET: Final = "kubelet"
KUBE_PROXY: Final = "kube-proxy"
_COMMANDS: Final[Mapping[str, Callable[[NodePlan], list[str]]]] = {
    CONTAINERD: lambda _: arguments.containerd(),
    KUBELET: arguments.kubelet,
    KUBE_PROXY: lambda _: arguments.kube_proxy(),
}


class NodeError(Exception):
    """A node did not boot; ``log`` is the file with details."""

    def __init__(self, message: str, log: Path) -> None:
        super().__init__(message)
        self.log = log


@dataclass(frozen=True, slots=True)
class NodePaths:
    """A node's folders, and the command prefix that enters its network namespace."""

    folder: Path
    logs: Path
    enter_network: Sequence[str]
    programs: Mapping[str, Path]
    images: Path

    def log(self, part: str) -> Path:
        """The log of one of the node's programs."""
        return self.logs / f"{self.folder.name}-{part}.log"

    @property
    def pid_file(self) -> Path:
        """The file with the pid of the node's init process, for commands that enter the node."""
        return self.folder / "pid"


class Node:
    """One node; it exists until ``run`` is cancelled."""

    def __init__(self, plan: NodePlan, paths: NodePaths, clock: Clock) -> None:
        self.plan = plan
        self._paths = paths
        self._clock = clock
        self.pid = 0  # of the node's init process; 0 if it is not running
        self._running: dict[str, tuple[ProcessSupervisor, asyncio.Task[None]]] = {}
        self._has_booted = False
        self.boots = 0

    async def run(self, api_server: asyncio.Event) -> None:
        """Boot the node, and reboot it whenever its init process ends, until cancelled.

        Its kubelet starts once ``api_server`` is set. Raises ``NodeError`` if the first boot fails.
        """
        retries = Retries(_BACKOFF, _RESET_AFTER)
        while True:
            began = self._clock.now()
            try:
                await self._boot_and_wait(api_server)
            except NodeError as error:
                # A failure of the first boot ends the cluster's startup; later ones are retried.
                if not self._has_booted:
                    raise
                pause = retries.failed(self._clock.jitter(), Seconds(self._clock.now() - began))
                _log.warning("a node did not boot; retrying", extra={"node": self.plan.name, "error": str(error)})
                await self._clock.sleep(pause)

    async def _boot_and_wait(self, api_server: asyncio.Event) -> None:
        """Boot the node; return when its init process has ended. Raises ``NodeError``."""
        process = await start(self._init_program())
        try:
            self.pid = await self._wait_booted(process)
            self._paths.pid_file.write_text(f"{self.pid}\n")
            self.boots += 1
            self.start(CONTAINERD)
            await self._wait_for_containerd()
            # Before the kubelet starts: there is no registry to pull from.
            await self._import_images()
            self._has_booted = True
            await api_server.wait()
            for part in (KUBELET, KUBE_PROXY):
                self.start(part)
            await process.wait()
        finally:
            self._paths.pid_file.unlink(missing_ok=True)
            for part in tuple(self._running):
                self.stop(part)
            # Shielded: processes must not be left behind on cancellation.
            await asyncio.shield(self._power_off(process))

    async def _power_off(self, process: asyncio.subprocess.Process) -> None:
        """Kill all processes of the node; return when they have ended."""
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        # The kernel ends a PID namespace's init process last.
        while self.pid and _exists(f"/proc/{self.pid}"):
            await self._clock.sleep(_PAUSE)
        self.pid = 0

    def start(self, part: str) -> None:
        """Start one of the node's programs and keep it running; no effect if it is running."""
        if part not in self._running:
            command = (part, *_COMMANDS[part](self.plan))
            program = LocalProgram(command, self._paths.log(part), self._enter(), {"PATH": _PATH})
            supervisor = ProcessSupervisor(program, self._clock)
            self._running[part] = supervisor, asyncio.ensure_future(supervisor.run())

    def stop(self, part: str) -> None:
        """Stop one of the node's programs; no effect if it is not running."""
        if part in self._running:
            _, task = self._running.pop(part)
            task.cancel()

    def supervisors(self) -> dict[str, ProcessSupervisor]:
        """The supervisors of the node's programs, by name."""
        return {f"{self.plan.name} {part}": supervisor for part, (supervisor, _) in self._running.items()}

    async def _import_images(self) -> None:
        ctr = f"ctr --address {CONTAINERD_SOCKET} --namespace k8s.io images import --all-platforms=false"
        script = f'for archive in {IMAGES}/*.tar; do {ctr} "$archive" || exit; done'
        program = LocalProgram(("sh", "-c", script), self._paths.log("images"), self._enter(), {"PATH": _PATH})
        process = await start(program)
        try:
            if await process.wait():
                raise NodeError(f"importing images into {self.plan.name} failed", program.log)
        finally:
            await asyncio.shield(end(process))

    def _init_program(self) -> LocalProgram:
        # --kill-child: the init process ends with `unshare`. Private propagation hides the node's mounts from the
        # machine.
        unshare = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private")
        programs = [f"{name}={folder}" for name, folder in self._paths.programs.items()]
        # Enter the network first: the cleanup finds processes by their network namespace.
        boot = ("sh", str(_BOOT_SCRIPT), str(self._paths.folder), str(self._paths.images), *programs)
        return LocalProgram((*unshare, "--", *boot), self._paths.log("boot"), self._paths.enter_network)

    async def _wait_booted(self, process: asyncio.subprocess.Process) -> int:
        """Wait until the node has booted; return the pid of its init process."""
        # The init process is the child of `unshare --fork`.
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

        def has_booted_or_ended() -> bool:
            # The boot script creates this file at its end.
            return process.returncode is not None or _exists(f"/proc/{_first_word(children)}/root{BOOTED}")

        if not await wait_until(has_booted_or_ended, self._clock, _TIMEOUT):
            raise NodeError(f"{self.plan.name} did not boot within {_TIMEOUT:g} s", self._paths.log("boot"))
        if not (child := _first_word(children)):
            raise NodeError(f"{self.plan.name} did not boot", self._paths.log("boot"))
        return int(child)

    async def _wait_for_containerd(self) -> None:
        socket = Path(f"/proc/{self.pid}/root{CONTAINERD_SOCKET}")
        if not await wait_until(socket.exists, self._clock, _TIMEOUT):
            log = self._paths.log(CONTAINERD)
            raise NodeError(f"containerd of {self.plan.name} did not start within {_TIMEOUT:g} s", log)

    def _enter(self) -> Sequence[str]:
        return ("nsenter", f"--target={self.pid}", "--mount", "--pid", "--net", "--")


def _exists(path: str) -> bool:
    return Path(path).exists()


def _first_word(file: Path) -> str:
    try:
        return next(iter(file.read_text().split()), "")
    except OSError:
        return ""
