"""Nodes and pods as network namespaces on one flat L2 network; needs root (S4.12).

    switch (10.100.0.1, control plane) ── bridge ──┬── node a ── bridge ──┬── pod ── bridge ── tap flat0 ── guest eth0
                                                   └── node b ── bridge   └── tap link0 (10.255.255.253) ── guest eth1

All interfaces are in namespaces of the cluster, so the host's network does not change, and deleting the namespaces
removes everything.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

from deploy.neonvm.addressing import (
    FLAT_PREFIX,
    LINK_GUEST,
    LINK_POD,
    LINK_POD_MAC,
    LINK_PREFIX,
    flat_mac,
)
from deploy.neonvm.network import netns
from deploy.neonvm.network.addresses import AddressPool
from deploy.neonvm.network.announcement import announcement
from deploy.neonvm.network.commands import ip_in, run
from deploy.neonvm.network.sockets import Forwarder, connected, listening
from deploy.neonvm.ports import NetworkError, PodNetwork
from deploy.neonvm.tap import open_tap
from protocol.messages import ObjectName

CONTROL: Final = "10.100.0.1"
CLUSTER_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
"""Valid names of a cluster."""

_SWITCH: Final = "switch"
_FLAT: Final = "flat0"
# Without a querier, multicast snooping would drop multicast; `addrgenmode none` prevents IPv6 link-local addresses.
_BRIDGE: Final = ("link set lo up", "link add br0 type bridge mcast_snooping 0", "link set br0 addrgenmode none up")


class NamespaceNetwork:
    """A network of namespaces, and its ``PodSockets``. ``reason`` is part of the description."""

    def __init__(self, cluster: str, reason: str) -> None:
        if not CLUSTER_NAME.fullmatch(cluster):
            raise NetworkError(
                f"a cluster's name is lower-case letters, digits and hyphens, at most 40; not {cluster!r}"
            )
        # All names start with the cluster's name, so that the next run can clean up after a crash.
        self._prefix = _prefix(cluster)
        self._reason = reason
        self._pods = AddressPool("pods", "10.100.1.0", "10.100.127.255")
        self._vms = AddressPool("VMs", "10.100.128.0", "10.100.255.254")
        self._nodes: dict[str, int] = {}
        self._pod_networks: dict[ObjectName, tuple[str, PodNetwork]] = {}
        self._taps: dict[ObjectName, int] = {}
        self._forwarder = Forwarder(partial(self.connect, None))

    @property
    def description(self) -> str:
        """One line for users."""
        return f"nodes are network namespaces on one bridge ({self._reason})"

    async def up(self) -> None:
        """Clean up after a crashed run of the same cluster, then create the switch. Raises ``NetworkError``."""
        await self.down()
        try:
            await run("ip", "netns", "add", self._switch)
            await ip_in(self._switch, *_BRIDGE, f"address add {CONTROL}/{FLAT_PREFIX} dev br0")
        except BaseException:
            await self.down()
            raise

    async def down(self) -> None:
        """Kill all processes in the cluster's namespaces and delete the namespaces."""
        await self._forwarder.close()
        self._close_taps(list(self._taps))
        self._pod_networks.clear()
        self._nodes.clear()
        faults: list[str] = []
        for name in _names(self._prefix):
            try:
                await _remove(name)
            except NetworkError as error:
                faults.append(str(error))  # continue with the others
        if faults:
            raise NetworkError("; ".join(faults))

    async def add_node(self, node: str) -> None:
        """Create a namespace with a bridge, connected to the switch by a veth pair."""
        if node in self._nodes:
            return
        namespace, number = self._node(node), len(self._nodes)
        await self._make(namespace, self._switch, f"n{number}", ())
        self._nodes[node] = number

    async def add_pod(self, node: str, pod: ObjectName) -> PodNetwork:
        """Create a namespace with an address and two taps for a guest: flat network and private link."""
        if pod in self._pod_networks:
            return self._pod_networks[pod][1]
        if node not in self._nodes:
            raise NetworkError(f"cannot add {pod} to {node}: no such node")
        address, namespace = self._pods.allocate(pod), self._pod(pod)
        try:
            await self._make(namespace, self._node(node), f"p{self._pods.index(pod)}", _guest_side(address))
            # Kept open, so that the tap queues frames while the guest has no QEMU.
            self._taps[pod] = netns.call_in(namespace, lambda: open_tap(_FLAT))
        except BaseException as error:
            await _remove(namespace)
            self._pods.release(pod)
            if isinstance(error, OSError):
                raise NetworkError(f"cannot open a tap for {pod}: {error}") from error
            raise
        network = PodNetwork(
            address=address,
            enter=_enter(namespace),
            guest_host=LINK_GUEST,
            api_host=CONTROL,
            attachments=(f"fd:{self._taps[pod]}", "tap:link0"),
        )
        self._pod_networks[pod] = node, network
        return network

    async def remove_pod(self, pod: ObjectName) -> None:
        """Kill the processes in the pod's namespace and delete it."""
        if pod not in self._pod_networks:
            return
        node, _ = self._pod_networks.pop(pod)
        self._close_taps([pod])
        # The kernel deletes the interfaces of a namespace asynchronously; delete the veth peer now, so that its name
        # can be reused.
        with suppress(NetworkError):
            await ip_in(self._node(node), f"link del p{self._pods.index(pod)}")
        await _remove(self._pod(pod))
        self._pods.release(pod)

    async def vm_address(self, vm: ObjectName) -> str:
        """The VM's address on the flat network."""
        return self._vms.allocate(vm)

    async def release_vm(self, vm: ObjectName) -> None:
        """Release a VM's address."""
        self._vms.release(vm)

    async def join(self, node: str, bridge: str, address: str, mtu: int) -> None:
        """Add an address on a bridge of a node, from which ``connect_joined`` connects, with the MAC of a flat-network
        address. Raises ``NetworkError`` if the node has no such bridge.
        """
        namespace = f"{self._prefix}joined"
        # Only one bridge can be joined; repeated calls do nothing.
        if namespace not in _names(namespace):
            mac = flat_mac(address.partition("/")[0])
            lines = (f"link set up0 mtu {mtu}", f"link set br0 address {mac}", f"address add {address} dev br0")
            await self._make(namespace, self._node(node), "joined", lines, bridge)

    async def connect_joined(self, host: str, port: int) -> socket.socket:
        """Connect from the address of ``join``. Raises ``OSError``."""
        return await connected(netns.socket_in(f"{self._prefix}joined"), host, port)

    def control_enter(self) -> Sequence[str]:
        """Command prefix that enters the switch's namespace, which has ``10.100.0.1``."""
        return _enter(self._switch)

    def node_enter(self, node: str) -> Sequence[str]:
        """Command prefix that enters a node's namespace."""
        return _enter(self._node(node))

    async def configure(self, node: str | None, *lines: str) -> None:
        """Run ``lines`` with ``ip -batch`` in a node's namespace, or in the switch if ``node`` is None. Raises
        ``NetworkError``.
        """
        await ip_in(self._switch if node is None else self._node(node), *lines)

    def port_for(self, port: int) -> int:
        """``port`` itself, because no other program listens in the namespace."""
        return port

    async def expose(self, target: str, port: int) -> int:
        """A loopback port of the host, forwarded to ``target:port``."""
        return await self._forwarder.open(target, port)

    async def connect(self, pod: ObjectName | None, host: str, port: int) -> socket.socket:
        """Connect from the pod's namespace, or from the switch if ``pod`` is None."""
        return await connected(self._socket(pod), host, port)

    async def listen(self, pod: ObjectName | None, port: int) -> socket.socket:
        """Listen in the pod's namespace, or in the switch if ``pod`` is None."""
        host = CONTROL if pod is None else self._network_of(pod).address
        return listening(self._socket(pod), host, port)

    @contextmanager
    def announcing(self, pod: ObjectName, vm: str) -> Iterator[Callable[[], None]]:
        """Yield a callback that announces the VM from the pod, so that all bridges learn its port."""
        self._network_of(pod)
        frame = announcement(flat_mac(vm))
        try:
            raw = netns.frames_in(self._pod(pod), "br0")
        except OSError as error:
            raise NetworkError(f"cannot announce {vm} from {pod}: {error}") from error

        def announce() -> None:
            with suppress(OSError):  # the guest's own announcement follows
                raw.send(frame)

        with raw:
            yield announce

    async def _make(
        self, namespace: str, upstream: str, port: str, commands: Sequence[str], bridge: str = "br0"
    ) -> None:
        """Create a namespace whose bridge is connected to ``bridge`` of ``upstream``; delete it on failure."""
        veth = f"link add up0 type veth peer name {port} netns {upstream}"
        try:
            await run("ip", "netns", "add", namespace)
            await ip_in(namespace, *_BRIDGE, veth, "link set up0 master br0 addrgenmode none up", *commands)
            await ip_in(upstream, f"link set {port} master {bridge} addrgenmode none up")
        except BaseException:
            await _remove(namespace)
            raise

    def _close_taps(self, pods: Sequence[ObjectName]) -> None:
        for pod in pods:
            os.close(self._taps.pop(pod))

    def _socket(self, pod: ObjectName | None) -> socket.socket:
        if pod is None:
            return netns.socket_in(self._switch)
        self._network_of(pod)
        return netns.socket_in(self._pod(pod))

    def _network_of(self, pod: ObjectName) -> PodNetwork:
        if pod not in self._pod_networks:
            raise NetworkError(f"{pod} is not on the network")
        return self._pod_networks[pod][1]

    @property
    def _switch(self) -> str:
        return f"{self._prefix}{_SWITCH}"

    def _node(self, node: str) -> str:
        # Truncated, because file names have at most 255 bytes; the digest keeps names unique.
        return f"{self._prefix}node.{node[:60]}.{_digest(node)}"

    def _pod(self, pod: ObjectName) -> str:
        return f"{self._prefix}pod.{pod.name[:60]}.{_digest(str(pod))}"


def switch_of(cluster: str) -> str | None:
    """The switch's namespace; None if the cluster has none."""
    name = f"{_prefix(cluster)}{_SWITCH}"
    return name if name in _names(name) else None


def _prefix(cluster: str) -> str:
    return f"autoscale.{cluster}."


def _guest_side(address: str) -> Sequence[str]:
    # No MAC learning on the uplink: after an incoming migration, a stale entry would point outside, and the bridge
    # would drop frames for the guest. With only one guest, there is nothing to learn.
    return (
        "link set up0 type bridge_slave learning off",
        f"address add {address}/{FLAT_PREFIX} dev br0",
        f"tuntap add {_FLAT} mode tap vnet_hdr",
        f"link set {_FLAT} master br0 addrgenmode none up",
        "tuntap add link0 mode tap",
        f"link set link0 address {LINK_POD_MAC}",
        f"address add {LINK_POD}/{LINK_PREFIX} dev link0",
        "link set link0 addrgenmode none up",
    )


def _enter(namespace: str) -> Sequence[str]:
    # Not `ip netns exec`, which remounts /sys and thereby hides the cgroups.
    return ("nsenter", f"--net={netns.RUN / namespace}", "--")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _names(prefix: str) -> list[str]:
    if not netns.RUN.is_dir():
        return []
    names = [namespace.name for namespace in netns.RUN.iterdir() if namespace.name.startswith(prefix)]
    # Pods first, so that no running pod loses its uplink.
    return sorted(names, key=lambda name: (not name.startswith(f"{prefix}pod."), name))


async def _remove(namespace: str) -> None:
    """Kill the processes in a namespace and delete it, if it exists. Raises ``NetworkError``."""
    if namespace not in _names(namespace):
        return
    for process in (await run("ip", "netns", "pids", namespace)).split():
        with suppress(ProcessLookupError):
            # A process keeps its namespace alive after its name is deleted.
            os.kill(int(process), signal.SIGKILL)
    await run("ip", "netns", "del", namespace)
