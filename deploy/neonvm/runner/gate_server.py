"""QMP proxy at a port of the pod, which checks every command before QEMU gets it.

Each client uses one of QEMU's monitors until it disconnects; further clients wait for a free one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from deploy.neonvm.access.callers import may_use_monitor
from deploy.neonvm.network.sockets import until_one_ends
from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.machine import Machine
from deploy.neonvm.runner.pod_runner import PodRunner
from deploy.neonvm.runner.qmp_gate import MIGRATION_COMMANDS, refusal
from deploy.neonvm.streams import copy_stream

_CHUNK: Final = 16 * 1024
_MAX_COMMAND: Final = 64 * 1024  # bytes of one command
_GREETING: Final = b'{"QMP": {"version": {"qemu": {}, "package": ""}, "capabilities": []}}\r\n'
_CHANGED: Final = b'{"event": "MIGRATION", "timestamp": {"seconds": -1, "microseconds": -1}}\r\n'
_DECODER: Final = json.JSONDecoder()


class GateServer:
    """Serves the monitors at ``sockets``."""

    def __init__(self, sockets: Sequence[Path], pod: PodRunner) -> None:
        self._pod = pod
        self._free: asyncio.Queue[Path] = asyncio.Queue()
        for path in sockets:
            self._free.put_nowait(path)

    async def serve(self, who: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the client ``who``, if it may use a monitor, until either side disconnects."""
        if not may_use_monitor(who):
            return
        buffered = bytearray()
        # QEMU serves one client for each monitor socket.
        monitor_turn, leaving = asyncio.create_task(self._free.get()), asyncio.create_task(_collect(reader, buffered))
        try:
            # Notice a disconnect while waiting, because the connections per client are limited.
            await asyncio.wait((monitor_turn, leaving), return_when=asyncio.FIRST_COMPLETED)
            # A stream has one reader at a time.
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            if monitor_turn.done() and (migration_source := self._pod.migration_source) is not None:
                await self._answer_for(migration_source, bytes(buffered), reader, writer)
            elif monitor_turn.done():
                await self._relay(monitor_turn.result(), bytes(buffered), reader, writer)
        finally:
            leaving.cancel()
            # A cancelled wait leaves the monitor in the queue; otherwise return it.
            if not monitor_turn.cancel():
                self._free.put_nowait(monitor_turn.result())

    async def _relay(
        self, monitor: Path, buffered: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        from_qemu, to_qemu = await asyncio.open_unix_connection(monitor)
        try:
            # When either side disconnects, end both directions.
            await until_one_ends(copy_stream(from_qemu, writer), self._pass_on(buffered, reader, writer, to_qemu))
        finally:
            to_qemu.close()

    async def _answer_for(
        self, migration_source: Machine, buffered: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve QMP for ``migration_source`` while it is asleep."""
        writer.write(_GREETING)
        with migration_source.on_event("MIGRATION", lambda: writer.write(_CHANGED)):
            async for messages in _commands(buffered, reader):
                for message in messages:
                    # QEMU runs again; the client gets it with its next connection.
                    if self._pod.migration_source is not migration_source:
                        return
                    writer.write(await self._answer(migration_source, message))
                await writer.drain()

    async def _answer(self, migration_source: Machine, message: object) -> bytes:
        if (why := await self._refusal(message)) or not isinstance(message, dict):
            return _error_reply(message, why)
        try:
            answer = await migration_source.call(str(message["execute"]), message.get("arguments"))
        except GuestError as error:
            return _error_reply(message, str(error))
        return _reply(message, {"return": answer})

    async def _pass_on(
        self, buffered: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to_qemu: asyncio.StreamWriter
    ) -> None:
        async for messages in _commands(buffered, reader):
            for message in messages:
                why = await self._refusal(message)
                if why:
                    # QEMU never sees the command, so respond here.
                    writer.write(_error_reply(message, why))
                else:
                    # Serialized again, so that QEMU parses exactly what the gate has checked.
                    to_qemu.write(json.dumps(message).encode() + b"\r\n")
            await to_qemu.drain()
            await writer.drain()

    async def _refusal(self, message: object) -> str:
        command = message.get("execute") if isinstance(message, dict) else None
        if not (isinstance(command, str) and command in MIGRATION_COMMANDS):
            # Query QEMU only if the decision depends on its state.
            return refusal(message, self._pod.known_gate_state())
        try:
            return refusal(message, await self._pod.gate_state())
        except GuestError as error:
            return str(error)


async def _commands(buffered: bytes, reader: asyncio.StreamReader) -> AsyncIterator[list[object]]:
    """The commands in each part of a client's input, which begins with ``buffered``."""
    rest = ""
    # Too long without a complete command: not QMP.
    while len(rest) <= _MAX_COMMAND and (part := buffered or await reader.read(_CHUNK)):
        buffered = b""
        messages, rest = split(rest + part.decode(errors="replace"))
        yield messages


def split(text: str) -> tuple[list[object], str]:
    """The complete JSON values at the start of ``text``, and the rest. Clients need not send newlines."""
    values: list[object] = []
    rest = text.lstrip()
    while rest:
        try:
            value, end = _DECODER.raw_decode(rest)
        # The value is incomplete, or nested too deeply.
        except (ValueError, RecursionError):
            break
        values.append(value)
        rest = rest[end:].lstrip()
    return values, rest


def _error_reply(message: object, why: str) -> bytes:
    return _reply(message, {"error": {"class": "CommandNotFound", "desc": why}})


def _reply(message: object, answer: dict[str, object]) -> bytes:
    if isinstance(message, dict) and "id" in message:
        # Clients match responses to commands by it.
        answer["id"] = message["id"]
    return json.dumps(answer).encode() + b"\r\n"


async def _collect(reader: asyncio.StreamReader, buffered: bytearray) -> None:
    """Buffer a client's input while it waits for a monitor, until it disconnects or exceeds the limit."""
    while len(buffered) <= _MAX_COMMAND and (part := await reader.read(_CHUNK)):
        buffered += part
