"""Pods as loopback addresses, for simulated guests, and for everything except the guests of a hub.

Each pod has its own IP in 127.0.0.0/8, so all pods can use the same ports. But a program on the host that listens on
all addresses, such as node_exporter on 9100, occupies its port on every loopback address; such ports are replaced.
"""

from __future__ import annotations

import errno
import hashlib
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final

from deploy.neonvm.addressing import USUAL_PORTS
from deploy.neonvm.network.addresses import AddressPool
from deploy.neonvm.network.sockets import Forwarder, connected, listener_on, listening, tcp_socket
from deploy.neonvm.ports import NetworkError, PodNetwork
from protocol.messages import ObjectName

_CONTROL: Final = "0.1"


@dataclass(frozen=True, slots=True)
class _Allocations:
    """Allocations of a network that is up."""

    block: LoopbackBlock
    pods: AddressPool
    vms: AddressPool
    ports: PortMap


class LoopbackNetwork:
    """A network of loopback addresses, and its ``PodSockets``. ``reason`` is part of the description."""

    def __init__(self, cluster: str, reason: str) -> None:
        self._cluster = cluster
        self._reason = reason
        self._allocations: _Allocations | None = None
        self._nodes: set[str] = set()
        self._pod_networks: dict[ObjectName, PodNetwork] = {}
        self._forwarder = Forwarder(self._dial)

    @property
    def description(self) -> str:
        """One line for users."""
        taken = self._allocations.ports.description if self._allocations is not None else ""
        return f"nodes are names and pods are loopback addresses ({'; '.join(filter(None, (self._reason, taken)))})"

    async def up(self) -> None:
        """Allocate a block of addresses. Raises ``NetworkError``."""
        await self.down()
        block = LoopbackBlock.claim(self._cluster)
        try:
            self._allocations = _Allocations(
                block,
                # Pods and VMs each get half of the block; .0.1 is the control plane's.
                AddressPool("pods", block.address("1.0"), block.address("127.255")),
                AddressPool("VMs", block.address("128.0"), block.address("255.252")),
                # Probed at an address of the block that is never allocated.
                PortMap.probe(block.address("255.253"), USUAL_PORTS),
            )
        except BaseException:
            block.close()
            raise

    async def down(self) -> None:
        """Release the block."""
        await self._forwarder.close()
        self._pod_networks.clear()
        self._nodes.clear()
        if self._allocations is not None:
            self._allocations.block.close()
            self._allocations = None

    async def add_node(self, node: str) -> None:
        """Add a node, which is only a name."""
        self._nodes.add(node)

    async def add_pod(self, node: str, pod: ObjectName) -> PodNetwork:
        """Allocate an address for the pod."""
        if node not in self._nodes:
            raise NetworkError(f"cannot add {pod} to {node}: no such node")
        if pod not in self._pod_networks:
            address = self._up().pods.allocate(pod)
            self._pod_networks[pod] = PodNetwork(
                address=address,
                enter=(),
                guest_host=address,
                api_host=self._up().block.address(_CONTROL),
                attachments=(),
                moved_ports=self._up().ports.moved,
            )
        return self._pod_networks[pod]

    async def remove_pod(self, pod: ObjectName) -> None:
        """Release the pod's address."""
        if self._pod_networks.pop(pod, None) is not None:
            self._up().pods.release(pod)

    async def vm_address(self, vm: ObjectName) -> str:
        """The VM's address in the block."""
        return self._up().vms.allocate(vm)

    async def release_vm(self, vm: ObjectName) -> None:
        """Release a VM's address."""
        self._up().vms.release(vm)

    def control_enter(self) -> Sequence[str]:
        """Empty: the control plane runs in the host's network."""
        return ()

    def port_for(self, port: int) -> int:
        """``port``, or its replacement if another program uses it."""
        return self._up().ports.moved.get(port, port)

    async def expose(self, target: str, port: int) -> int:
        """A loopback port forwarded to ``target:port``."""
        return await self._forwarder.open(target, self.port_for(port))

    async def connect(self, pod: ObjectName | None, host: str, port: int) -> socket.socket:
        """Connect to ``host:port``. Raises ``NetworkError`` if ``pod`` is not on the network."""
        if pod is not None:
            self._network_of(pod)
        return await self._dial(host, self.port_for(port))

    async def listen(self, pod: ObjectName | None, port: int) -> socket.socket:
        """Listen on the pod's address, or on the control plane's if ``pod`` is None."""
        host = self._up().block.address(_CONTROL) if pod is None else self._network_of(pod).address
        return listening(tcp_socket(), host, self.port_for(port))

    def announcing(self, pod: ObjectName, vm: str) -> AbstractContextManager[Callable[[], None]]:  # noqa: ARG002  # a port
        """No effect: there are no bridges."""
        self._network_of(pod)
        return nullcontext(lambda: None)

    async def _dial(self, host: str, port: int) -> socket.socket:
        return await connected(tcp_socket(), host, port)

    def _network_of(self, pod: ObjectName) -> PodNetwork:
        if pod not in self._pod_networks:
            raise NetworkError(f"{pod} is not on the network")
        return self._pod_networks[pod]

    def _up(self) -> _Allocations:
        if self._allocations is None:
            raise NetworkError("the network is not up")
        return self._allocations


# Resolvers use addresses in 127.0.0.0/16.
_FIRST: Final = 64
_BLOCKS: Final = 64


class LoopbackBlock:
    """A /16 block of loopback addresses, reserved until ``close``."""

    def __init__(self, number: int, guard: socket.socket) -> None:
        self._number = number
        self._guard = guard

    @classmethod
    def claim(cls, cluster: str) -> LoopbackBlock:
        """Reserve a free block for ``cluster``. Raises ``NetworkError`` if all 64 are in use."""
        # Start at a hash of the name, so that a cluster's addresses rarely change between runs.
        start = int.from_bytes(hashlib.sha256(cluster.encode()).digest()[:2], "big")
        for step in range(_BLOCKS):
            number, guard = _FIRST + (start + step) % _BLOCKS, socket.socket(socket.AF_UNIX)
            try:
                # An abstract socket: the kernel frees the name when the process ends.
                guard.bind(f"\0autoscale.127.{number}")
            except OSError:
                guard.close()
            else:
                return cls(number, guard)
        raise NetworkError(
            f"no block of loopback addresses is free (127.{_FIRST}.0.0 to 127.{_FIRST + _BLOCKS - 1}.255.255); "
            f"stop another local cluster first: autoscale local down"
        )

    def address(self, rest: str) -> str:
        """The block's address that ends in ``rest``, such as ``"0.1"``."""
        return f"127.{self._number}.{rest}"

    def close(self) -> None:
        """Release the block."""
        self._guard.close()


_REPLACEMENTS: Final = range(61000, 65536)
"""Above the kernel's ephemeral ports."""


@dataclass(frozen=True, slots=True)
class PortMap:
    """``moved`` has the replacement of each usual port that is taken, ``taken`` the program that uses it."""

    moved: Mapping[int, int]
    taken: Mapping[int, str]

    @classmethod
    def probe(cls, address: str, usual: Iterable[int]) -> PortMap:
        """Find replacements for the ``usual`` ports that are taken at ``address``. Raises ``NetworkError``."""
        taken = {port: listener_on(port) for port in usual if not _is_free(address, port)}
        # Lazy: usually no port is taken.
        replacements = (port for port in _REPLACEMENTS if _is_free(address, port))
        moved = dict(zip(taken, replacements, strict=False))
        if missing := sorted(taken.keys() - moved.keys()):
            raise NetworkError(f"port {missing[0]} is used by {taken[missing[0]]}, and no other port is free")
        return cls(moved, taken)

    @property
    def description(self) -> str:
        """The replaced ports in one line; empty if there are none."""
        return "; ".join(
            f"port {port} is taken by {who}: {self.moved[port]} instead" for port, who in self.taken.items()
        )


def _is_free(address: str, port: int) -> bool:
    try:
        listening(tcp_socket(), address, port).close()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise NetworkError(f"cannot listen at {address}:{port}: {error}") from error
        return False
    return True
