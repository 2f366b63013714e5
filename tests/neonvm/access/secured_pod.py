"""A runner pod with its two ports on loopback, and clients of every kind."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from deploy.neonvm.access.authenticated_listener import AuthenticatedListener
from deploy.neonvm.access.callers import CONTROLLER
from deploy.neonvm.access.connections import (
    ClientIdentity,
    RunnerConnections,
    RunnerEndpoint,
    RunnerHttpResponse,
    encode_request,
    read_response,
)
from deploy.neonvm.access.keys import PodIdentity, client_context
from deploy.neonvm.network.sockets import listening, tcp_socket
from deploy.neonvm.runner.gate_server import GateServer
from protocol.runtime.certificates.issuing import Issued, Purpose, issue, new_authority
from protocol.units import Seconds
from tests.neonvm.qemu.fakes import FakeGuestDaemon
from tests.neonvm.runner.one_pod import Pod, running, scripted_daemon

YEAR = Seconds(365 * 86_400.0)
NOW = time.time()
GREETING = b'{"QMP": {"version": {"qemu": {}, "package": ""}, "capabilities": ["oob"]}}\r\n'


@cache
def authority(name: str) -> Issued:
    """A CA; the same one for the same name."""
    del name
    return new_authority(YEAR, NOW)


def pem(name: str = "ours") -> str:
    return authority(name).pair.certificate.decode()


def showing(who: str = CONTROLLER, by: str = "ours", trusted: str = "") -> ClientIdentity:
    """TLS context of a client of this name, with a certificate of this CA."""
    pair = issue(authority(by), Purpose(who), YEAR, NOW).pair
    return ClientIdentity(client_context(pair.certificate, pair.key), trusted or pem())


def stranger() -> ssl.SSLContext:
    """A client without a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@dataclass
class Streams:
    """A client's connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, method: str, path: str, body: bytes) -> RunnerHttpResponse:
        """Send one request; the connection stays open."""
        self.writer.write(encode_request(method, path, body))
        return await read_response(self.reader, method, path)

    def close(self) -> None:
        self.writer.close()


@dataclass
class Monitor:
    """QEMU's monitor: what reached it."""

    heard: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GREETING)
        while line := await reader.readline():
            order = json.loads(line)
            self.heard.append(order["execute"])
            named = {"id": order["id"]} if "id" in order else {}
            writer.write(json.dumps({"return": {}} | named).encode() + b"\r\n")
        writer.close()


@dataclass
class SecuredPod:
    """One pod with its ports. ``token`` is the token from its kubelet."""

    pod: Pod
    identity: PodIdentity
    api: AuthenticatedListener
    gate: AuthenticatedListener
    monitor: Monitor
    token: Path

    @property
    def place(self) -> RunnerEndpoint:
        return RunnerEndpoint("default/db-x", "uid-1", "127.0.0.1", self.api.port, self.gate.port)

    async def connected(self, context: ssl.SSLContext | None, port: int = 0) -> Streams:
        return Streams(*await asyncio.open_connection("127.0.0.1", port or self.api.port, ssl=context))

    async def ask(
        self, context: ssl.SSLContext | None, method: str, path: str, body: object = None
    ) -> RunnerHttpResponse | None:
        """The answer to one request on a connection of its own; None if there is none."""
        try:
            streams = await self.connected(context)
            try:
                return await streams.ask(method, path, b"" if body is None else json.dumps(body).encode())
            finally:
                streams.close()
        except OSError:
            return None

    async def says(self, context: ssl.SSLContext | None, *orders: object) -> list[str]:
        """Responses of the monitor's port to these commands, each sent after the previous response."""
        said: list[str] = []
        try:
            streams = await self.connected(context, self.gate.port)
            for order in (None, *orders):
                if order is not None:
                    streams.writer.write(json.dumps(order).encode())
                said.append((await streams.reader.readline()).decode())
            streams.close()
        except OSError:
            pass
        return [each for each in said if each]


@dataclass
class Reviews:
    """The API server's reviews: the owner of each token. ``asked`` counts them."""

    pods: dict[str, str] = field(default_factory=lambda: {"token-1": "uid-1", "token-2": "uid-2"})
    asked: int = 0

    async def pod_of(self, token: str) -> str:
        self.asked += 1
        return self.pods.get(token, "")


def connections(reviews: Reviews, shown: ClientIdentity | None = None) -> RunnerConnections:
    """Those of a controller."""
    found = shown or showing()
    return RunnerConnections(lambda: found, reviews.pod_of)


@asynccontextmanager
async def secured_pod(folder: Path, number: int = 1) -> AsyncIterator[SecuredPod]:
    """A pod that trusts our authority, with a guest that runs. Its number is that of its token."""
    monitor, file, path = Monitor(), folder / "token", folder / "monitor"
    file.write_text(f"token-{number}\n")
    identity = PodIdentity("db-x", pem(), file)
    async with scripted_daemon() as daemon, await asyncio.start_unix_server(monitor.serve, path):
        daemon.answers["GET /database"] = (200, '{"sessions": 1}')
        pod = Pod(folder, _counted(daemon), identity=identity)
        async with running(pod):
            gate = GateServer([path, path], pod.runner)
            doors = [
                AuthenticatedListener(listening(tcp_socket(), "127.0.0.1", 0), serve, identity.context)
                for serve in (pod.api.serve, gate.serve)
            ]
            try:
                yield SecuredPod(pod, identity, doors[0], doors[1], monitor, file)
            finally:
                for each in doors:
                    await each.close()


def _counted(daemon: FakeGuestDaemon) -> FakeGuestDaemon:
    daemon.asked.clear()
    return daemon
