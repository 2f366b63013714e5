"""QEMU's monitor at a port of the pod: every command is checked before QEMU gets it.

A controller has one of QEMU's monitors for as long as it stays; further ones wait for a monitor that is free.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from deploy.neonvm.access.callers import may_use_monitor
from deploy.neonvm.network.sockets import copy_stream
from deploy.neonvm.ports import GuestError
from deploy.neonvm.runner.qmp_gate import WHILE_MOVING, GateState, refusal

_CHUNK: Final = 16 * 1024
_LONGEST: Final = 64 * 1024  # bytes of one command
_DECODER: Final = json.JSONDecoder()


class Stands(Protocol):
    """The pod's state, as the gate asks for it."""

    def known_standing(self) -> GateState:
        """The state that is known without asking QEMU."""

    async def standing(self) -> GateState:
        """All that is known. Raises ``GuestError``."""


class GateServer:
    """Serves the monitors at ``sockets``."""

    def __init__(self, sockets: Sequence[Path], pod: Stands) -> None:
        self._pod = pod
        self._free: asyncio.Queue[Path] = asyncio.Queue()
        for path in sockets:
            self._free.put_nowait(path)

    async def serve(self, who: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Speaks with the client ``who`` until either side hangs up, if it may use a monitor."""
        if not may_use_monitor(who):
            return
        early = bytearray()
        # QEMU serves one client for each monitor socket.
        turn, leaving = asyncio.create_task(self._free.get()), asyncio.create_task(_collect(reader, early))
        try:
            # A client that hangs up while it waits leaves at once, because the connections of its name are bounded.
            await asyncio.wait((turn, leaving), return_when=asyncio.FIRST_COMPLETED)
            # A stream has one reader at a time.
            await _ended(leaving)
            if turn.done():
                await self._relay(turn.result(), bytes(early), reader, writer)
        finally:
            leaving.cancel()
            # The queue keeps the monitor of a turn that is cancelled; one that has come is given back.
            if not turn.cancel():
                self._free.put_nowait(turn.result())

    async def _relay(
        self, monitor: Path, early: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        from_qemu, to_qemu = await asyncio.open_unix_connection(monitor)
        answers = asyncio.create_task(copy_stream(from_qemu, writer))
        orders = asyncio.create_task(self._pass_on(early, reader, writer, to_qemu))
        try:
            # When either side hangs up, the other direction has nobody to talk to.
            await asyncio.wait((answers, orders), return_when=asyncio.FIRST_COMPLETED)
        finally:
            to_qemu.close()
            await _ended(answers, orders)

    async def _pass_on(
        self, early: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to_qemu: asyncio.StreamWriter
    ) -> None:
        rest = ""
        while part := early or await reader.read(_CHUNK):
            early = b""
            messages, rest = split(rest + part.decode(errors="replace"))
            for message in messages:
                why = await self._refusal(message)
                if why:
                    # QEMU never sees the command, so the answer is made here.
                    writer.write(_refused(message, why))
                else:
                    # Written from the parsed value, so that QEMU reads exactly what the gate has judged.
                    to_qemu.write(json.dumps(message).encode() + b"\r\n")
            # No complete command in this much input: it is not QMP.
            if len(rest) > _LONGEST:
                return
            await to_qemu.drain()
            await writer.drain()

    async def _refusal(self, message: object) -> str:
        command = message.get("execute") if isinstance(message, dict) else None
        if not (isinstance(command, str) and command in WHILE_MOVING):
            # QEMU is asked for its state only if the command's answer depends on it.
            return refusal(message, self._pod.known_standing())
        try:
            return refusal(message, await self._pod.standing())
        except GuestError as error:
            return str(error)


def split(said: str) -> tuple[list[object], str]:
    """The whole JSON values at the beginning of ``said``, and the rest. Clients send no line break after a value."""
    values: list[object] = []
    rest = said.lstrip()
    while rest:
        try:
            value, end = _DECODER.raw_decode(rest)
        # Either the value is incomplete, and its rest follows, or it is nested too deeply to be one.
        except (ValueError, RecursionError):
            break
        values.append(value)
        rest = rest[end:].lstrip()
    return values, rest


def _refused(message: object, why: str) -> bytes:
    answer: dict[str, object] = {"error": {"class": "CommandNotFound", "desc": why}}
    if isinstance(message, dict) and "id" in message:
        # Clients match answers to commands by it.
        answer["id"] = message["id"]
    return json.dumps(answer).encode() + b"\r\n"


async def _collect(reader: asyncio.StreamReader, early: bytearray) -> None:
    """Collects what a client sends before its turn; ends when it hangs up, or sends more than QMP ever begins with."""
    while len(early) <= _LONGEST and (part := await reader.read(_CHUNK)):
        early += part


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
