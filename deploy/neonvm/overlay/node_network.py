"""Maintains the flat network and its filter on one node, and hands taps to the node's runner pods.

Failures are retried. Pods that are connected already do not depend on this program.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Never

import msgspec

from deploy.kube.client import ApiClient
from deploy.kube.informer import Informer
from deploy.neonvm.network.commands import run
from deploy.neonvm.overlay.endpoints import Endpoint, FlatObjects, allowed_address, endpoints
from deploy.neonvm.overlay.fence import BRIDGE, TABLE, Elements, elements, full_ruleset, set_changes
from deploy.neonvm.overlay.node_plan import (
    OverlayNode,
    attach_tap,
    create_links,
    fdb_changes,
    peers,
    set_alias,
    tap_addresses,
    tap_name,
)
from deploy.neonvm.overlay.taps import send_tap
from deploy.neonvm.ports import NetworkError
from deploy.neonvm.remote.address_choice import owner_of
from deploy.neonvm.runner.flat_tap import TapOffer
from deploy.neonvm.tap import open_tap
from deploy.neonvm.texts import network as texts
from protocol.kubernetes.api import ApiError, Tolerating
from protocol.kubernetes.objects import Json, text, uid_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import IP_ADDRESSES, MIGRATIONS, NODES, PODS, VIRTUAL_MACHINES, Resource
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds

LOG: Final = logging.getLogger("neonvm.network")

WATCHED: Final = (NODES, VIRTUAL_MACHINES, MIGRATIONS, IP_ADDRESSES)

_RETRY: Final = Seconds(1.0)
_RENEW: Final = Seconds(10.0)
_DEBOUNCE: Final = Seconds(0.5)
"""Changes are collected for this long before they are applied; a migration is known seconds before its switchover."""
_COUNT_EVERY: Final = Seconds(60.0)
# Pods served at a time.
_CONCURRENT: Final = 4


@dataclass(frozen=True, slots=True)
class NodeNetworkDependencies:
    """Dependencies of ``NodeNetwork``.

    ``caches`` are informers of the resources in ``WATCHED``. ``holder`` returns the pod to which the kubelet allocated
    a device ID. ``isolated`` and ``underlay`` are as in ``fence.elements``. ``dropped`` receives the kernel's counters.
    """

    client: ApiClient
    caches: dict[Resource, Informer]
    clock: Clock
    holder: Callable[[str], Awaitable[ObjectName | None]]
    isolated: bool = True
    underlay: Sequence[str] = ()
    dropped: Callable[[dict[str, int]], None] = lambda _: None


class NodeNetwork:
    """The flat network on one node. ``run`` maintains it until cancelled."""

    def __init__(self, node: OverlayNode, deps: NodeNetworkDependencies) -> None:
        self._node = node
        self._deps = deps
        self._loaded: Elements | None = None
        self._changed = asyncio.Event()
        self._counts_at = deps.clock.now()
        self._lock = asyncio.Lock()
        self._slots = asyncio.Semaphore(_CONCURRENT)
        self.reason = texts.NOT_LISTED
        self.up = asyncio.Event()
        for informer in deps.caches.values():
            informer.listen(lambda _: self._changed.set())

    @property
    def is_up(self) -> bool:
        """True if the network exists and is filtered."""
        return not self.reason

    async def run(self) -> Never:
        """Keep bridge, tunnel, filter and forwarding entries up to date."""
        for informer in self._deps.caches.values():
            await informer.synced.wait()
        while True:
            pause = _RENEW
            try:
                await self.renew()
                self.reason = ""
                self.up.set()
            except (NetworkError, msgspec.DecodeError) as error:
                self.reason, pause = str(error), _RETRY
                LOG.warning(texts.MAINTENANCE_FAILED, extra={"reason": str(error)})
            await self._deps.clock.wait(self._changed, Instant(self._deps.clock.now() + pause))
            # Changes come in bursts.
            await self._deps.clock.sleep(_DEBOUNCE)

    async def renew(self) -> None:
        """Create missing links and apply the state of the API objects. Raises ``NetworkError``."""
        # Clear before reading: a change during the work leads to another round.
        self._changed.clear()
        async with self._lock:
            links = await _json("ip", "-j", "link")
            # The filter before the bridge: without it, no tap is handed out.
            await self._fence(links)
            lines = create_links(self._node, [str(link.get("ifname")) for link in links])
            await run("ip", "-batch", "-", lines=lines)
            others, receivers = self._peers(), self._endpoints()
            present = await _json("bridge", "-j", "fdb", "show", "br", BRIDGE)
            if lines := fdb_changes(present, others, receivers, self._node.name):
                await run("bridge", "-batch", "-", lines=lines)
            await self._count()

    async def _fence(self, links: list[dict[str, object]]) -> None:
        """Load the rules if they are missing, and update their sets. Raises ``NetworkError``."""
        taps, deps = tap_addresses(links, self._owners()), self._deps
        desired = elements(self._endpoints(), taps, self._peers(), deps.isolated, deps.underlay)
        if self._loaded is not None and not await self._is_fenced():
            LOG.warning(texts.FENCE_REMOVED)
            self._loaded = None
        # If nft fails, the loaded state is unknown: the next round loads everything.
        loaded, self._loaded = self._loaded, None
        if lines := full_ruleset(desired) if loaded is None else set_changes(loaded, desired):
            try:
                await run("nft", "-f", "-", lines=lines)
            except NetworkError as error:
                raise NetworkError(texts.RULES_REFUSED.format(error=error)) from error
        self._loaded = desired

    async def _is_fenced(self) -> bool:
        """Return False if our tables were removed, for example by a reload of the node's firewall."""
        listing = msgspec.json.decode(await run("nft", "-j", "list", "chains"))
        chains = [entry["chain"] for entry in listing.get("nftables", ()) if "chain" in entry]
        return {chain.get("family") for chain in chains if chain.get("table") == TABLE} >= {"inet", "bridge"}

    async def _count(self) -> None:
        """Read the kernel's counters, at most once a minute: nft reads all sets for it. Raises ``NetworkError``."""
        if self._deps.clock.now() < self._counts_at:
            return
        self._counts_at = Instant(self._deps.clock.now() + _COUNT_EVERY)
        counts = dict[str, int]()
        for family in ("inet", "bridge"):
            listing = msgspec.json.decode(await run("nft", "-j", "list", "counters", "table", family, TABLE))
            for entry in listing.get("nftables", ()):
                if isinstance(counter := entry.get("counter"), dict):
                    counts[str(counter.get("name"))] = int(counter.get("packets", 0))
        self._deps.dropped(counts)

    def _objects(self) -> FlatObjects:
        caches = self._deps.caches
        return FlatObjects(
            caches[IP_ADDRESSES].objects, caches[VIRTUAL_MACHINES].objects, list(caches[MIGRATIONS].objects.values())
        )

    def _owners(self) -> dict[str, str]:
        """The uid of the VM that owns each IP."""
        return {name.name: owner_of(claim)[1] for name, claim in self._deps.caches[IP_ADDRESSES].objects.items()}

    def _endpoints(self) -> list[Endpoint]:
        return endpoints(self._objects())

    def _peers(self) -> dict[str, frozenset[str]]:
        return peers(self._deps.caches[NODES].objects.values(), self._node.name)

    async def _pod(self, name: ObjectName) -> Json | None:
        """Read the pod from the API server; None if it does not exist. Raises ``NetworkError``."""
        try:
            # The kubelet may report a deleted pod for a while.
            with Tolerating(RefusalKind.NOT_FOUND):
                return await self._deps.client.get(PODS, name)
        except ApiError as error:
            raise NetworkError(str(error)) from error
        return None

    async def serve(self, device: str, connection: socket.socket) -> None:
        """Send the pod that has ``device`` its tap; retry until a VM's status names the pod. Raises ``OSError``."""
        while True:
            async with self._slots:
                try:
                    if self.is_up and await self._serve(device, connection):
                        return
                except NetworkError as error:
                    extra = {"device": device, "reason": str(error)}
                    LOG.warning(texts.TAP_NOT_HANDED_OUT, extra=extra)
            await self._deps.clock.sleep(_RETRY)

    async def _serve(self, device: str, connection: socket.socket) -> bool:
        # The kubelet gave the device to one pod only, which identifies the caller.
        holder = await self._deps.holder(device)
        pod = await self._pod(holder) if holder is not None else None
        address = allowed_address(pod, self._objects()) if pod is not None else ""
        if pod is None or not address or text(pod, "spec", "nodeName") != self._node.name:
            LOG.debug(texts.NO_VM, extra={"device": device, "pod": str(holder or "")})
            return False
        await self._hand_out(uid_of(pod), address, connection)
        LOG.info(texts.TAP_HANDED_OUT, extra={"pod": str(holder), "address": address})
        return True

    async def _hand_out(self, uid: str, address: str, connection: socket.socket) -> None:
        name, owner = tap_name(uid), self._owners().get(address, "")
        descriptor = open_tap(name)
        try:
            # The tap must have its alias and its rules before it joins the bridge.
            await run("ip", "-batch", "-", lines=set_alias(name, address, owner))
            async with self._lock:
                await self._fence(await _json("ip", "-j", "link"))
            await run("ip", "-batch", "-", lines=attach_tap(name, self._node.mtu))
            send_tap(connection, descriptor, TapOffer(address, self._node.mtu))
        finally:
            os.close(descriptor)


async def _json(*command: str) -> list[dict[str, object]]:
    return msgspec.json.decode(await run(*command) or "[]", type=list[dict[str, object]])


class _Address(msgspec.Struct):
    local: str = ""


class _Interface(msgspec.Struct):
    mtu: int = 0
    addr_info: list[_Address] = []


async def this_node(name: str, address: str) -> OverlayNode:
    """This node, with the MTU of the interface that has ``address``. Raises ``NetworkError``."""
    for link in msgspec.json.decode(await run("ip", "-j", "address"), type=list[_Interface]):
        if any(info.local == address for info in link.addr_info):
            return OverlayNode(name, address, link.mtu)
    raise NetworkError(texts.NO_INTERFACE.format(address=address))
