"""QEMU's monitor at a port of the pod: every command is looked at before QEMU hears it.

A client has one of QEMU's monitors for as long as it stays; further ones wait for a monitor that is free.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from deploy.neonvm.runner.qmp_gate import refusal

_CHUNK: Final = 16 * 1024
_LONGEST: Final = 64 * 1024
_DECODER: Final = json.JSONDecoder()


class GateServer:
    """Serves the monitors at ``sockets``. ``is_given`` says whether the guest was given away."""

    def __init__(self, sockets: Sequence[Path], is_given: Callable[[], bool]) -> None:
        self._is_given = is_given
        self._free: asyncio.Queue[Path] = asyncio.Queue()
        for path in sockets:
            self._free.put_nowait(path)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Speaks with one client until either side hangs up."""
        path = await self._free.get()
        try:
            from_qemu, to_qemu = await asyncio.open_unix_connection(path)
            try:
                await self._relay(reader, writer, from_qemu, to_qemu)
            finally:
                to_qemu.close()
        finally:
            self._free.put_nowait(path)

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        from_qemu: asyncio.StreamReader,
        to_qemu: asyncio.StreamWriter,
    ) -> None:
        answers = asyncio.create_task(_copy(from_qemu, writer))
        orders = asyncio.create_task(self._pass_on(reader, writer, to_qemu))
        try:
            await asyncio.wait((answers, orders), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (answers, orders):
                task.cancel()
            await asyncio.gather(answers, orders, return_exceptions=True)

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to_qemu: asyncio.StreamWriter
    ) -> None:
        said = ""
        while part := await reader.read(_CHUNK):
            messages, said = split(said + part.decode(errors="replace"))
            for message in messages:
                why = refusal(message, self._is_given())
                if why:
                    writer.write(_refused(message, why))
                else:
                    to_qemu.write(json.dumps(message).encode() + b"\r\n")
            if len(said) > _LONGEST:
                return
            await to_qemu.drain()
            await writer.drain()


def split(said: str) -> tuple[list[object], str]:
    """The whole JSON values at the beginning of ``said``, and the rest. Clients send values without a line's end."""
    found: list[object] = []
    rest = said.lstrip()
    while rest:
        try:
            value, end = _DECODER.raw_decode(rest)
        except (ValueError, RecursionError):
            break
        found.append(value)
        rest = rest[end:].lstrip()
    return found, rest


def _refused(message: object, why: str) -> bytes:
    answer: dict[str, object] = {"error": {"class": "CommandNotFound", "desc": why}}
    if isinstance(message, dict) and "id" in message:
        answer["id"] = message["id"]
    return json.dumps(answer).encode() + b"\r\n"


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while part := await reader.read(_CHUNK):
        writer.write(part)
        await writer.drain()
