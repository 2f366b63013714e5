"""A leader that only follows the guests of a world's pods."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from deploy.kube.informer import Informer
from deploy.neonvm.access.connections import RunnerEndpoint
from deploy.neonvm.dependencies import HostedGuest
from deploy.neonvm.remote.address_choice import AddressRange
from deploy.neonvm.remote.address_claims import AddressClaims
from deploy.neonvm.remote.pod_guests import PodGuests, PodGuestsDependencies
from protocol.kubernetes.resources import IP_ADDRESSES, PODS, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from tests.neonvm.remote.asking import Answer, Asking
from tests.neonvm.remote.pods_world import World


class Follower:
    """The state that a follower knows."""

    def __init__(self, guests: PodGuests, pods: Informer) -> None:
        self._guests = guests
        self._pods = pods

    def guest(self, pod: str) -> HostedGuest:
        """The guest of a pod."""
        return self._guests.guest(self._pods.get(ObjectName("default", pod)))


async def _refused(place: RunnerEndpoint) -> socket.socket:
    raise ConnectionRefusedError(place.address)


@asynccontextmanager
async def follower(made: World, answer: Answer) -> AsyncIterator[Follower]:
    """A new one; ``answer`` responds to its requests to runners."""
    caches = [Informer(made.client, kind, made.clock) for kind in (PODS, VIRTUAL_MACHINES, IP_ADDRESSES)]
    claims = AddressClaims(made.client, caches[2], caches[1], AddressRange.parse("10.100.128.0-10.100.128.7"))
    deps = PodGuestsDependencies(
        caches[0], Asking(answer), _refused, claims, made.clock, lambda _: None, lambda _: None
    )
    guests = PodGuests(deps)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each) for each in (*(cache.run() for cache in caches), guests.run())]
        yield Follower(guests, caches[0])
        for each in running:
            each.cancel()
