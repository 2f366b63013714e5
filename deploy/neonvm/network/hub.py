"""Nodes as ports of a hub: real guests on one flat L2 network without root (S4.12).

One QEMU without a machine is the hub; its user-mode stack is the gateway from loopback into the flat network.
Connections of the flat network live in the hub, so no guest's move touches them.
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
_LISTEN_SECONDS: Final = 10.0
_GATEWAY: Final = "10.100.0.1"
_BASE: Final = (
    QEMU, "-nodefaults", "-no-user-config", "-machine", "none", "-display", "none",
    "-netdev", f"user,id=gateway,ipv6=off,restrict=on,net={_FLAT},host={_GATEWAY}",
    "-netdev", "hubport,id=hub-gateway,hubid=0,netdev=gateway",
)  # fmt: skip


class HubNetwork(LoopbackNetwork):
    """Loopback addresses for all but the guests, which are plugged into a hub. ``why`` ends its description."""

    def __init__(self, cluster: str, why: str, hypervisor: Hypervisor) -> None:
        super().__init__(cluster, why)
        self._hypervisor = hypervisor
        self._hub: Machine | None = None
        self._sockets = _socket_folder(cluster)
        # Every user of the machine reaches loopback addresses, so the daemons in guests ask for a word that only this
        # user can read.
        self._token = DaemonToken(secrets.token_hex(16), self._sockets / "token")
        self._flat = AddressPool("VMs", "10.100.128.0", "10.100.255.254")
        self._cables = AddressPool("cables", "0.0.0.1", "0.0.255.255")
        self._cabled: dict[ObjectName, PodNetwork] = {}
        self._exposed: dict[tuple[str, int], int] = {}

    @property
    def description(self) -> str:
        """One line for people."""
        return f"nodes are ports of a hub, and {super().description.removeprefix('nodes are names and ')}"

    async def up(self) -> None:
        """Starts the hub. Raises ``NetworkError`` and leaves nothing behind if it cannot."""
        try:
            await super().up()
            _make_private(self._sockets)
            self._token.file.write_text(f"autoscale.token={self._token.word}")
            self._hub = await self._hypervisor.launch("the hub", _hub_command, self._sockets / "hub.log")
        except GuestError as error:
            await self.down()
            raise NetworkError(f"the hub does not start: {error}") from error
        except BaseException:
            await self.down()
            raise

    async def down(self) -> None:
        """Ends the hub and removes its sockets, also those of a crashed run."""
        if self._hub is not None:
            await self._hub.end()
            self._hub = None
        self._cabled.clear()
        self._exposed.clear()
        shutil.rmtree(self._sockets, ignore_errors=True)
        await super().down()

    async def add_pod(self, node: str, pod: ObjectName) -> PodNetwork:
        """A loopback address for the pod and a free end of cable for its guest."""
        if pod in self._cabled:
            return self._cabled[pod]
        place = await super().add_pod(node, pod)
        self._cables.take(pod)
        cable = f"c{self._cables.number(pod)}"
        path = self._sockets / cable
        end = {"type": "stream", "id": cable, "server": True, "addr": {"type": "unix", "path": str(path)}}
        try:
            await self._call("netdev_add", end)
            # A frame for a cable on which the hub does not listen yet would end the hub.
            await self._listens(cable, path)
            await self._call("netdev_add", {"type": "hubport", "id": f"hub-{cable}", "hubid": 0, "netdev": cable})
        except BaseException:
            with suppress(NetworkError):
                await self._call("netdev_del", {"id": cable})
            await super().remove_pod(pod)
            self._cables.release(pod)
            raise
        # The flat interface is a cable to the hub; the private link is a user-mode network inside the guest's QEMU.
        ports = ":".join(str(place.port_for(port)) for port in LINK_PORTS)
        link = f"forward:{place.address}:{ports}"
        self._cabled[pod] = replace(place, attachments=(f"unix:{path}", link), token=self._token)
        return self._cabled[pod]

    async def remove_pod(self, pod: ObjectName) -> None:
        """Pulls the pod's cable out of the hub."""
        if self._cabled.pop(pod, None) is None:
            return
        cable = f"c{self._cables.number(pod)}"
        await self._call("netdev_del", {"id": f"hub-{cable}"})
        await self._call("netdev_del", {"id": cable})
        (self._sockets / cable).unlink(missing_ok=True)
        self._cables.release(pod)
        await super().remove_pod(pod)

    async def vm_address(self, vm: ObjectName) -> str:
        """The VM's address on the flat network behind the hub; ``expose`` leads to it."""
        return self._flat.take(vm)

    async def release_vm(self, vm: ObjectName) -> None:
        """Gives a VM's address back."""
        self._flat.release(vm)

    async def expose(self, target: str, port: int) -> int:
        """A port on 127.0.0.1 that leads to ``target:port``, through the hub if that is a guest."""
        if ip_address(target).is_loopback:
            return await super().expose(target, port)
        if (target, port) not in self._exposed:
            free = free_port()
            order = f"hostfwd_add gateway tcp:127.0.0.1:{free}-{target}:{port}"
            complaint = await self._call("human-monitor-command", {"command-line": order})
            if complaint:
                raise NetworkError(f"the hub cannot forward a port to {target}:{port}: {complaint}")
            self._exposed[target, port] = free
        return self._exposed[target, port]

    async def connect(self, pod: ObjectName | None, host: str, port: int) -> socket.socket:
        """A connection to ``host:port``; a flat address is reached through the hub."""
        if ip_address(host).is_loopback:
            return await super().connect(pod, host, port)
        return await super().connect(pod, "127.0.0.1", await self.expose(host, port))

    async def _listens(self, cable: str, path: Path) -> None:
        """Returns once the hub waits at the end of a cable that is not plugged in yet. Each look asks the hub."""
        # The hub begins to listen in a thread of its own. A visitor connects and leaves again, because only a hub that
        # listens accepts it.
        try:
            async with asyncio.timeout(_LISTEN_SECONDS):
                with socket.socket(socket.AF_UNIX) as visitor:
                    while visitor.connect_ex(str(path)):
                        await self._is_visited(cable, path)
                    while not await self._is_visited(cable, path):
                        continue
                while await self._is_visited(cable, path):
                    continue
        except TimeoutError as error:
            raise NetworkError(f"the hub does not listen at {path} within {_LISTEN_SECONDS:g} s") from error

    async def _is_visited(self, cable: str, path: Path) -> bool:
        listing = str(await self._call("human-monitor-command", {"command-line": "info network"}))
        return any(f"{cable}:" in line.split() and f"unix:{path}" in line for line in listing.splitlines())

    async def _call(self, command: str, arguments: dict[str, object]) -> object:
        if self._hub is None:
            raise NetworkError("the network is not up")
        try:
            return await self._hub.call(command, arguments)
        except GuestError as error:
            raise NetworkError(str(error)) from error


def _hub_command(monitor_fd: int) -> list[str]:
    monitor = ("-chardev", f"socket,id=monitor,fd={monitor_fd}", "-mon", "chardev=monitor,mode=control")
    return [*launcher(()), *_BASE, *monitor]


def _socket_folder(cluster: str) -> Path:
    """A short path, because a unix socket's may have no more than 107 characters."""
    return Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"autoscale-{os.getuid()}-{cluster}"


def _make_private(folder: Path) -> None:
    """A new folder for this user alone; one that another user has put there is refused."""
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise NetworkError(f"the folder for the hub's sockets cannot be made: {error}") from error
