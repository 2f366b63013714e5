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
from deploy.local.process import ProcessSupervisor
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
    """Forwards loopback ports into a real cluster's network, to VMs through ``node``, which must run."""

    def __init__(self, network: NamespaceNetwork, node: str) -> None:
        self._network = network
        self._node = node
        self._to_vms = Forwarder(network.connect_joined)

    async def expose(self, target: str, port: int) -> int:
        """Forward a loopback port to ``target:port`` until ``close``; return its number.

        Raises ``NetworkError``, and ``ValueError`` if ``target`` is not an IP.
        """
        # A VM is reached at its own IP, which it keeps when it migrates, and not through its pod.
        if IPv4Address(target) not in VM_RANGE:
            return await self._network.expose(target, port)
        try:
            # At every call: since the last one, the flat network may have been installed or the node rebooted.
            await self._network.join(self._node, BRIDGE, f"{VM_VISITOR}/{VM_RANGE.prefixlen}", VM_RANGE_MTU)
        except NetworkError as error:
            raise NetworkError(f"{_NO_NETWORK} ({error})") from error
        return await self._to_vms.open(target, port)

    async def close(self) -> None:
        """Close all connections to VMs and their ports."""
        await self._to_vms.close()


_NO_NETWORK: Final = "the VMs' flat network is not installed: kubectl apply -f deploy/kubernetes/neonvm-network.yaml"


class ClusterForwards:
    """Forwards loopback ports into the cluster: to an IP with ``expose``, to endpoints of a Service with ``dial``."""

    def __init__(self, client: ApiClient, dial: Dial, expose: Callable[[str, int], Awaitable[int]]) -> None:
        self._client = client
        self._dial = dial
        self._expose = expose
        self._forwarder = Forwarder(dial)
        self._next_endpoint: dict[ObjectName, int] = {}

    async def open(self, request: ControlRequest) -> int:
        """Forward a loopback port to the request's target; return its number. Raises ``NetworkError``."""
        if request.ask != EXPOSE_SERVICE:
            return await self._expose(request.target, request.port)
        namespace, _, name = request.target.partition("/")
        return await self.open_service(ObjectName(namespace, name))

    async def open_service(self, service: ObjectName) -> int:
        """Forward a loopback port to the Service; return its number."""
        return await self._forwarder.forward(service, partial(self._connect, service))

    async def close(self) -> None:
        """Close all ports and connections to Services."""
        await self._forwarder.close()

    async def _connect(self, service: ObjectName) -> socket.socket:
        """Connect to the Service's next reachable endpoint, round robin. Raises ``OSError``."""
        endpoints = await self._endpoints(service)
        first = self._next_endpoint.get(service, 0)
        self._next_endpoint[service] = first + 1
        for offset in range(len(endpoints)):
            try:
                return await self._dial(*endpoints[(first + offset) % len(endpoints)])
            # A slice may still contain an endpoint that no longer exists.
            except OSError:
                continue
        raise ConnectionRefusedError(f"no endpoint of {service} is ready")

    async def _endpoints(self, service: ObjectName) -> list[tuple[str, int]]:
        selector = f"kubernetes.io/service-name={service.name}"
        try:
            slices = await self._client.list(ENDPOINT_SLICES, service.namespace, selector)
        except ApiError as error:
            raise ConnectionError(str(error)) from error
        return [address for endpoint_slice in slices.objects for address in ready_addresses(endpoint_slice)]


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


def process_statuses(supervisors: Mapping[str, ProcessSupervisor]) -> list[ProcessStatus]:
    """The processes that ``supervisors`` (by name) keep running."""
    return [ProcessStatus(name, supervisor.pid or 0, supervisor.restarts) for name, supervisor in supervisors.items()]


class ControlResponse(msgspec.Struct, frozen=True):
    """One response. ``error`` is empty if the request succeeded."""

    error: str = ""
    port: int = 0
    network: str = ""
    guests: str = ""
    agents: str = ""
    host: str = ""
    parts: list[ProcessStatus] = []
    unreadable: list[str] = []
    """Objects that the controllers cannot decode and therefore ignore, with the reason."""


REQUEST_TIMEOUT: Final = 5.0
"""Seconds within which a client must send its request: any user of the machine can connect."""

MAX_CONNECTIONS: Final = 64
"""Concurrent connections; a new one replaces the oldest."""

EXPOSE_SERVICE: Final = "expose-service"
STOP_KUBELET: Final = "stop-kubelet"
START_KUBELET: Final = "start-kubelet"

Actions = Mapping[str, Callable[[str], None]]
"""Actions by name. They get the request's ``target``, and may raise ``LookupError``."""


@asynccontextmanager
async def control_endpoint(
    folder: ClusterFolder, forwards: ClusterForwards, status: Callable[[], ControlResponse], actions: Actions
) -> AsyncIterator[None]:
    """Serve requests while the context is open."""
    token = secrets.token_hex(16)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(REQUEST_TIMEOUT):
            try:
                line = await reader.readline()
            except ValueError:  # the line is too long
                return
        writer.write(msgspec.json.encode(await _respond(line, token, forwards, status, actions)) + b"\n")
        await writer.drain()

    limits = ConnectionLimits(MAX_CONNECTIONS, MAX_CONNECTIONS)
    listener = TcpListener(await bound("127.0.0.1", 0), serve, limits)
    # The file shows that the server is listening.
    write_private(folder.control, msgspec.json.encode(ControlEndpoint(listener.port, token, os.getpid())).decode())
    try:
        yield
    finally:
        folder.control.unlink(missing_ok=True)
        await listener.close()


async def _respond(
    line: bytes, token: str, forwards: ClusterForwards, status: Callable[[], ControlResponse], actions: Actions
) -> ControlResponse:
    try:
        request = msgspec.json.decode(line, type=ControlRequest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return ControlResponse(error=str(error))
    # As bytes: `compare_digest` accepts only ASCII strings.
    if not hmac.compare_digest(request.token.encode(), token.encode()):
        return ControlResponse(error="wrong token")
    if request.ask == "status":
        return status()
    try:
        if request.ask in actions:
            actions[request.ask](request.target)
            return ControlResponse()
        return ControlResponse(port=await forwards.open(request))
    except (NetworkError, ValueError, LookupError) as error:
        return ControlResponse(error=str(error))


class ControlError(Exception):
    """The cluster's process did not respond, or returned an error."""


async def ask_cluster(folder: ClusterFolder, ask: str, target: str = "", port: int = 0) -> ControlResponse:
    """Send a request to the running cluster of ``folder``. Raises ``ControlError``."""
    try:
        endpoint = msgspec.json.decode(folder.control.read_bytes(), type=ControlEndpoint)
        reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
        try:
            writer.write(msgspec.json.encode(ControlRequest(endpoint.token, ask, target, port)) + b"\n")
            async with asyncio.timeout(10.0):
                response = msgspec.json.decode(await reader.readline(), type=ControlResponse)
        finally:
            writer.close()
    except (OSError, ValueError, RecursionError) as error:
        # A killed process leaves its control file behind.
        if isinstance(error, FileNotFoundError) or not folder.is_running():
            remedy = f"autoscale local up --name {folder.name}"
            raise ControlError(f"cluster {folder.name!r} is not running; start it: {remedy}") from error
        raise ControlError(f"cluster {folder.name!r} does not respond: {error}") from error
    if response.error:
        raise ControlError(response.error)
    return response
