"""What the NeonVM runtime needs of the machine it runs on: guests, and a network with nodes in it.

The runtime decides with these Protocols only; QEMU, light guests, namespaces and hub ports are adapters behind them,
so that faults can be injected here and every mode shares one code path.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from protocol.messages import ObjectName
from protocol.units import Bytes, MilliCpu


class GuestPhase(StrEnum):
    """Where a guest is in its life."""

    BOOTING = "Booting"
    RUNNING = "Running"
    STOPPED = "Stopped"


@dataclass(frozen=True, slots=True)
class GuestState:
    """What a guest really has at this moment, as the hypervisor and the guest say it."""

    phase: GuestPhase
    cpu: MilliCpu
    mem: Bytes


@dataclass(frozen=True, slots=True)
class PodNetwork:
    """A pod's place in the network.

    ``address`` reaches the pod from every node. ``enter`` is the command prefix that runs a program inside the pod's
    network (empty where the pod shares the machine's). ``metrics_url`` is where a program in the pod finds the
    guest's node_exporter. ``api_host`` is where programs in the pod find the control plane. ``attachments`` names
    what a guest plugs its interfaces into: taps, or the hub's socket.
    """

    address: str
    enter: Sequence[str]
    metrics_url: str
    api_host: str
    attachments: Sequence[str]

    @property
    def guest_host(self) -> str:
        """The host in ``metrics_url``: where programs in the pod reach the guest."""
        return urlsplit(self.metrics_url).hostname or self.address


@dataclass(frozen=True, slots=True)
class GuestSpec:
    """Everything that is fixed for the life of one guest, and the size with which it starts.

    ``address`` is the VM's own on the flat network (``ClusterNetwork.vm_address``): it stays with the VM wherever it
    runs, unlike ``network.address``, which is its pod's. ``state_dir`` holds the VM's disk and logs and is made by
    the guest; a guest that starts on the same directory again has the same disk.
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


class Guest(Protocol):
    """One running guest. Every call may raise ``GuestError``; all may be repeated safely."""

    async def start(self) -> None:
        """Starts the guest; returns once it has been launched, long before it has booted."""

    async def state(self) -> GuestState:
        """What the guest has now."""

    async def set_cpu(self, use: MilliCpu) -> None:
        """Gives the guest this much CPU: whole CPUs online, and a quota for the fraction."""

    async def set_memory(self, use: Bytes) -> None:
        """Asks the guest to have this much memory; shrinking may stop part of the way (see ``state``)."""

    async def stop(self) -> None:
        """Ends the guest and releases all it held. Returns when nothing of it is left."""


class GuestError(Exception):
    """A guest could not do what was asked; the message says what and why."""


class Guests(Protocol):
    """Makes guests of one kind (QEMU, or simulated)."""

    def create(self, spec: GuestSpec) -> Guest:
        """A guest that is ready to be started. Touches nothing yet."""


class ClusterNetwork(Protocol):
    """A flat L2 network in which nodes hold pods; made and removed as a whole."""

    @property
    def description(self) -> str:
        """One line for people: which kind of nodes this is, and why it was chosen."""

    async def up(self) -> None:
        """Makes the network; raises ``NetworkError`` and leaves nothing behind where it cannot."""

    async def down(self) -> None:
        """Removes everything of this network, whatever state it is in."""

    async def add_node(self, node: str) -> None:
        """Makes the place of a node. Repeating it changes nothing."""

    async def add_pod(self, node: str, pod: ObjectName) -> PodNetwork:
        """Plugs a pod into its node. Repeating it returns the same place."""

    async def remove_pod(self, pod: ObjectName) -> None:
        """Unplugs a pod; nothing where it is not plugged in."""

    async def vm_address(self, vm: ObjectName) -> str:
        """The VM's address on the flat network: the same for all its life, whatever pods come and go (S4.12)."""

    async def release_vm(self, vm: ObjectName) -> None:
        """Gives the address of a deleted VM back; nothing where it has none."""

    def control_enter(self) -> Sequence[str]:
        """The command prefix that runs a control-plane program where pods can reach it."""

    async def expose(self, target: str, port: int) -> int:
        """Forwards a free loopback port of this machine to ``target:port`` in the network; returns that port."""


class PodSockets(Protocol):
    """Sockets of this process that live in a pod's network; every ``ClusterNetwork`` of ours offers them.

    A pod of None means the control plane's place in the network. Both raise ``OSError`` as sockets do, and
    ``NetworkError`` for a pod that is not plugged in.
    """

    async def connect(self, pod: ObjectName | None, host: str, port: int) -> socket.socket:
        """A non-blocking TCP connection to ``host:port`` as a program in the pod would make it."""

    async def listen(self, pod: ObjectName | None, port: int) -> socket.socket:
        """A listening non-blocking TCP socket on the pod's own address (of the control plane: on ``api_host``)."""


class NetworkError(Exception):
    """The network could not be made or changed; the message says what to do about it."""
