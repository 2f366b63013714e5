"""Ports of the NeonVM runtime to its host: guests, and their network.

QEMU and simulated guests are adapters of these Protocols, so all modes share one code path, and tests can inject
faults.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from pathlib import Path
from typing import Annotated, Final, Protocol, runtime_checkable

import msgspec

from deploy.neonvm.addressing import METRICS_PORT
from deploy.neonvm.transfer_terms import TransferInfo, TransferLimits
from protocol.messages import ObjectName
from protocol.units import Bytes, MilliCpu, Seconds


class GuestPhase(StrEnum):
    """Phase of a guest. ``RECEIVING``: it waits for an incoming migration and does not run yet."""

    BOOTING = "Booting"
    RECEIVING = "Receiving"
    RUNNING = "Running"
    ASLEEP = "Asleep"
    """Its memory is in a file, its process has exited, and a stand-in answers for it on the network."""
    WAKING = "Waking"
    """Asleep, and a client needs it."""
    STOPPED = "Stopped"


CPU: Final = "cpu"
MEMORY: Final = "memory"
"""The resources of a guest, which are resized independently."""


class PodRole(Enum):
    """Role of a pod's guest."""

    UNKNOWN = "not seen yet"
    EMPTY = "not running"
    RECEIVING = "waiting for an incoming migration"
    BOOTING = "booting"
    RUNNING = "running"
    ASLEEP = "asleep"
    WAKING = "waking"

    @classmethod
    def of(cls, phase: GuestPhase) -> PodRole:
        """The role of a pod whose guest is in this phase."""
        return cls.EMPTY if phase is GuestPhase.STOPPED else cls[phase.name]


@dataclass(frozen=True, slots=True)
class GuestState:
    """Current size and phase of a guest, as reported by the hypervisor and the guest."""

    phase: GuestPhase
    cpu: MilliCpu
    mem: Bytes


@dataclass(frozen=True, slots=True)
class Acceleration:
    """Acceleration of a guest: by the host's CPU, or emulated; and the reason in one line."""

    is_on: bool
    reason: str


@dataclass(frozen=True, slots=True)
class DaemonToken:
    """Token of the daemon in a guest: ``value`` is sent as the query of each request, and the guest reads it from
    ``file``. For networks in which every user of the host can reach a guest.
    """

    value: str
    file: Path


@dataclass(frozen=True, slots=True)
class PodNetwork:
    """The network of a pod.

    ``address`` is the pod's, reachable from every node. ``enter`` is the command prefix that runs a program inside the
    pod's network (empty if the pod shares the host's). Programs in the pod reach the guest at ``guest_host`` and the
    control plane at ``api_host``. ``attachments`` are the backends of the guest's interfaces: taps, or the hub's
    socket. ``moved_ports`` maps usual ports that another program of the host uses to their replacements. ``mtu`` is the
    flat network's in bytes, 0 for the default. ``token`` is None if only programs of this user, or of the pod, can
    reach the guest's daemon.
    """

    address: str
    enter: Sequence[str]
    guest_host: str
    api_host: str
    attachments: Sequence[str]
    moved_ports: Mapping[int, int] = field(default_factory=dict)
    mtu: int = 0
    token: DaemonToken | None = None

    def daemon_path(self, path: str) -> str:
        """``path`` of the guest's daemon, with the token if it needs one."""
        return path if self.token is None else f"{path}?{self.token.value}"

    def port_for(self, port: int) -> int:
        """Port in this network of a program whose usual port is ``port``."""
        return self.moved_ports.get(port, port)

    @property
    def metrics_url(self) -> str:
        """URL of the guest's node_exporter, for programs in the pod."""
        return f"http://{self.guest_host}:{self.port_for(METRICS_PORT)}/metrics"


@dataclass(frozen=True, slots=True)
class GuestSpec:
    """Fixed properties of one guest, and its size at the start.

    ``address`` is the VM's on the flat network, which it keeps when it is migrated (S4.12); empty if it is not on it.
    ``network.address`` is its pod's. The guest creates ``state_dir`` for the VM's disk and logs; a guest that is
    started again in the same directory has the same disk. ``kernel_arguments`` are the VM's additions to the kernel
    command line.

    ``monitors`` are paths of additional QEMU monitor sockets. ``console`` is a pipe for the console's output, None for
    a file. ``ignores`` are addresses whose packets do not wake a sleeping guest
    (``protocol.guest.sleep.ignored_networks``). ``storage_limit`` is the maximum size of all files in ``state_dir``, 0
    if there is none.
    """

    vm: ObjectName
    pod: ObjectName
    cpu_max: MilliCpu
    cpu_use: MilliCpu
    mem_min: Bytes
    mem_max: Bytes
    mem_use: Bytes
    address: str
    network: PodNetwork
    state_dir: Path
    kernel_arguments: str = ""
    monitors: Sequence[Path] = ()
    console: Path | None = None
    ignores: str = ""
    storage_limit: Bytes = Bytes(0)


class TransferFault(StrEnum):
    """The reason why a migration failed."""

    TIMED_OUT = "TimedOut"
    TARGET_LOST = "TargetLost"
    """The target exited, or could not load the state that it received."""
    SOURCE_LOST = "SourceLost"
    REFUSED = "Refused"
    """One end refused to start the migration."""


class ResizableGuest(Protocol):
    """A guest that can be resized. Every method may raise ``GuestError``; all are idempotent."""

    async def state(self) -> GuestState:
        """The guest's current size and phase."""

    async def set_cpu(self, use: MilliCpu) -> MilliCpu | None:
        """Set the guest's CPU: whole CPUs are onlined, and a quota limits the fraction. Return the CPU that it then
        reports, None if it reports none (see ``state``).
        """

    async def set_memory(self, use: Bytes) -> None:
        """Request this memory size; the guest may free only part of the difference (see ``state``)."""

    async def ended(self) -> str:
        """Wait until a started guest has stopped or failed; return the reason in one line for users. A failed guest
        may still hold its resources until ``stop``. Raises ``GuestError`` if it was never started.
        """


class Guest(ResizableGuest, Protocol):
    """One guest, with its lifecycle."""

    async def start(self) -> None:
        """Start the guest; return once its process runs, long before it has booted."""

    async def receive(self) -> None:
        """Prepare for an incoming migration from another pod of the same VM. The guest uses the VM's disk only once it
        runs.
        """

    async def send(
        self, target: Guest, limits: TransferLimits, progress: Callable[[TransferInfo], None]
    ) -> TransferInfo:
        """Migrate this guest to ``target``, which was prepared with ``receive`` and created by the same ``Guests``.

        Returns once the target runs and this one has stopped for good; the two never run at the same time. ``progress``
        is called about once a second. Raises ``TransferError``; an end that does not run afterwards has stopped.
        Cancellation stops the target and leaves this one running, unless the target was already told to run: the
        ``state`` of both shows which.
        """

    async def stop(self) -> None:
        """Stop the guest and release its resources; return when it is gone."""


@dataclass(frozen=True, slots=True)
class FellAsleep:
    """Result of falling asleep: the size of the saved memory, and the number of open database sessions."""

    saved: Bytes
    sessions: int


class Woken(msgspec.Struct, frozen=True):
    """Result of a wake. ``fault`` is the reason why the guest had to boot from its disk and lost its sessions; empty if
    it resumed. ``took`` is the time from the first frame, or the order, until the guest ran.
    """

    took: Annotated[Seconds, msgspec.Meta(ge=0, lt=2**31)]
    fault: str = ""


@runtime_checkable
class SleepingGuest(Protocol):
    """A guest that can sleep: its QEMU exits, and its connections stay open (B.18)."""

    async def fall_asleep(self) -> FellAsleep:
        """Save the guest's memory and end its process. Raises ``SleepRefusedError`` if the guest keeps running, as
        after every recoverable failure, and ``GuestError`` if it ended.
        """

    async def woken(self) -> str:
        """Wait until the sleeping guest must wake, and prepare the wake; return sender and reason in one line. Raises
        ``GuestError`` if the guest is not asleep.
        """

    async def wake(self) -> Woken:
        """Resume the sleeping guest, or boot it if its memory cannot be restored. There must be a permit. Raises
        ``GuestError`` if it cannot be started.
        """


class GuestError(Exception):
    """A request to a guest failed; the message has the request and the reason."""


class SleepRefusedError(GuestError):
    """The guest did not fall asleep and keeps running; the message has the reason."""


class TransferError(GuestError):
    """A migration failed; the message has the reason, and which end runs."""

    def __init__(self, fault: TransferFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class Guests(Protocol):
    """Factory of guests (QEMU or simulated)."""

    def create(self, spec: GuestSpec) -> Guest:
        """Create a guest without starting it; no side effects."""


class PodSockets(Protocol):
    """Sockets of this process in the network of a pod, or of the control plane if ``pod`` is None. Ports are the usual
    ones. ``connect`` and ``listen`` raise ``OSError``, and ``NetworkError`` if the pod is not on the network.
    """

    async def connect(self, pod: ObjectName | None, host: str, port: int) -> socket.socket:
        """A non-blocking TCP connection from the pod to ``host:port``."""

    async def listen(self, pod: ObjectName | None, port: int) -> socket.socket:
        """A non-blocking TCP socket that listens on the pod's address (for the control plane: on ``api_host``)."""

    def announcing(self, pod: ObjectName, vm: str) -> AbstractContextManager[Callable[[], None]]:
        """Yield a function that redirects frames for the VM with the flat-network address ``vm`` to ``pod``, where they
        are queued for the guest. It does not block, and never fails.
        """


class NetworkError(Exception):
    """The network could not be created or changed; the message has the reason."""
