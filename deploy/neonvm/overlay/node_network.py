"""Keeps one node's part of the flat network and its fence, and gives taps to its runner pods.

What cannot be done now is tried again; what runs already does not depend on this program.
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
from deploy.neonvm.overlay.endpoints import Endpoint, FlatObjects, endpoints, rightful_address
from deploy.neonvm.overlay.fence import BRIDGE, TABLE, Elements, changed, elements, rebuilt
from deploy.neonvm.overlay.node_plan import (
    OverlayNode,
    forwarding,
    made_of,
    named,
    peers,
    plugged_in,
    tap_name,
    taps_in,
)
from deploy.neonvm.overlay.taps import hand_over
from deploy.neonvm.ports import NetworkError
from deploy.neonvm.runner.flat_tap import TapOffer
from deploy.neonvm.tap import open_tap
from deploy.neonvm.texts import network as texts
from protocol.kubernetes.api import ApiError, Tolerating
from protocol.kubernetes.objects import Json, name_of, text, uid_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import IP_ADDRESSES, MIGRATIONS, NODES, PODS, VIRTUAL_MACHINES, Resource
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds

LOG: Final = logging.getLogger("neonvm.network")

WATCHED: Final = (NODES, VIRTUAL_MACHINES, MIGRATIONS, IP_ADDRESSES)

_AGAIN: Final = Seconds(1.0)
_RENEW: Final = Seconds(10.0)
_SETTLED: Final = Seconds(0.5)
"""Changes are gathered for this long before the fence follows; a move is announced seconds before it happens."""
_COUNTED: Final = Seconds(60.0)
# Pods that are served at once; the others wait.
_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class NodeNetworkDependencies:
    """Caches of the kinds in ``WATCHED``, and ``holder``, which names the pod that has a place. ``isolated`` and
    ``underlay`` are as for ``elements``. ``dropped`` gets the kernel's counters.
    """

    client: ApiClient
    caches: dict[Resource, Informer]
    clock: Clock
    holder: Callable[[str], Awaitable[ObjectName | None]]
    isolated: bool = True
    underlay: Sequence[str] = ()
    dropped: Callable[[dict[str, int]], None] = lambda _: None


class NodeNetwork:
    """This node's part. ``run`` works until cancelled."""

    def __init__(self, place: OverlayNode, deps: NodeNetworkDependencies) -> None:
        self._place = place
        self._deps = deps
        self._loaded: Elements | None = None
        self._changed = asyncio.Event()
        self._counts_at = deps.clock.now()
        self._lock = asyncio.Lock()
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self.reason = texts.NOT_LISTED
        self.up = asyncio.Event()
        for informer in deps.caches.values():
            informer.listen(lambda _: self._changed.set())

    @property
    def is_up(self) -> bool:
        """True if the network is made and fenced."""
        return not self.reason

    async def run(self) -> Never:
        """Keeps bridge, tunnel, fence and forwarding as the API says."""
        for informer in self._deps.caches.values():
            await informer.synced.wait()
        while True:
            pause = _RENEW
            try:
                await self.renew()
                self.reason = ""
                self.up.set()
            except (NetworkError, msgspec.DecodeError) as error:
                self.reason, pause = str(error), _AGAIN
                LOG.warning(texts.NOT_KEPT_UP, extra={"reason": str(error)})
            await self._deps.clock.wait(self._changed, Instant(self._deps.clock.now() + pause))
            # Changes come in bursts: one round follows all of them.
            await self._deps.clock.sleep(_SETTLED)

    async def renew(self) -> None:
        """Makes what is missing, and follows the API. Raises ``NetworkError``."""
        # Cleared before the API's state is read: a change during the work leads to another round.
        self._changed.clear()
        async with self._lock:
            links = await _json("ip", "-j", "link")
            if await self._adopt(links):
                links = await _json("ip", "-j", "link")
            # The fence comes before the bridge: if nftables cannot judge bridged frames, no tap is handed out.
            await self._fence(links)
            lines = made_of(self._place, [str(link.get("ifname")) for link in links])
            await run("ip", "-batch", "-", lines=lines)
            others, receivers = self._peers(), self._endpoints()
            present = await _json("bridge", "-j", "fdb", "show", "br", BRIDGE)
            if lines := forwarding(present, others, receivers, self._place.name):
                await run("bridge", "-batch", "-", lines=lines)
            await self._count()

    async def _fence(self, links: list[dict[str, object]]) -> None:
        """Loads the rules if they are not there, and changes what has changed since. Raises ``NetworkError``."""
        taps = {name: address for name, address in taps_in(links).items() if address}
        wanted = elements(self._endpoints(), taps, self._peers(), self._deps.isolated, self._deps.underlay)
        if self._loaded is not None and not await self._is_fenced():
            LOG.warning(texts.FENCE_REMOVED)
            self._loaded = None
        # If nft fails now, it is not known what is loaded: the next round starts from nothing.
        before, self._loaded = self._loaded, None
        if lines := rebuilt(wanted) if before is None else changed(before, wanted):
            try:
                await run("nft", "-f", "-", lines=lines)
            except NetworkError as error:
                raise NetworkError(texts.RULES_REFUSED.format(error=error)) from error
        self._loaded = wanted

    async def _is_fenced(self) -> bool:
        """Return False if somebody has removed our tables, as a reload of a node's firewall does."""
        listing = msgspec.json.decode(await run("nft", "-j", "list", "chains"))
        chains = [entry["chain"] for entry in listing.get("nftables", ()) if "chain" in entry]
        return {chain.get("family") for chain in chains if chain.get("table") == TABLE} >= {"inet", "bridge"}

    async def _count(self) -> None:
        """Reads the kernel's counters, but rarely: nft reads all sets for it. Raises ``NetworkError``."""
        if self._deps.clock.now() < self._counts_at:
            return
        self._counts_at = Instant(self._deps.clock.now() + _COUNTED)
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

    def _endpoints(self) -> list[Endpoint]:
        return endpoints(self._objects())

    def _peers(self) -> dict[str, frozenset[str]]:
        return peers(self._deps.caches[NODES].objects.values(), self._place.name)

    async def _adopt(self, links: list[dict[str, object]]) -> bool:
        """Notes the addresses of taps that an earlier version has handed out; True if there were any. Raises
        ``NetworkError``.
        """
        # An earlier version did not note addresses on taps, and its pods still run.
        unnamed = {name for name, address in taps_in(links).items() if not address}
        lines: list[str] = []
        for vm in self._deps.caches[VIRTUAL_MACHINES].objects.values() if unnamed else ():
            if text(vm, "status", "node") == self._place.name and (pod := text(vm, "status", "podName")):
                holder = await self._pod(ObjectName(name_of(vm).namespace, pod))
                tap = tap_name(uid_of(holder or {}))
                if holder is not None and tap in unnamed and (address := rightful_address(holder, self._objects())):
                    lines += named(tap, address)
        if lines:
            await run("ip", "-batch", "-", lines=lines)
        return bool(lines)

    async def _pod(self, name: ObjectName) -> Json | None:
        """Raises ``NetworkError``."""
        try:
            # The pod may be gone; a kubelet may still report its place for a while.
            with Tolerating(RefusalKind.NOT_FOUND):
                return await self._deps.client.get(PODS, name)
        except ApiError as error:
            raise NetworkError(str(error)) from error
        return None

    async def serve(self, place: str, connection: socket.socket) -> None:
        """Hands its tap to the pod that has ``place``, as soon as it may have one. Raises ``OSError``."""
        while True:
            async with self._turns:
                try:
                    if self.is_up and await self._serve(place, connection):
                        return
                except NetworkError as error:
                    extra = {"place": place, "reason": str(error)}
                    LOG.warning(texts.NOT_PLUGGED_IN, extra=extra)
            await self._deps.clock.sleep(_AGAIN)

    async def _serve(self, place: str, connection: socket.socket) -> bool:
        # The kubelet has given the place to one pod only, so it proves who calls. The API server names the address.
        holder = await self._deps.holder(place)
        pod = await self._pod(holder) if holder is not None else None
        address = rightful_address(pod, self._objects()) if pod is not None else ""
        if pod is None or not address or text(pod, "spec", "nodeName") != self._place.name:
            LOG.debug(texts.NO_VM, extra={"place": place, "pod": str(holder or "")})
            return False
        await self._plug_in(uid_of(pod), address, connection)
        LOG.info(texts.PLUGGED_IN, extra={"pod": str(holder), "address": address})
        return True

    async def _plug_in(self, uid: str, address: str, connection: socket.socket) -> None:
        name = tap_name(uid)
        descriptor = open_tap(name)
        try:
            # The order matters: the tap gets its address and its rules first, and joins the bridge only then.
            await run("ip", "-batch", "-", lines=named(name, address))
            async with self._lock:
                await self._fence(await _json("ip", "-j", "link"))
            await run("ip", "-batch", "-", lines=plugged_in(name, self._place.mtu))
            # The runner holds the tap from here on, so this process may close its own descriptor.
            hand_over(connection, descriptor, TapOffer(address, self._place.mtu))
        finally:
            os.close(descriptor)


async def _json(*command: str) -> list[dict[str, object]]:
    return msgspec.json.decode(await run(*command) or "[]", type=list[dict[str, object]])


async def place_of(name: str, address: str) -> OverlayNode:
    """This node, with the MTU of the interface that has ``address``. Raises ``NetworkError`` if none has it."""
    for link in await _json("ip", "-j", "address"):
        addresses = link.get("addr_info")
        mtu = link.get("mtu")
        if isinstance(addresses, list) and isinstance(mtu, int) and any(_is(info, address) for info in addresses):
            return OverlayNode(name, address, mtu)
    raise NetworkError(texts.NO_INTERFACE.format(address=address))


def _is(found: object, address: str) -> bool:
    return isinstance(found, dict) and found.get("local") == address
