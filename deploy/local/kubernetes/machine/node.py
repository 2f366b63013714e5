"""One node: namespaces of its own on this machine, with containerd, a kubelet and kube-proxy in them.

The node's first process sets up its view of the file system and holds its namespaces; when it ends, so do all processes
and mounts of the node. The kernel ends it with this process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.local.kubernetes.plan import arguments
from deploy.local.kubernetes.plan.cluster_plan import BOOTED, CONTAINERD_SOCKET, IMAGES, PROGRAMS, NodePlan
from deploy.local.process import LocalProgram, ProcessSupervisor, end, start
from protocol.backoff import Backoff, Retries
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds

_BOOT_SCRIPT: Final = Path(__file__).with_name("boot-node.sh")
_PATIENCE: Final = Seconds(60.0)
_PAUSE: Final = Seconds(0.05)
_BACKOFF: Final = Backoff(Seconds(1.0), Seconds(30.0))
_STEADY: Final = Seconds(120.0)
# Our programs come before any of the same name that the machine has installed.
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
    """A node did not come up; ``log`` is the file that tells more."""

    def __init__(self, message: str, log: Path) -> None:
        super().__init__(message)
        self.log = log


@dataclass(frozen=True, slots=True)
class NodePlace:
    """A node's folder, the way into its network, and its programs and images."""

    folder: Path
    logs: Path
    enter_network: Sequence[str]
    programs: Mapping[str, Path]
    images: Path

    def log(self, part: str) -> Path:
        """The log of one of its programs."""
        return self.logs / f"{self.folder.name}-{part}.log"

    @property
    def pid_file(self) -> Path:
        """The file with the pid of the node's first process, for those who enter the node from another process."""
        return self.folder / "pid"


class Node:
    """One node, which lives as long as ``run``."""

    def __init__(self, plan: NodePlan, place: NodePlace, clock: Clock) -> None:
        self.plan = plan
        self._place = place
        self._clock = clock
        self.pid = 0  # of its first process; 0 before it has booted
        self._running: dict[str, tuple[ProcessSupervisor, asyncio.Task[None]]] = {}
        self._came_up = False
        self.boots = 0

    async def run(self, api_server: asyncio.Event) -> None:
        """Boots the node, and again whenever its first process ends, until cancelled. Its kubelet starts once
        ``api_server`` is set. Raises ``NodeError`` if the node does not boot the first time.
        """
        retries = Retries(_BACKOFF, _STEADY)
        # A node whose first process ends is booted again, as a machine would be: its disk stays, its pods start
        # again.
        while True:
            began = self._clock.now()
            try:
                await self._lived(api_server)
            except NodeError as error:
                # The first boot decides whether the cluster comes up at all; later failures affect no other node and
                # are retried.
                if not self._came_up:
                    raise
                pause = retries.failed(self._clock.jitter(), Seconds(self._clock.now() - began))
                _log.warning("a node does not boot; trying again", extra={"node": self.plan.name, "error": str(error)})
                await self._clock.sleep(pause)

    async def _lived(self, api_server: asyncio.Event) -> None:
        """Boots the node; returns when its first process has ended. Raises ``NodeError``."""
        process = await start(self._first_process())
        try:
            self.pid = await self._holder(process)
            self._place.pid_file.write_text(f"{self.pid}\n")
            self.boots += 1
            self.start(CONTAINERD)
            await self._containerd_answers()
            # Before the kubelet starts: there is no registry, so a pod whose image is missing would fail.
            await self._import_images()
            self._came_up = True
            # A kubelet without an API server would only log errors.
            await api_server.wait()
            for part in (KUBELET, KUBE_PROXY):
                self.start(part)
            await process.wait()
        finally:
            self._place.pid_file.unlink(missing_ok=True)
            for part in tuple(self._running):
                self.stop(part)
            # Shielded: a cancelled node must not leave processes and mounts behind.
            await asyncio.shield(self._power_off(process))

    async def _power_off(self, process: asyncio.subprocess.Process) -> None:
        """Ends all that runs on the node at once; returns when it is gone."""
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        # The first process goes last, after the kernel has ended all others in its PID namespace.
        while self.pid and _is_there(f"/proc/{self.pid}"):
            await self._clock.sleep(_PAUSE)
        self.pid = 0

    def start(self, part: str) -> None:
        """Starts one of the node's programs and keeps it running; nothing if it runs."""
        if part not in self._running:
            command = (part, *_COMMANDS[part](self.plan))
            program = LocalProgram(command, self._place.log(part), self._enter(), {"PATH": _PATH})
            supervisor = ProcessSupervisor(program, self._clock)
            self._running[part] = supervisor, asyncio.ensure_future(supervisor.run())

    def stop(self, part: str) -> None:
        """Ends one of the node's programs, which is not started again; nothing if it does not run."""
        if part in self._running:
            _, task = self._running.pop(part)
            task.cancel()

    def supervisors(self) -> dict[str, ProcessSupervisor]:
        """Its programs by name."""
        return {f"{self.plan.name} {part}": supervisor for part, (supervisor, _) in self._running.items()}

    async def _import_images(self) -> None:
        ctr = f"ctr --address {CONTAINERD_SOCKET} --namespace k8s.io images import --all-platforms=false"
        script = f'for each in {IMAGES}/*.tar; do {ctr} "$each" || exit; done'
        program = LocalProgram(("sh", "-c", script), self._place.log("images"), self._enter(), {"PATH": _PATH})
        process = await start(program)
        try:
            if await process.wait():
                raise NodeError(f"the images of {self.plan.name} could not be imported", program.log)
        finally:
            await asyncio.shield(end(process))

    def _first_process(self) -> LocalProgram:
        # --kill-child and the PID namespace end all of the node with its first process. Private propagation keeps the
        # node's mounts from the machine.
        apart = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private")
        programs = [f"{name}={folder}" for name, folder in self._place.programs.items()]
        # The network is entered first, because the clean-up finds processes by their network.
        boot = ("sh", str(_BOOT_SCRIPT), str(self._place.folder), str(self._place.images), *programs)
        return LocalProgram((*apart, "--", *boot), self._place.log("boot"), self._place.enter_network)

    async def _holder(self, process: asyncio.subprocess.Process) -> int:
        """The pid of the first process in the node's namespaces, once it has set them up."""
        # `unshare --fork` stays outside of the new PID namespace; its child is the node's first process.
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        async for _ in self._tries():
            if process.returncode is not None:
                raise NodeError(f"{self.plan.name} did not boot", self._place.log("boot"))
            child = _first_word(children)
            # The boot script creates the file last.
            if child and _is_there(f"/proc/{child}/root{BOOTED}"):
                return int(child)
        raise NodeError(f"{self.plan.name} had not booted after {_PATIENCE:g} s", self._place.log("boot"))

    async def _containerd_answers(self) -> None:
        async for _ in self._tries():
            if _is_there(f"/proc/{self.pid}/root{CONTAINERD_SOCKET}"):
                return
        log = self._place.log(CONTAINERD)
        raise NodeError(f"containerd of {self.plan.name} did not answer within {_PATIENCE:g} s", log)

    async def _tries(self) -> AsyncIterator[None]:
        deadline = Instant(self._clock.now() + _PATIENCE)
        while self._clock.now() < deadline:
            yield
            await self._clock.sleep(_PAUSE)

    def _enter(self) -> Sequence[str]:
        return ("nsenter", f"--target={self.pid}", "--mount", "--pid", "--net", "--")


def _is_there(path: str) -> bool:
    return Path(path).exists()


def _first_word(file: Path) -> str:
    try:
        return next(iter(file.read_text().split()), "")
    except OSError:
        return ""
