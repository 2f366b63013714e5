"""Copies the disk of a sleeping guest to the target pod of a migration. Neither end writes to it meanwhile.

The target's QEMU has the file open already, so the copy is written in place; QEMU reads its tables when it runs.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from deploy.neonvm.ports import GuestError
from deploy.neonvm.texts import runner as texts

_Result = TypeVar("_Result")

_CHUNK: Final = 1024 * 1024
_SIZE: Final = 8
"""Bytes of the length prefix."""
_CONFIRMATION: Final = b"\x01"
_HEAD: Final = 64 * 1024
_FEATURES: Final = 80
"""Offset after the incompatible features in a qcow2 header."""
_STEP_TIMEOUT: Final = 60.0
"""Seconds for the connection, for each chunk, and for the answer. The timeout of the migration bounds the whole."""
_SPARE: Final = 64 * 1024**2
"""Bytes of metadata that an image may have on top of its content and an eighth of that."""


async def receive_disk(listener: socket.socket, context: ssl.SSLContext, disk: Path) -> Callable[[], None]:
    """Overwrite ``disk`` with data from the next connection to ``listener``; return a function that ends the copy
    immediately. The port is released on connect, because the memory follows on the same port.
    """
    end = ExitStack()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Another connection came first, or the copy was ended during the TLS handshake.
        if not server.is_serving():
            writer.close()
            return
        server.close()
        if (copying := asyncio.current_task()) is not None:
            end.callback(copying.cancel)
        try:
            await _receive(reader, disk)
            writer.write(_CONFIRMATION)
            await writer.drain()
        except (GuestError, OSError, EOFError):
            return  # without a confirmation the sender does not send the memory
        finally:
            writer.close()

    server = await asyncio.start_server(serve, sock=listener, ssl=context)
    end.callback(server.close)
    return end.close


async def _receive(reader: asyncio.StreamReader, disk: Path) -> None:
    size = int.from_bytes(await reader.readexactly(_SIZE), "big")
    with disk.open("r+b") as file:
        head = await reader.readexactly(min(size, _HEAD))
        if not is_same_disk(file.read(_HEAD), head, size):
            raise GuestError(texts.OTHER_DISK)
        file.seek(0)
        file.truncate()
        file.write(head)
        while (left := size - file.tell()) > 0:
            file.write(await reader.readexactly(min(left, _CHUNK)))


async def send_disk(host: str, port: int, context: ssl.SSLContext, name: str, disk: Path) -> None:
    """Send ``disk`` to the pod whose certificate has ``name``. Raises ``OSError``, and ``GuestError``, also if that pod
    stops reading.
    """
    reader, writer = await _in_time(asyncio.open_connection(host, port, ssl=context, server_hostname=name))
    try:
        with disk.open("rb") as file:
            writer.write(file.seek(0, 2).to_bytes(_SIZE, "big"))
            await _copy(file, writer)
        if await _in_time(reader.read(1)) != _CONFIRMATION:
            raise GuestError(texts.DISK_REJECTED)
    finally:
        # Closing would wait for a target that does not read.
        writer.transport.abort()


async def _copy(file: BinaryIO, writer: asyncio.StreamWriter) -> None:
    file.seek(0)
    while part := file.read(_CHUNK):
        writer.write(part)
        await _in_time(writer.drain())


async def _in_time(step: Awaitable[_Result]) -> _Result:
    try:
        async with asyncio.timeout(_STEP_TIMEOUT):
            return await step
    except TimeoutError as error:
        raise GuestError(texts.DISK_STALLED.format(seconds=_STEP_TIMEOUT)) from error


def is_same_disk(own: bytes, sent: bytes, size: int) -> bool:
    """Return True if an image of ``size`` bytes that starts with ``sent`` belongs to the same machine as the one that
    starts with ``own``. QEMU would open any backing or data file that the header names.
    """
    # qcow2 header: virtual size, then offset and length of the backing file's name.
    content = int.from_bytes(own[24:32], "big")
    end = int.from_bytes(own[8:16], "big") + int.from_bytes(own[16:20], "big")
    is_long = _FEATURES < end <= min(len(own), len(sent))
    return is_long and _fixed(own[:end]) == _fixed(sent[:end]) and size <= content + content // 8 + _SPARE


def _fixed(head: bytes) -> bytes:
    """The header without table offsets, which change as the image grows, and without the dirty bit."""
    return head[:36] + head[60 : _FEATURES - 1] + bytes([head[_FEATURES - 1] & ~1]) + head[_FEATURES:]
