"""``neonvm-runner``: runs the guest of one VirtualMachine in its pod. Run with ``--help``."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from deploy.neonvm.access.door import Door, Tls
from deploy.neonvm.access.keys import PodIdentity, RunnerKey
from deploy.neonvm.addressing import DAEMON_PORT, GUEST_DAEMON_PORT
from deploy.neonvm.network.sockets import connected, listening, tcp_socket
from deploy.neonvm.objects.pod_form import FLAT_MOUNT
from deploy.neonvm.objects.vm_spec import own_ports
from deploy.neonvm.password import from_file, keep_password
from deploy.neonvm.ports import GuestError, NetworkError
from deploy.neonvm.qemu.accelerator import Accelerator, emulation
from deploy.neonvm.qemu.qemu_guest import QemuGuest, QemuGuests, proven_accelerator
from deploy.neonvm.qemu.qemu_process import Qemu
from deploy.neonvm.runner.flat_tap import FlatTap, handed_over
from deploy.neonvm.runner.frame_return import FrameReturn
from deploy.neonvm.runner.gate_server import GateServer
from deploy.neonvm.runner.pod_runner import Ending, PodRunner, TlsIdentity
from deploy.neonvm.runner.runner_api import RunnerApi
from deploy.neonvm.runner.runner_arguments import RunnerArguments, guest_spec, parse_arguments
from deploy.neonvm.texts import runner as texts
from protocol.messages import ObjectName
from protocol.names import PASSWORD_KEY
from protocol.runtime.clock import SystemClock
from protocol.runtime.json_log import log_as_json
from protocol.units import Seconds
from protocol.vm_arguments import ArgumentsError
from vm_image.build import GuestImage

_CHUNK: Final = 4096  # bytes
_KEPT: Final = 256 * 1024  # bytes of the file, after which it begins again


def copy_console(pipe: Path, kept: Path) -> None:
    """Copies the guest's console from a new ``pipe`` to standard output and its end to ``kept``. Raises ``OSError``."""
    # A restarted container finds the pipe of its predecessor.
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe, 0o600)
    # For writing as well: the pipe has no end of file between two QEMUs.
    descriptor = os.open(pipe, os.O_RDWR | os.O_CLOEXEC)
    # A thread of its own, because the log may be slower than the guest; QEMU drops what the pipe does not hold.
    threading.Thread(target=_copy, args=(descriptor, kept), name="console", daemon=True).start()


def _copy(descriptor: int, kept: Path) -> None:
    with kept.open("wb", buffering=0) as log:
        while part := os.read(descriptor, _CHUNK):
            if log.tell() > _KEPT:
                # Truncated instead of rotated: only the last words matter, and one file bounds the disk it takes.
                log.seek(0)
                log.truncate()
            log.write(part)
            while part:
                # A pipe or terminal may take less than it is given.
                part = part[os.write(1, part) :]


LOG: Final = logging.getLogger("neonvm.runner")

_TAP_SECONDS: Final = 60.0  # the node's program may be starting too
# QEMU need not be told to die with its owner: the container's end is the end of all that runs in it.
_LAUNCHER: Final = list[str]
_SPARE: Final = 2
"""Seconds of the grace period that are left for ending QEMU itself."""

# Where ``RunnerForm`` mounts the pod's disk, its sockets and keys, its password and its token.
_IMAGES: Final = Path("/vm/images")
_RUN: Final = Path("/run/neonvm")
_PASSWORD: Final = Path("/run/password") / PASSWORD_KEY
_TOKEN: Final = Path("/run/identity/token")
_TERMINATION_LOG: Final = Path("/dev/termination-log")


@dataclass(frozen=True, slots=True)
class OwnPod:
    """``PodSockets`` of the one pod that this program runs in."""

    async def connect(self, pod: ObjectName | None, host: str, port: int) -> socket.socket:  # noqa: ARG002 - its own
        """A connection to a port of the guest."""
        return await connected(tcp_socket(), host, GUEST_DAEMON_PORT if port == DAEMON_PORT else port)

    async def listen(self, pod: ObjectName | None, port: int) -> socket.socket:  # noqa: ARG002 - its own
        """A listening socket of this pod."""
        return listening(tcp_socket(), "0.0.0.0", port)

    @contextmanager
    def announcing(self, pod: ObjectName, vm: str) -> Iterator[Callable[[], None]]:  # noqa: ARG002 - its own
        """A guest in a pod is moved by a controller, which asks the pod itself."""
        yield lambda: None


async def run(told: RunnerArguments) -> Ending:
    """Runs the pod to its end. Raises ``ArgumentsError``, ``GuestError``, ``NetworkError`` and ``OSError``."""
    stop = asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
    tap = await handed_over(Path(FLAT_MOUNT), _TAP_SECONDS) if told.address else None
    if tap is not None and tap.address != told.address:
        # Started with another address, the guest would be fenced off from everybody.
        raise NetworkError(texts.OTHER_ADDRESS.format(has=tap.address, wanted=told.address))
    image = _image(told)
    accelerator = await _accelerator(told, image)
    LOG.info(texts.STARTED, extra={"vm": str(told.vm), "accelerator": accelerator.reason})
    runner, spec = _assembled(told, image, accelerator, tap)
    # Before QEMU starts, which opens the pipe as its console.
    copy_console(_RUN / "console", _IMAGES / "console.log")
    api_port, qmp_port = own_ports(told.spec)
    identity, tls = _identity(told)
    gate = GateServer(spec, runner)
    async with AsyncExitStack() as open_ports:
        for port, serve in ((api_port, RunnerApi(runner, identity).serve), (qmp_port, gate.serve)):
            open_ports.push_async_callback(Door(listening(tcp_socket(), "0.0.0.0", port), serve, tls).close)
        passwords = asyncio.create_task(keep_password(runner, partial(from_file, _PASSWORD), SystemClock()))
        # The stack runs backwards: passwords stop first, then the doors are closed.
        open_ports.callback(passwords.cancel)
        # The kubelet kills the pod after the grace period; QEMU has to be gone before.
        return await runner.run(stop, Seconds(max(1, told.grace - _SPARE)))


def _identity(told: RunnerArguments) -> tuple[PodIdentity | None, Tls | None]:
    """The pod's certificate, and the callers it admits. Raises ``ArgumentsError``."""
    if told.authorities is None:
        LOG.warning(texts.OPEN_PORTS)
        return None, None
    try:
        key = RunnerKey(told.pod.name, told.authorities)
    except ValueError as error:
        raise ArgumentsError(str(error)) from error
    return PodIdentity(key, _TOKEN), key.context


def _assembled(
    told: RunnerArguments, image: GuestImage, accelerator: Accelerator, tap: FlatTap | None
) -> tuple[PodRunner, tuple[Path, ...]]:
    descriptors = () if tap is None else (tap.descriptor,)
    spec = guest_spec(told, _IMAGES, _RUN, *((None, 0) if tap is None else (tap.descriptor, tap.mtu)))
    made_by = QemuGuests(image, accelerator, OwnPod(), SystemClock(), Qemu(descriptors), _LAUNCHER)
    tls = TlsIdentity(told.pod.name, _RUN)
    name_and_reason = (accelerator.name, accelerator.reason)
    flat = FrameReturn(tap, accelerator.frames_held) if tap is not None else None
    return PodRunner(QemuGuest(spec, made_by), tls, name_and_reason, flat, told.receives), tuple(spec.monitors)


def _image(told: RunnerArguments) -> GuestImage:
    """The kernel of this pod's own image, with its initrd beside it, and the disk of the VM's."""
    kernel, disk = Path(told.kernel), _IMAGES / "rootdisk.qcow2"
    for file in (kernel, disk):
        if not file.exists():
            raise ArgumentsError(texts.NO_FILE.format(file=file))
    return GuestImage(kernel, kernel.with_name("initrd"), disk)


async def _accelerator(told: RunnerArguments, image: GuestImage) -> Accelerator:
    if told.spec.get("enableAcceleration") is False:
        # Only an explicit false opts out; the API's default is to accelerate.
        return emulation(texts.EMULATION_WANTED)
    return await proven_accelerator(image, _LAUNCHER)


def end(ending: Ending) -> int:
    """Says how the pod has ended, where the kubelet looks for it; returns the exit code."""
    LOG.info(texts.POD_ENDS, extra={"reason": ending.story})
    # Outside Kubernetes there is no such file, and it must not be made in /dev.
    if _TERMINATION_LOG.exists() and os.access(_TERMINATION_LOG, os.W_OK):
        # The kubelet reads 4096 bytes at most.
        _TERMINATION_LOG.write_text(ending.story[:4000])
    return ending.code


async def lived(told: RunnerArguments) -> Ending:
    """The same as ``run``, with every fault as an ending."""
    try:
        return await run(told)
    except (ArgumentsError, GuestError, NetworkError, OSError) as error:
        return Ending(1, str(error))


def main() -> int:
    """Runs until the guest has ended; the exit code is 0 if that was ordered, or if the guest has moved."""
    log_as_json()
    logging.getLogger("qemu").setLevel(logging.CRITICAL)  # this program's own messages about QEMU say more
    try:
        options = parse_arguments(sys.argv[1:], os.environ)
    except ArgumentsError as error:
        return end(Ending(2, str(error)))
    return end(asyncio.run(lived(options)))


if __name__ == "__main__":
    sys.exit(main())
