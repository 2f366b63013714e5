"""An order to freeze whose caller has gone holds neither the database nor the next order."""

from __future__ import annotations

import asyncio
import socket
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.vm_image.real_database import (
    DEADLINE,
    RealDatabase,
    database_template,
    real_database,
    reason_to_skip,
    until,
)

pytestmark = pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip() or "none")


@pytest.fixture(scope="module")
def template() -> Iterator[Path]:
    with database_template() as folder:
        yield folder


@pytest.fixture
async def database(template: Path) -> AsyncIterator[RealDatabase]:
    async with real_database(template) as made:
        await made.watch(every=0.1)

        async def is_there() -> bool:
            return bool(made.page)

        await until(is_there)
        yield made


async def until_frozen(database: RealDatabase) -> None:
    async def is_frozen() -> bool:
        return (await database.order("freeze"))[0] == 200

    await until(is_frozen)
    assert database.is_frozen


@asynccontextmanager
async def _asker() -> AsyncIterator[tuple[Process, socket.socket]]:
    """A process with a client's connection as its standard input, as socat starts daemon.sh, and the client."""
    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_connection(door.getsockname()) as client:
        connection, _ = door.accept()
        with connection:
            process = await asyncio.create_subprocess_exec("sleep", "60", stdin=connection.fileno())
        try:
            yield process, client
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def test_freeze_of_gone_caller_has_no_effect(database: RealDatabase) -> None:
    """Two callers have cancelled their sleep before their freeze ran: nothing would thaw the guest. Their processes
    end, because they would take the response to the next order.
    """
    async with _asker() as (first, client), _asker() as (second, other):
        client.close()
        other.close()
        await database.thaw()
        for late in (first, second):
            database.order_for(late, "freeze")
        await asyncio.wait_for(asyncio.gather(first.wait(), second.wait()), DEADLINE)
    assert not database.is_frozen
    await until_frozen(database)


async def test_waiting_caller_is_served(database: RealDatabase) -> None:
    """Another attempt was called off just before."""

    async with _asker() as (asker, _):
        await database.thaw()

        async def is_frozen() -> bool:
            database.order_for(asker, "freeze")
            await asyncio.sleep(0.1)
            return database.is_frozen

        await until(is_frozen)
        assert asker.returncode is None


async def test_caller_gone_during_database_query(database: RealDatabase) -> None:
    async with _asker() as (asker, client):
        with database.stopped("psql"):
            database.order_for(asker, "freeze")
            await asyncio.sleep(0.3)
            client.close()
        await asyncio.wait_for(asker.wait(), DEADLINE)
    assert not database.is_frozen
