"""``neonvm-runner``: runs the guest of one VirtualMachine in its pod. See ``--help``."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from deploy.neonvm.access.authenticated_listener import AuthenticatedListener
from deploy.neonvm.access.keys import PodIdentity
from deploy.neonvm.addressing import DAEMON_PORT, GUEST_DAEMON_PORT
from deploy.neonvm.guests.qemu_guest import QemuGuest
from deploy.neonvm.guests.qemu_guests import QemuGuests, proven_accelerator
from deploy.neonvm.network.sockets import connected, listening, tcp_socket
from deploy.neonvm.objects.pod_form import FLAT_MOUNT
from deploy.neonvm.objects.vm_spec import runner_ports
from deploy.neonvm.password import read_password_file, sync_password
from deploy.neonvm.ports import GuestError, NetworkError
from deploy.neonvm.qemu.accelerator import Accelerator, emulation
from deploy.neonvm.qemu.qemu_command import Files
from deploy.neonvm.qemu.qemu_process import Qemu
from deploy.neonvm.runner.flat_tap import FlatTap, receive_tap
from deploy.neonvm.runner.frame_return import FrameReturn
from deploy.neonvm.runner.gate_server import GateServer
from deploy.neonvm.runner.pod_runner import PodExit, PodRunner
from deploy.neonvm.runner.runner_api import RunnerApi
from deploy.neonvm.runner.runner_arguments import RunnerArguments, guest_spec, parse_arguments
from deploy.neonvm.runner.sleep_migration import PodDisk
from deploy.neonvm.runner.tls_identity import TlsIdentity
from deploy.neonvm.texts import runner as texts
from protocol.messages import ObjectName
from protocol.names import PASSWORD_KEY
from protocol.runtime.clock import SystemClock
from protocol.runtime.json_log import log_as_json
from protocol.units import Seconds
from protocol.vm_arguments import ArgumentsError
from vm_image.build import GuestImage

_CHUNK: Final = 4096  # bytes
_MAX_CONSOLE_LOG: Final = 256 * 1024  # bytes; a longer file is truncated


def copy_console(pipe: Path, log: Path) -> None:
    """Copy the guest's console from a new ``pipe`` to stdout, and its end to ``log``. Raises ``OSError``."""
    # A restarted container finds the pipe of its predecessor.
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe, 0o600)
    # Also opened for writing, so that the pipe has no EOF between two QEMU processes.
    descriptor = os.open(pipe, os.O_RDWR | os.O_CLOEXEC)
    # In a thread, because the log may be slower than the guest; QEMU drops output when the pipe is full.
    threading.Thread(target=_copy, args=(descriptor, log), name="console", daemon=True).start()


def _copy(descriptor: int, log: Path) -> None:
    with log.open("wb", buffering=0) as file:
        while part := os.read(descriptor, _CHUNK):
            if file.tell() > _MAX_CONSOLE_LOG:
                # Truncated, not rotated: only the last output matters, and one file bounds the disk usage.
                file.seek(0)
                file.truncate()
            file.write(part)
            while part:
                # Writes to a pipe or terminal may be partial.
                part = part[os.write(1, part) :]


LOG: Final = logging.getLogger("neonvm.runner")

_TAP_SECONDS: Final = 60.0  # neonvm-network may be starting too
# QEMU needs no PDEATHSIG here: all processes of a container end with it.
_LAUNCHER: Final = list[str]
_SPARE: Final = 2
"""Seconds of the grace period reserved for ending QEMU."""

# Where ``RunnerForm`` mounts the pod's disk, its sockets and keys, its password and its token.
_IMAGES: Final = Path("/vm/images")
_RUN: Final = Path("/run/neonvm")
_PASSWORD: Final = Path("/run/password") / PASSWORD_KEY
_TOKEN: Final = Path("/run/identity/token")
_TERMINATION_LOG: Final = Path("/dev/termination-log")


@dataclass(frozen=True, slots=True)
class OwnPod:
    """``PodSockets`` of the runner's own pod."""

    async def connect(self, pod: ObjectName | None, host: str, port: int) -> socket.socket:  # noqa: ARG002 - its own
        """Connect to a port of the guest."""
        return await connected(tcp_socket(), host, GUEST_DAEMON_PORT if port == DAEMON_PORT else port)

    async def listen(self, pod: ObjectName | None, port: int) -> socket.socket:  # noqa: ARG002 - its own
        """Listen on a port of this pod."""
        return listening(tcp_socket(), "0.0.0.0", port)

    @contextmanager
    def announcing(self, pod: ObjectName, vm: str) -> Iterator[Callable[[], None]]:  # noqa: ARG002 - its own
        """Do nothing: the controller that migrates the guest calls the pod's API to announce it."""
        yield lambda: None


async def run(arguments: RunnerArguments) -> PodExit:
    """Run the guest until the pod ends. Raises ``ArgumentsError``, ``GuestError``, ``NetworkError`` and ``OSError``."""
    stop = asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
    tap = await receive_tap(Path(FLAT_MOUNT), _TAP_SECONDS) if arguments.address else None
    if tap is not None and tap.address != arguments.address:
        # With a different address, the fence would drop all frames of the guest.
        raise NetworkError(texts.OTHER_ADDRESS.format(has=tap.address, wanted=arguments.address))
    image = _image(arguments)
    accelerator = await _accelerator(arguments, image)
    LOG.info(texts.STARTED, extra={"vm": str(arguments.vm), "accelerator": accelerator.reason})
    runner, monitors = _runner(arguments, image, accelerator, tap)
    # Before QEMU starts, which opens the pipe as its console.
    copy_console(_RUN / "console", _IMAGES / "console.log")
    api_port, qmp_port = runner_ports(arguments.spec)
    identity = _identity(arguments)
    tls = None if identity is None else identity.context
    gate = GateServer(monitors, runner)
    async with AsyncExitStack() as open_ports:
        for port, serve in ((api_port, RunnerApi(runner, identity).serve), (qmp_port, gate.serve)):
            listener = AuthenticatedListener(listening(tcp_socket(), "0.0.0.0", port), serve, tls)
            open_ports.push_async_callback(listener.close)
        passwords = asyncio.create_task(sync_password(runner, partial(read_password_file, _PASSWORD), SystemClock()))
        # Callbacks run in reverse order: first cancel the password task, then close the ports.
        open_ports.callback(passwords.cancel)
        # QEMU must end before the kubelet kills the pod.
        return await runner.run(stop, Seconds(max(1, arguments.grace - _SPARE)))


def _identity(arguments: RunnerArguments) -> PodIdentity | None:
    """The pod's identity; None without CAs, and then its ports use no TLS. Raises ``ArgumentsError``."""
    if arguments.authorities is None:
        LOG.warning(texts.OPEN_PORTS)
        return None
    try:
        return PodIdentity(arguments.pod.name, arguments.authorities, _TOKEN)
    except ValueError as error:
        raise ArgumentsError(str(error)) from error


def _runner(
    arguments: RunnerArguments, image: GuestImage, accelerator: Accelerator, tap: FlatTap | None
) -> tuple[PodRunner, Sequence[Path]]:
    """The pod's runner, and its guest's QEMU monitors."""
    spec = guest_spec(arguments, _IMAGES, _RUN, *((None, 0) if tap is None else (tap.descriptor, tap.mtu)))
    made_by = QemuGuests(image, accelerator, OwnPod(), SystemClock(), Qemu(), _LAUNCHER)
    tls = TlsIdentity(arguments.pod.name, _RUN)
    name_and_reason = (accelerator.name, accelerator.reason)
    flat = FrameReturn(tap, accelerator.frames_held) if tap is not None else None
    guest = QemuGuest(spec, made_by)
    sleeping_guest = guest if tap is not None else None
    disk = PodDisk(Files.of(spec).disk, lambda: guest.asleep, SystemClock()) if tap is not None else None
    runner = PodRunner(guest, tls, name_and_reason, flat, arguments.receives, sleeping_guest=sleeping_guest, disk=disk)
    return runner, spec.monitors


def _image(arguments: RunnerArguments) -> GuestImage:
    """Kernel and initrd of the runner image, and the VM's root disk."""
    kernel, disk = Path(arguments.kernel), _IMAGES / "rootdisk.qcow2"
    for file in (kernel, disk):
        if not file.exists():
            raise ArgumentsError(texts.NO_FILE.format(file=file))
    return GuestImage(kernel, kernel.with_name("initrd"), disk)


async def _accelerator(arguments: RunnerArguments, image: GuestImage) -> Accelerator:
    if arguments.spec.get("enableAcceleration") is False:
        # Only an explicit false disables acceleration; the CRD's default is true.
        return emulation(texts.EMULATION_REQUESTED)
    return await proven_accelerator(image, _LAUNCHER)


def end(pod_exit: PodExit) -> int:
    """Write the termination message for the kubelet; return the exit code."""
    LOG.info(texts.POD_ENDS, extra={"reason": pod_exit.message})
    # Outside Kubernetes the file does not exist and must not be created in /dev.
    if _TERMINATION_LOG.exists() and os.access(_TERMINATION_LOG, os.W_OK):
        # The kubelet reads 4096 bytes at most.
        _TERMINATION_LOG.write_text(pod_exit.message[:4000])
    return pod_exit.code


async def run_to_exit(arguments: RunnerArguments) -> PodExit:
    """``run``, with errors as a ``PodExit``."""
    try:
        return await run(arguments)
    except (ArgumentsError, GuestError, NetworkError, OSError) as error:
        return PodExit(1, str(error))


def main() -> int:
    """Run until the guest has ended. The exit code is 0 if the pod was stopped or the guest was migrated away."""
    log_as_json()
    try:
        arguments = parse_arguments(sys.argv[1:], os.environ)
    except ArgumentsError as error:
        return end(PodExit(2, str(error)))
    return end(asyncio.run(run_to_exit(arguments)))


if __name__ == "__main__":
    sys.exit(main())
