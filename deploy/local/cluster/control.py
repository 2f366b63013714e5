"""The door through which the command line speaks to a running cluster: one JSON line asked, one answered.

It listens on loopback and answers only who knows the token in the cluster's private folder.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from deploy.local.cluster.folder import ClusterFolder
from deploy.local.kubelet.tokens import write_private
from deploy.local.ports import ClusterNetwork, NetworkError


class Door(msgspec.Struct, frozen=True):
    """Where to knock."""

    port: int
    token: str
    pid: int


class Ask(msgspec.Struct, frozen=True):
    """A question: ``status``, or ``expose`` with a target and a port of the cluster's network."""

    token: str
    ask: str
    target: str = ""
    port: int = 0


class Part(msgspec.Struct, frozen=True):
    """One process of the cluster. ``pid`` is 0 while it is not running."""

    name: str
    pid: int
    restarts: int


class Answer(msgspec.Struct, frozen=True):
    """``error`` is empty where all went well."""

    error: str = ""
    port: int = 0
    network: str = ""
    guests: str = ""
    agents: str = ""
    host: str = ""
    parts: list[Part] = []


@asynccontextmanager
async def control_door(
    folder: ClusterFolder, network: ClusterNetwork, status: Callable[[], Answer]
) -> AsyncIterator[None]:
    """Answers while the context is open."""
    token = secrets.token_hex(16)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await reader.readline()
            writer.write(msgspec.json.encode(await _answer(line, token, network, status)) + b"\n")
            await writer.drain()
        except OSError:
            return  # whoever asked has gone
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    write_private(folder.control, msgspec.json.encode(Door(port, token, os.getpid())).decode())
    try:
        yield
    finally:
        folder.control.unlink(missing_ok=True)
        server.close()


async def _answer(line: bytes, token: str, network: ClusterNetwork, status: Callable[[], Answer]) -> Answer:
    try:
        ask = msgspec.json.decode(line, type=Ask)
    except msgspec.DecodeError as error:
        return Answer(error=str(error))
    if not hmac.compare_digest(ask.token, token):
        return Answer(error="wrong token")
    if ask.ask == "status":
        return status()
    try:
        return Answer(port=await network.expose(ask.target, ask.port))
    except (NetworkError, ValueError) as error:
        return Answer(error=str(error))


class NoAnswerError(Exception):
    """The cluster's process could not be asked, or refused."""


async def knock(folder: ClusterFolder, ask: str, target: str = "", port: int = 0) -> Answer:
    """Asks the running cluster of ``folder``. Raises ``NoAnswerError``."""
    try:
        door = msgspec.json.decode(folder.control.read_bytes(), type=Door)
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        try:
            writer.write(msgspec.json.encode(Ask(door.token, ask, target, port)) + b"\n")
            async with asyncio.timeout(10.0):
                answer = msgspec.json.decode(await reader.readline(), type=Answer)
        finally:
            writer.close()
    except (OSError, TimeoutError, msgspec.DecodeError) as error:
        raise NoAnswerError(f"the cluster {folder.name!r} does not answer: {error}") from error
    if answer.error:
        raise NoAnswerError(answer.error)
    return answer
