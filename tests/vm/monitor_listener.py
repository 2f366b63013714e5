"""Talks to the monitor of a guest from inside its pod: each line on stdin is sent, each message becomes a line."""

from __future__ import annotations

import asyncio
import sys

import msgspec

from agent.adapters.guest_monitor import GuestMonitor
from agent.ports import MonitorConnection
from protocol.units import Seconds


async def main(url: str) -> None:
    async with GuestMonitor(url, Seconds(30.0)).connect() as connection, asyncio.TaskGroup() as tasks:
        print(msgspec.json.encode({"joined": connection.version}).decode(), flush=True)
        tasks.create_task(_listen(connection))
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while line := await lines.readline():
            await connection.write(line.decode().strip())


async def _listen(connection: MonitorConnection) -> None:
    while True:
        message = await connection.receive()
        print(msgspec.json.encode(message).decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
