"""A flat L2 network for QEMU guests without root: a QEMU process as the hub (S4.12).

The hub is a QEMU without a machine; its user-mode network is the gateway from loopback into the flat network. TCP
connections of the gateway are in the hub's process, so a guest's migration does not affect them.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import socket
import tempfile
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from itertools import count
from pathlib import Path
from typing import Final

from deploy.neonvm.addressing import FLAT_PREFIX, LINK_PORTS
from deploy.neonvm.network.addresses import AddressPool
from deploy.neonvm.network.loopback import LoopbackNetwork
from deploy.neonvm.network.sockets import free_port
from deploy.neonvm.ports import DaemonToken, GuestError, NetworkError, PodNetwork
from deploy.neonvm.qemu.accelerator import QEMU
from deploy.neonvm.qemu.machine import Hypervisor, Machine
from deploy.neonvm.qemu.qemu_command import launcher
from protocol.messages import ObjectName

_FLAT: Final = f"10.100.0.0/{FLAT_PREFIX}"
_LONGEST_FOLDER: Final = 107 - len("/c999999")
"""Bytes: paths of unix sockets have at most 107."""
_LISTEN_SECONDS: Final = 10.0
_GATEWAY: Final = "10.100.0.1"
_BASE: Final = (
    QEMU, "-nodefaults", "-no-user-config", "-machine", "none", "-display", "none",
    "-netdev", f"user,id=gateway,ipv6=off,restrict=on,net={_FLAT},host={_GATEWAY}",
    "-netdev", "hubport,id=hub-gateway,hubid=0,netdev=gateway",
)  # fmt: skip


class HubNetwork(LoopbackNetwork):
    """Guests are connected to a hub; everything else uses loopback addresses. ``reason`` is part of the description."""

    def __init__(self, cluster: str, reason: str, hypervisor: Hypervisor) -> None:
        super().__init__(cluster, reason)
        self._hypervisor = hypervisor
        self._hub: Machine | None = None
        folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
        self._sockets = folder / f"autoscale-{os.getuid()}-{cluster}"
        # Any user of the host can connect to loopback addresses, so the guests' daemons require a token.
        self._token = DaemonToken(secrets.token_hex(16), self._sockets / "token")
        self._flat = AddressPool("VMs", "10.100.128.0", "10.100.255.254")
        self._numbers = count()
        self._hub_pods: dict[ObjectName, tuple[str, PodNetwork]] = {}  # with the name of the pod's netdev
        self._exposed: dict[tuple[str, int], int] = {}

    @property
    def description(self) -> str:
        """One line for users."""
        return f"nodes are ports of a hub, and {super().description.removeprefix('nodes are names and ')}"

    async def up(self) -> None:
        """Start the hub. Raises ``NetworkError``."""
        try:
            await super().up()
            _make_private(self._sockets)
            self._token.file.write_text(f"autoscale.token={self._token.value}")
            self._hub = await self._hypervisor.launch("the hub", _hub_command, self._sockets / "hub.log")
        except GuestError as error:
            await self.down()
            raise NetworkError(f"cannot start the hub: {error}") from error
        except BaseException:
            await self.down()
            raise

    async def down(self) -> None:
        """Stop the hub and remove its sockets, including sockets left by a crashed run."""
        if self._hub is not None:
            await self._hub.end()
            self._hub = None
        self._hub_pods.clear()
        self._exposed.clear()
        shutil.rmtree(self._sockets, ignore_errors=True)
        await super().down()

    async def add_pod(self, node: str, pod: ObjectName) -> PodNetwork:
        """Allocate a loopback address for the pod, and a hub port for its guest."""
        if pod in self._hub_pods:
            return self._hub_pods[pod][1]
        network, netdev = await super().add_pod(node, pod), f"c{next(self._numbers)}"
        path = self._sockets / netdev
        backend = {"type": "stream", "id": netdev, "server": True, "addr": {"type": "unix", "path": str(path)}}
        try:
            await self._qmp("netdev_add", backend)
            # A frame to a socket that is not listening yet would crash the hub.
            await self._wait_listening(netdev, path)
            await self._qmp("netdev_add", {"type": "hubport", "id": f"hub-{netdev}", "hubid": 0, "netdev": netdev})
        except BaseException:
            with suppress(NetworkError):
                await self._qmp("netdev_del", {"id": netdev})
            await super().remove_pod(pod)
            raise
        # The flat interface is connected to the hub; the private link is a user-mode network of the guest's QEMU.
        ports = ":".join(str(network.port_for(port)) for port in LINK_PORTS)
        link = f"forward:{network.address}:{ports}"
        network = replace(network, attachments=(f"unix:{path}", link), token=self._token)
        self._hub_pods[pod] = netdev, network
        return network

    async def remove_pod(self, pod: ObjectName) -> None:
        """Remove the pod's hub port."""
        if pod not in self._hub_pods:
            return
        netdev, _ = self._hub_pods.pop(pod)
        await self._qmp("netdev_del", {"id": f"hub-{netdev}"})
        await self._qmp("netdev_del", {"id": netdev})
        (self._sockets / netdev).unlink(missing_ok=True)
        await super().remove_pod(pod)

    async def vm_address(self, vm: ObjectName) -> str:
        """The VM's IP on the flat network; reach it with ``expose``."""
        return self._flat.allocate(vm)

    async def release_vm(self, vm: ObjectName) -> None:
        """Release a VM's IP."""
        self._flat.release(vm)

    async def expose(self, target: str, port: int) -> int:
        """A loopback port forwarded to ``target:port``, through the hub if ``target`` is a guest."""
        if ip_address(target).is_loopback:
            return await super().expose(target, port)
        if (target, port) not in self._exposed:
            free = free_port()
            command = f"hostfwd_add gateway tcp:127.0.0.1:{free}-{target}:{port}"
            error = await self._qmp("human-monitor-command", {"command-line": command})
            if error:
                raise NetworkError(f"the hub cannot forward a port to {target}:{port}: {error}")
            self._exposed[target, port] = free
        return self._exposed[target, port]

    async def connect(self, pod: ObjectName | None, host: str, port: int) -> socket.socket:
        """Connect to ``host:port``, through the hub if ``host`` is on the flat network."""
        if ip_address(host).is_loopback:
            return await super().connect(pod, host, port)
        return await super().connect(pod, "127.0.0.1", await self.expose(host, port))

    async def _wait_listening(self, netdev: str, path: Path) -> None:
        """Wait until the hub listens on the socket of a netdev that is not connected to the hub yet."""
        # The hub starts listening in another thread, and accepts a client only then: connect one, and wait until the
        # hub has noticed that it is gone.
        try:
            async with asyncio.timeout(_LISTEN_SECONDS):
                with socket.socket(socket.AF_UNIX) as client:
                    while client.connect_ex(str(path)):
                        await self._has_client(netdev, path)
                    while not await self._has_client(netdev, path):
                        continue
                while await self._has_client(netdev, path):
                    continue
        except TimeoutError as error:
            raise NetworkError(f"the hub did not listen at {path} within {_LISTEN_SECONDS:g} s") from error

    async def _has_client(self, netdev: str, path: Path) -> bool:
        listing = str(await self._qmp("human-monitor-command", {"command-line": "info network"}))
        return any(f"{netdev}:" in line.split() and f"unix:{path}" in line for line in listing.splitlines())

    async def _qmp(self, command: str, arguments: dict[str, object]) -> object:
        if self._hub is None:
            raise NetworkError("the network is not up")
        try:
            return await self._hub.call(command, arguments)
        except GuestError as error:
            raise NetworkError(str(error)) from error


def _hub_command(monitor_fd: int) -> list[str]:
    monitor = ("-chardev", f"socket,id=monitor,fd={monitor_fd}", "-mon", "chardev=monitor,mode=control")
    return [*launcher(()), *_BASE, *monitor]


def _make_private(folder: Path) -> None:
    """Create a folder with mode 0700. Raises ``NetworkError`` if it exists, because another user may have created it,
    or if its path is too long.
    """
    # A longer path would end the hub at the first pod, and with it all connections.
    if len(os.fsencode(folder)) > _LONGEST_FOLDER:
        raise NetworkError(
            f"{folder}: too long for the hub's sockets; set XDG_RUNTIME_DIR to a folder with a short path"
        )
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise NetworkError(f"cannot create the folder of the hub's sockets: {error}") from error
