"""Loopback ports of the machine that lead to a headless Service: what a connection to its name would do in a cluster.

Each connection goes to the next of the endpoints that are ready at that moment, and stays there until it ends.
"""

from __future__ import annotations

import socket
from functools import partial

from deploy.kube.client import ApiClient
from deploy.neonvm.network.forwarder import Dial, Forwarder
from protocol.kubernetes.api import ApiError
from protocol.kubernetes.endpoint_slices import ready_addresses
from protocol.kubernetes.resources import ENDPOINT_SLICES
from protocol.messages import ObjectName


class ServiceForwards:
    """Any number of Services; ``dial`` reaches the addresses in their slices."""

    def __init__(self, client: ApiClient, dial: Dial) -> None:
        self._client = client
        self._dial = dial
        self._forwarder = Forwarder(dial)
        self._turns: dict[ObjectName, int] = {}

    async def open(self, service: ObjectName) -> int:
        """The loopback port that leads to the Service."""
        return await self._forwarder.lead(service, partial(self._connect, service))

    async def close(self) -> None:
        """Ends all connections and gives the ports back."""
        await self._forwarder.close()

    async def _connect(self, service: ObjectName) -> socket.socket:
        """A connection to the next endpoint that can be reached. Raises ``OSError``."""
        places = await self._places(service)
        # Round robin for each Service.
        turn = self._turns.get(service, 0)
        self._turns[service] = turn + 1
        for offset in range(len(places)):
            try:
                return await self._dial(*places[(turn + offset) % len(places)])
            # An endpoint may be gone before its slice is updated.
            except OSError:
                continue
        raise ConnectionRefusedError(f"no endpoint of {service} is ready")

    async def _places(self, service: ObjectName) -> list[tuple[str, int]]:
        selector = f"kubernetes.io/service-name={service.name}"
        try:
            slices = await self._client.list(ENDPOINT_SLICES, service.namespace, selector)
        except ApiError as error:
            # Callers expect an `OSError` when a dial fails.
            raise ConnectionError(str(error)) from error
        return [place for endpoint_slice in slices.objects for place in ready_addresses(endpoint_slice)]
