"""Keeps one node's part of the flat network, and gives taps to its runner pods.

- A pod is known by its folder, which the kubelet mounts into that pod alone; its address by the API server.
- What cannot be done now is tried again; what runs already does not depend on this program.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Never

import msgspec

from deploy.kube.client import ApiClient, ApiError, ApiUnavailableError
from deploy.kube.informer import Informer
from deploy.neonvm.network.commands import run
from deploy.neonvm.overlay.node_plan import (
    TUNNEL,
    NodePlace,
    forwarding,
    made_of,
    peers,
    plugged_in,
    rightful_address,
    tap_name,
)
from deploy.neonvm.overlay.taps import forget, hand_over, open_folders, open_tap, waiting
from deploy.neonvm.ports import NetworkError
from deploy.neonvm.remote.address_choice import owner_of
from deploy.neonvm.runner.flat_tap import TapOffer
from protocol.kubernetes.objects import Json, labels_of, text, uid_of
from protocol.kubernetes.resources import IP_ADDRESSES, PODS, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.names import LABEL_VM_NAME
from protocol.runtime.clock import Clock
from protocol.units import Seconds

LOG: Final = logging.getLogger("neonvm.network")

_LOOK: Final = Seconds(0.5)
_LEFT_FOR: Final = 600.0
_RENEW: Final = Seconds(10.0)


@dataclass(frozen=True, slots=True)
class NodeNetworkDependencies:
    """What it works with. ``root`` holds the folders of this node's pods, ``nodes`` is the cache of all nodes."""

    client: ApiClient
    nodes: Informer
    clock: Clock
    root: Path


class NodeNetwork:
    """This node's part. ``run`` works until cancelled."""

    def __init__(self, place: NodePlace, deps: NodeNetworkDependencies) -> None:
        self._place = place
        self._deps = deps
        self.is_up = False

    async def run(self) -> None:
        """Keeps tunnel and peers, and serves pods."""
        await self._deps.nodes.synced.wait()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_up())
            tasks.create_task(self._keep_serving())

    async def _keep_up(self) -> Never:
        while True:
            try:
                await self.renew()
                self.is_up = True
            except (NetworkError, msgspec.DecodeError) as error:
                LOG.warning("the node's part of the flat network cannot be kept", extra={"reason": str(error)})
            await self._deps.clock.sleep(_RENEW)

    async def renew(self) -> None:
        """Makes what is missing and follows the cluster's nodes. Raises ``NetworkError``."""
        found = msgspec.json.decode(await run("ip", "-j", "link"), type=list[dict[str, object]])
        names = [str(each.get("ifname")) for each in found]
        await run("ip", "-batch", "-", lines=made_of(self._place, names))
        present = msgspec.json.decode(
            await run("bridge", "-j", "fdb", "show", "dev", TUNNEL), type=list[dict[str, object]]
        )
        others = peers(self._deps.nodes.objects.values(), self._place.name)
        if changes := forwarding(present, others):
            await run("bridge", "-batch", "-", lines=changes)

    async def _keep_serving(self) -> Never:
        while True:
            try:
                await asyncio.to_thread(open_folders, self._deps.root)
            except OSError as error:
                LOG.warning("the folders of pods cannot be opened", extra={"reason": str(error)})
            if self.is_up and (uids := await asyncio.to_thread(waiting, self._deps.root)):
                try:
                    await self.serve(uids)
                except (ApiError, ApiUnavailableError, OSError) as error:
                    LOG.warning("the pods of this node cannot be listed", extra={"reason": str(error)})
            await self._deps.clock.sleep(_LOOK)

    async def serve(self, uids: list[str]) -> None:
        """Plugs in the pods that wait, each whatever becomes of the others.

        Raises ``ApiError``, ``ApiUnavailableError`` and ``OSError`` where none can be looked at.
        """
        here = await self._deps.client.list(PODS, field_selector=f"spec.nodeName={self._place.name}")
        pods = {uid_of(each): each for each in here.objects}
        await asyncio.to_thread(forget, self._deps.root, pods.keys(), self._deps.clock.wall() - _LEFT_FOR)
        for uid in uids:
            if (pod := pods.get(uid)) is not None:
                await self._serve_one(uid, pod)

    async def _serve_one(self, uid: str, pod: Json) -> None:
        name = text(pod, "metadata", "name")
        try:
            if address := await self._address(pod):
                await self._plug_in(uid, address)
                LOG.info("a pod was plugged in", extra={"pod": name, "address": address})
        except (ApiError, ApiUnavailableError, NetworkError, OSError) as error:
            LOG.warning("a pod could not be plugged in yet", extra={"pod": name, "reason": str(error)})

    async def _address(self, pod: Json) -> str:
        name = ObjectName(text(pod, "metadata", "namespace"), labels_of(pod).get(LABEL_VM_NAME, ""))
        vm = await self._deps.client.get(VIRTUAL_MACHINES, name)
        wanted = text(vm, "status", "extraNetIP")
        if not wanted:
            return ""
        claim = await self._deps.client.get(IP_ADDRESSES, ObjectName("", wanted))
        return rightful_address(pod, vm, owner_of(claim)[1])

    async def _plug_in(self, uid: str, address: str) -> None:
        name = tap_name(uid)
        descriptor = await asyncio.to_thread(open_tap, name)
        try:
            await run("ip", "-batch", "-", lines=plugged_in(name, self._place.mtu))
            offer = TapOffer(address, self._place.mtu)
            await asyncio.to_thread(hand_over, self._deps.root / uid, descriptor, offer)
        finally:
            os.close(descriptor)


async def place_of(name: str, address: str) -> NodePlace:
    """This node as its interfaces say it. Raises ``NetworkError`` where ``address`` is on none of them."""
    found = msgspec.json.decode(await run("ip", "-j", "address"), type=list[dict[str, object]])
    for each in found:
        addresses = each.get("addr_info")
        mtu = each.get("mtu")
        if isinstance(addresses, list) and isinstance(mtu, int) and any(_is(one, address) for one in addresses):
            return NodePlace(name, address, mtu)
    raise NetworkError(f"this node has no interface with the address {address}")


def _is(found: object, address: str) -> bool:
    return isinstance(found, dict) and found.get("local") == address
