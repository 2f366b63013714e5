"""Pods as loopback addresses of the machine: for simulated guests, and for everything but the guests of a hub.

Nodes are names only. A program in a pod is a program of the machine that binds its pod's own address, so the same port
serves any number of pods. A program that listens on all addresses (a node_exporter on 9100, a Kubernetes node's API
server on 6443) also takes its port on every loopback address: what is free is found out by trying.
"""

from __future__ import annotations

import errno
import hashlib
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final

from deploy.neonvm.addressing import METRICS_PORT, USUAL_PORTS
from deploy.neonvm.network.addresses import AddressPool
from deploy.neonvm.network.sockets import Forwarder, connected, listening, tcp_socket, who_listens
from deploy.neonvm.ports import NetworkError, PodNetwork
from protocol.messages import ObjectName

_CONTROL: Final = "0.1"


@dataclass(frozen=True, slots=True)
class _Held:
    """State of a network while it is up."""

    block: LoopbackBlock
    pods: AddressPool
    vms: AddressPool
    ports: PortMap


class LoopbackNetwork:
    """A network and its ``PodSockets`` of loopback addresses. ``why`` ends its description."""

    def __init__(self, cluster: str, why: str) -> None:
        self._cluster = cluster
        self._why = why
        self._held: _Held | None = None
        self._nodes: set[str] = set()
        self._plugged: dict[ObjectName, PodNetwork] = {}
        self._forwarder = Forwarder(self._dial)

    @property
    def description(self) -> str:
        """One line for people."""
        taken = self._held.ports.description if self._held is not None else ""
        return f"nodes are names and pods are loopback addresses ({'; '.join(filter(None, (self._why, taken)))})"

    async def up(self) -> None:
        """Claims a block of addresses. Raises ``NetworkError``."""
        await self.down()
        block = LoopbackBlock.claim(self._cluster)
        try:
            self._held = _Held(
                block,
                # Pods and VMs get halves of the block, as in the other networks; .0.1 is the control plane's.
                AddressPool("pods", block.address("1.0"), block.address("127.255")),
                AddressPool("VMs", block.address("128.0"), block.address("255.252")),
                # Tried at an address of the block that nothing else gets.
                PortMap.tried(block.address("255.253"), USUAL_PORTS),
            )
        except BaseException:
            block.close()
            raise

    async def down(self) -> None:
        """Gives the block back."""
        await self._forwarder.close()
        self._plugged.clear()
        self._nodes.clear()
        if self._held is not None:
            self._held.block.close()
            self._held = None

    async def add_node(self, node: str) -> None:
        """Remembers the node's name."""
        self._nodes.add(node)

    async def add_pod(self, node: str, pod: ObjectName) -> PodNetwork:
        """An address of the pod's own."""
        if node not in self._nodes:
            raise NetworkError(f"cannot add {pod} to {node}: no such node")
        if pod not in self._plugged:
            address = self._up().pods.take(pod)
            self._plugged[pod] = PodNetwork(
                address=address,
                enter=(),
                metrics_url=f"http://{address}:{self.port_for(METRICS_PORT)}/metrics",
                api_host=self._up().block.address(_CONTROL),
                attachments=(),
                moved_ports=self._up().ports.moved,
            )
        return self._plugged[pod]

    async def remove_pod(self, pod: ObjectName) -> None:
        """Gives the pod's address back."""
        if self._plugged.pop(pod, None) is not None:
            self._up().pods.release(pod)

    async def vm_address(self, vm: ObjectName) -> str:
        """The VM's address: another one of the block."""
        return self._up().vms.take(vm)

    async def release_vm(self, vm: ObjectName) -> None:
        """Gives a VM's address back."""
        self._up().vms.release(vm)

    def control_enter(self) -> Sequence[str]:
        """Nothing: the control plane runs on the machine itself."""
        return ()

    def port_for(self, port: int) -> int:
        """``port`` itself, or the one that takes its place if another program of the machine has taken it."""
        return self._up().ports.moved.get(port, port)

    async def expose(self, target: str, port: int) -> int:
        """A port on 127.0.0.1 that leads to ``target:port``."""
        return await self._forwarder.open(target, self.port_for(port))

    async def connect(self, pod: ObjectName | None, host: str, port: int) -> socket.socket:
        """A connection; here it makes no difference from which pod."""
        if pod is not None:
            # As in real networks, a pod that is not plugged in cannot connect.
            self._place(pod)
        return await self._dial(host, self.port_for(port))

    async def listen(self, pod: ObjectName | None, port: int) -> socket.socket:
        """A listening socket on the pod's address."""
        host = self._up().block.address(_CONTROL) if pod is None else self._place(pod).address
        return listening(tcp_socket(), host, self.port_for(port))

    def announcing(self, pod: ObjectName, vm: str) -> AbstractContextManager[Callable[[], None]]:  # noqa: ARG002  # a port
        """Does nothing: no bridge here learns where a VM is."""
        self._place(pod)
        return nullcontext(lambda: None)

    async def _dial(self, host: str, port: int) -> socket.socket:
        return await connected(tcp_socket(), host, port)

    def _place(self, pod: ObjectName) -> PodNetwork:
        if pod not in self._plugged:
            raise NetworkError(f"{pod} is not on the network")
        return self._plugged[pod]

    def _up(self) -> _Held:
        if self._held is None:
            raise NetworkError("the network is not up")
        return self._held


# Resolvers and the like use addresses in 127.0.x.x.
_FIRST: Final = 64
_BLOCKS: Final = 64


class LoopbackBlock:
    """A held block. ``close`` gives it back."""

    def __init__(self, number: int, guard: socket.socket) -> None:
        self._number = number
        self._guard = guard

    @classmethod
    def claim(cls, cluster: str) -> LoopbackBlock:
        """The first free block for ``cluster``. Raises ``NetworkError`` if 64 clusters run already."""
        # The name picks the block that is tried first, so a cluster's addresses rarely change between runs.
        start = int.from_bytes(hashlib.sha256(cluster.encode()).digest()[:2], "big")
        for step in range(_BLOCKS):
            number, guard = _FIRST + (start + step) % _BLOCKS, socket.socket(socket.AF_UNIX)
            try:
                # An abstract socket: the kernel frees the name when the process ends, and no port is needed that
                # another program may have taken.
                guard.bind(f"\0autoscale.127.{number}")
            except OSError:
                guard.close()
            else:
                return cls(number, guard)
        raise NetworkError(
            f"no block of loopback addresses is free (127.{_FIRST}.0.0 to 127.{_FIRST + _BLOCKS - 1}.255.255); "
            f"end another local cluster first: autoscale local down"
        )

    def address(self, rest: str) -> str:
        """The address of this block that ends in ``rest``, such as ``"0.1"``."""
        return f"127.{self._number}.{rest}"

    def close(self) -> None:
        """Gives the block back."""
        self._guard.close()


_OTHERS: Final = range(61000, 65536)
"""Above the ports that the kernel gives to outgoing connections."""


@dataclass(frozen=True, slots=True)
class PortMap:
    """``moved`` has the port that is used instead of each usual one that is taken, ``taken`` the program there."""

    moved: Mapping[int, int]
    taken: Mapping[int, str]

    @classmethod
    def tried(cls, address: str, usual: Iterable[int]) -> PortMap:
        """The ports that are free at ``address``: none of our listeners has them. Raises ``NetworkError``."""
        taken = {port: who_listens(port) for port in usual if not _is_free(address, port)}
        # Lazily: usually no port is taken, and none has to be tried.
        others = (port for port in _OTHERS if _is_free(address, port))
        # Not strict: there may be too few free ports, which is reported below.
        moved = dict(zip(taken, others, strict=False))
        if missing := sorted(taken.keys() - moved.keys()):
            raise NetworkError(f"port {missing[0]} is taken by {taken[missing[0]]}, and no other port is free")
        return cls(moved, taken)

    @property
    def description(self) -> str:
        """One line about what is used instead of what; empty if all is as usual."""
        return "; ".join(
            f"port {port} is taken by {who}: {self.moved[port]} instead" for port, who in self.taken.items()
        )


def _is_free(address: str, port: int) -> bool:
    try:
        listening(tcp_socket(), address, port).close()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise NetworkError(f"nothing can listen at {address}:{port}: {error}") from error
        return False
    return True
