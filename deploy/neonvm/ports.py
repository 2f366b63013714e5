"""Ports of the NeonVM runtime to the machine it runs on: guests, and their places in a network.

QEMU and simulated guests are adapters behind these Protocols, so faults can be injected here and every mode shares one
code path.
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
    """Phase of a guest; one that receives exists, but does not run until another is sent to it."""

    BOOTING = "Booting"
    RECEIVING = "Receiving"
    RUNNING = "Running"
    ASLEEP = "Asleep"
    """Its memory is in a file and its process has ended; something stands for it in its network."""
    WAKING = "Waking"
    """Asleep, and needed by a client."""
    STOPPED = "Stopped"


CPU: Final = "cpu"
MEMORY: Final = "memory"
"""The resources of a guest, each resized by itself."""


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
    """Present size and phase of a guest, as the hypervisor and the guest report them."""

    phase: GuestPhase
    cpu: MilliCpu
    mem: Bytes


@dataclass(frozen=True, slots=True)
class Acceleration:
    """Speed class of a guest: on the host's own CPU or emulated, and why, in one line."""

    is_on: bool
    reason: str


@dataclass(frozen=True, slots=True)
class DaemonToken:
    """Token of the daemon in a guest: ``word`` at the end of each request's path, and the ``file`` from which the
    guest knows it. For networks in which all users of the machine reach a guest.
    """

    word: str
    file: Path


@dataclass(frozen=True, slots=True)
class PodNetwork:
    """A pod's place in the network.

    ``address`` reaches the pod from every node. ``enter`` is the command prefix that runs a program inside the pod's
    network (empty if the pod shares the machine's). ``guest_host`` is where programs in the pod reach the
    guest. ``api_host`` is where programs in the pod find the control plane. ``attachments`` names
    what a guest plugs its interfaces into: taps, or the hub's socket. ``moved_ports`` are the ports that programs in
    this network bind in place of their usual ones, which another program of the machine has taken. ``mtu`` is the
    flat network's in bytes, 0 if it is the usual one. ``token`` is None if only this user's programs, or those of
    the pod, reach the guest's daemon.
    """

    address: str
    enter: Sequence[str]
    guest_host: str
    api_host: str
    attachments: Sequence[str]
    moved_ports: Mapping[int, int] = field(default_factory=dict)
    mtu: int = 0
    token: DaemonToken | None = None

    def asked(self, path: str) -> str:
        """``path`` of the guest's daemon, with the token if it needs one."""
        return path if self.token is None else f"{path}?{self.token.word}"

    def port_for(self, port: int) -> int:
        """Port in this network of a program whose usual port is ``port``."""
        return self.moved_ports.get(port, port)  # only ports that were taken are moved

    @property
    def metrics_url(self) -> str:
        """URL of the guest's node_exporter, for programs in the pod."""
        return f"http://{self.guest_host}:{self.port_for(METRICS_PORT)}/metrics"


@dataclass(frozen=True, slots=True)
class GuestSpec:
    """Everything that is fixed for the life of one guest, and the size with which it starts.

    ``address`` is the VM's own on the flat network (S4.12): it stays with the VM wherever it
    runs, unlike ``network.address``, which is its pod's. ``state_dir`` holds the VM's disk and logs and is made by
    the guest; a guest that starts on the same directory again has the same disk. ``kernel_arguments`` are the VM's own
    words on the kernel command line. ``address`` is empty for a VM that is not on the flat network.

    ``monitors`` are sockets at which QEMU offers further monitors, and ``console`` a pipe that takes what the guest
    says in place of a file. ``ignores`` are addresses whose packets do not wake a sleeping guest
    (``protocol.guest.sleep.ignored_networks``).
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


class TransferFault(StrEnum):
    """The reason why a move failed."""

    TIMED_OUT = "TimedOut"
    TARGET_LOST = "TargetLost"
    """The receiving end died, or could not take what it was sent."""
    SOURCE_LOST = "SourceLost"
    REFUSED = "Refused"
    """One end would not begin."""


class ResizableGuest(Protocol):
    """One guest, as far as its size goes. Every call may raise ``GuestError``; all may be repeated safely."""

    async def state(self) -> GuestState:
        """The guest's present size."""

    async def set_cpu(self, use: MilliCpu) -> MilliCpu | None:
        """Gives the guest this much CPU: whole CPUs online, and a quota for the fraction. Returns what it then says
        that it has; None if it must be asked (see ``state``).
        """

    async def set_memory(self, use: Bytes) -> None:
        """Asks the guest to have this much memory; shrinking may stop part of the way (see ``state``)."""

    async def ended(self) -> str:
        """Returns once a guest that was started has stopped or cannot go on, and says why, in one line for people. A
        guest that cannot go on may still hold all it had: ``stop`` releases it. Raises ``GuestError`` if it was never
        started.
        """


class Guest(ResizableGuest, Protocol):
    """One guest, with its life."""

    async def start(self) -> None:
        """Starts the guest; returns once it has been launched, long before it has booted."""

    async def receive(self) -> None:
        """Launches the guest empty and standing still, for another pod's guest of the same VM to be sent to. It uses
        the VM's disk only once it runs. ``stop`` ends it like any other.
        """

    async def send(
        self, target: Guest, limits: TransferLimits, progress: Callable[[TransferInfo], None]
    ) -> TransferInfo:
        """Moves this running guest into ``target``, which receives and was made by the same ``Guests``.

        Returns once the target runs and this one has stopped for good. ``progress`` is called about once a
        second. The two never run at once. Raises ``TransferError``; an end that does not run afterwards has stopped.
        Cancelling stops the target and leaves this one running, unless the target had already been started: the caller
        then asks the ``state`` of both.
        """

    async def stop(self) -> None:
        """Ends the guest and releases all it held. Returns when it is gone."""


@dataclass(frozen=True, slots=True)
class FellAsleep:
    """Result of falling asleep: size of the saved memory, and number of open database sessions."""

    saved: Bytes
    sessions: int


class Woken(msgspec.Struct, frozen=True):
    """Result of a wake. ``fault`` is why the guest had to boot from its disk, without its sessions; empty if it
    resumed. ``took`` is measured from the first frame, or the order, until the guest ran.
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
    """A guest could not carry out a request; the message says what and why."""


class SleepRefusedError(GuestError):
    """The guest did not fall asleep and keeps running; the message has the reason."""


class TransferError(GuestError):
    """A guest could not be moved; the message explains, and says which end runs."""

    def __init__(self, fault: TransferFault, story: str) -> None:
        super().__init__(story)
        self.fault = fault


class Guests(Protocol):
    """Makes guests of one kind (QEMU, or simulated)."""

    def create(self, spec: GuestSpec) -> Guest:
        """A guest that is ready to be started. Touches nothing yet."""


class PodSockets(Protocol):
    """Sockets of this process that live in a pod's network; every ``LocalNetwork`` offers them. A pod of None
    means the control plane's place in the network; ports are the usual ones. Both raise ``OSError`` as sockets do, and
    ``NetworkError`` for a pod that is not plugged in.
    """

    async def connect(self, pod: ObjectName | None, host: str, port: int) -> socket.socket:
        """A non-blocking TCP connection to ``host:port`` as a program in the pod would make it."""

    async def listen(self, pod: ObjectName | None, port: int) -> socket.socket:
        """A listening non-blocking TCP socket on the pod's own address (of the control plane: on ``api_host``)."""

    def announcing(self, pod: ObjectName, vm: str) -> AbstractContextManager[Callable[[], None]]:
        """Yields a function that redirects all frames for the VM with the flat address ``vm`` to ``pod``, where they
        wait for the guest. Calling it takes no time and never fails.
        """


class NetworkError(Exception):
    """The network could not be made or changed; the message says what to do about it."""
