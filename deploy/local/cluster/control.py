"""Control endpoint of a running cluster, for the command line: one JSON line per request and response.

It listens on loopback and requires the token in the cluster's private folder.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import IPv4Address
from typing import Final

import msgspec

from deploy.kube.client import ApiClient
from deploy.local.cluster.folder import ClusterFolder
from deploy.local.kubernetes.plan.cluster_plan import VM_RANGE, VM_RANGE_MTU, VM_VISITOR
from deploy.local.private_file import write_private
from deploy.neonvm.network.namespaces import NamespaceNetwork
from deploy.neonvm.network.sockets import Dial, Forwarder
from deploy.neonvm.overlay.fence import BRIDGE
from deploy.neonvm.ports import NetworkError
from protocol.kubernetes.api import ApiError
from protocol.kubernetes.endpoint_slices import ready_addresses
from protocol.kubernetes.resources import ENDPOINT_SLICES
from protocol.messages import ObjectName
from protocol.runtime.serving.tcp_listener import ConnectionLimits, TcpListener, bound


class ExposedCluster:
    """Forwards loopback ports into a real cluster's network. VMs are reached through ``node``, which must run."""

    def __init__(self, network: NamespaceNetwork, node: str) -> None:
        self._network = network
        self._node = node
        self._to_vms = Forwarder(network.connect_joined)

    async def expose(self, target: str, port: int) -> int:
        """The loopback port forwarded to ``target:port``, until ``close``.

        Raises ``NetworkError``, and ``ValueError`` if ``target`` is not an IP.
        """
        # Forward to the VM's own IP, which it keeps when it migrates, and not through its pod.
        if IPv4Address(target) not in VM_RANGE:
            return await self._network.expose(target, port)
        try:
            # At every call: the flat network may have been installed, or the node rebooted, since the last one.
            await self._network.join(self._node, BRIDGE, f"{VM_VISITOR}/{VM_RANGE.prefixlen}", VM_RANGE_MTU)
        except NetworkError as error:
            raise NetworkError(f"{_NO_NETWORK} ({error})") from error
        return await self._to_vms.open(target, port)

    async def close(self) -> None:
        """Close all connections to VMs and their ports."""
        await self._to_vms.close()


_NO_NETWORK: Final = "the VMs' flat network is not installed: kubectl apply -f deploy/kubernetes/neonvm-network.yaml"


class ClusterForwards:
    """Forwards loopback ports into the cluster: by ``expose`` to an IP of its network, and to headless Services, to the
    addresses in whose EndpointSlices ``dial`` connects.
    """

    def __init__(self, client: ApiClient, dial: Dial, expose: Callable[[str, int], Awaitable[int]]) -> None:
        self._client = client
        self._dial = dial
        self._expose = expose
        self._forwarder = Forwarder(dial)
        self._turns: dict[ObjectName, int] = {}

    async def open(self, ask: ControlRequest) -> int:
        """The loopback port forwarded to the request's target. Raises ``NetworkError``."""
        if ask.ask != EXPOSE_SERVICE:
            return await self._expose(ask.target, ask.port)
        namespace, _, name = ask.target.partition("/")
        return await self.open_service(ObjectName(namespace, name))

    async def open_service(self, service: ObjectName) -> int:
        """The loopback port forwarded to the Service."""
        return await self._forwarder.forward(service, partial(self._connect, service))

    async def close(self) -> None:
        """Close all connections and ports of Services."""
        await self._forwarder.close()

    async def _connect(self, service: ObjectName) -> socket.socket:
        """Connect to the Service's next reachable endpoint, round robin. Raises ``OSError``."""
        places = await self._places(service)
        turn = self._turns.get(service, 0)
        self._turns[service] = turn + 1
        for offset in range(len(places)):
            try:
                return await self._dial(*places[(turn + offset) % len(places)])
            # A slice may still list an endpoint that is gone.
            except OSError:
                continue
        raise ConnectionRefusedError(f"no endpoint of {service} is ready")

    async def _places(self, service: ObjectName) -> list[tuple[str, int]]:
        selector = f"kubernetes.io/service-name={service.name}"
        try:
            slices = await self._client.list(ENDPOINT_SLICES, service.namespace, selector)
        except ApiError as error:
            raise ConnectionError(str(error)) from error
        return [place for endpoint_slice in slices.objects for place in ready_addresses(endpoint_slice)]


class ControlEndpoint(msgspec.Struct, frozen=True):
    """Address of the control endpoint."""

    port: int
    token: str
    pid: int


class ControlRequest(msgspec.Struct, frozen=True):
    """One request. ``ask`` is ``status``, ``expose`` (``target``: an IP, ``port``), ``expose-service`` (``target``: the
    ``namespace/name`` of a headless Service), or the name of an action.
    """

    token: str
    ask: str
    target: str = ""
    port: int = 0


class ProcessStatus(msgspec.Struct, frozen=True):
    """One process of the cluster. ``pid`` is 0 while it is not running."""

    name: str
    pid: int
    restarts: int


class ControlResponse(msgspec.Struct, frozen=True):
    """One response. ``error`` is empty on success."""

    error: str = ""
    port: int = 0
    network: str = ""
    guests: str = ""
    agents: str = ""
    host: str = ""
    parts: list[ProcessStatus] = []
    unreadable: list[str] = []
    """Objects that the controllers cannot read and therefore ignore, with the reason."""


PATIENCE: Final = 5.0
"""Seconds within which a client must send its request; any user of the machine can connect."""

MOST_CONNECTIONS: Final = 64
"""Concurrent connections; a new one replaces the oldest."""

EXPOSE_SERVICE: Final = "expose-service"
STOP_KUBELET: Final = "stop-kubelet"
START_KUBELET: Final = "start-kubelet"

Actions = Mapping[str, Callable[[str], None]]
"""Actions by name; they are called with the request's ``target`` and may raise ``LookupError``."""


@asynccontextmanager
async def control_endpoint(
    folder: ClusterFolder, ways: ClusterForwards, status: Callable[[], ControlResponse], actions: Actions
) -> AsyncIterator[None]:
    """Serve requests while the context is open."""
    token = secrets.token_hex(16)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(PATIENCE):
            try:
                line = await reader.readline()
            except ValueError:  # the line is too long
                return
        writer.write(msgspec.json.encode(await _answer(line, token, ways, status, actions)) + b"\n")
        await writer.drain()

    limits = ConnectionLimits(MOST_CONNECTIONS, MOST_CONNECTIONS)
    listener = TcpListener(await bound("127.0.0.1", 0), serve, limits)
    # Written only now that the server listens.
    write_private(folder.control, msgspec.json.encode(ControlEndpoint(listener.port, token, os.getpid())).decode())
    try:
        yield
    finally:
        folder.control.unlink(missing_ok=True)
        await listener.close()


async def _answer(
    line: bytes, token: str, ways: ClusterForwards, status: Callable[[], ControlResponse], actions: Actions
) -> ControlResponse:
    try:
        ask = msgspec.json.decode(line, type=ControlRequest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return ControlResponse(error=str(error))
    # As bytes: `compare_digest` accepts only ASCII strings.
    if not hmac.compare_digest(ask.token.encode(), token.encode()):
        return ControlResponse(error="wrong token")
    if ask.ask == "status":
        return status()
    try:
        if ask.ask in actions:
            actions[ask.ask](ask.target)
            return ControlResponse()
        return ControlResponse(port=await ways.open(ask))
    except (NetworkError, ValueError, LookupError) as error:
        return ControlResponse(error=str(error))


class NoAnswerError(Exception):
    """The cluster's process did not answer, or returned an error."""


async def ask_cluster(folder: ClusterFolder, ask: str, target: str = "", port: int = 0) -> ControlResponse:
    """Send a request to the running cluster of ``folder``. Raises ``NoAnswerError``."""
    try:
        endpoint = msgspec.json.decode(folder.control.read_bytes(), type=ControlEndpoint)
        reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
        try:
            writer.write(msgspec.json.encode(ControlRequest(endpoint.token, ask, target, port)) + b"\n")
            async with asyncio.timeout(10.0):
                answer = msgspec.json.decode(await reader.readline(), type=ControlResponse)
        finally:
            writer.close()
    except (OSError, ValueError, RecursionError) as error:
        # A killed process leaves its control file behind.
        if isinstance(error, FileNotFoundError) or not folder.runs():
            remedy = f"autoscale local up --name {folder.name}"
            raise NoAnswerError(f"cluster {folder.name!r} is not running; start it: {remedy}") from error
        raise NoAnswerError(f"cluster {folder.name!r} does not answer: {error}") from error
    if answer.error:
        raise NoAnswerError(answer.error)
    return answer
