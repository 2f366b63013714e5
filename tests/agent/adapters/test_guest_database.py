"""The guest's database status, and every possible fault of a guest."""

from __future__ import annotations

import httpx2 as httpx
import pytest

from agent.adapters.guest_database import LARGEST, database_status
from agent.core.events import Fault
from agent.ports import PortError
from protocol.guest.database import DatabaseState
from protocol.units import Seconds
from tests.agent.adapters.answering import Chunks, client, silent, unreachable

URL = "http://10.255.255.254:25183/database"


async def look(http: httpx.AsyncClient) -> DatabaseState:
    return await database_status(http, URL, Seconds(0.05))


def saying(body: bytes, status: int = 200) -> httpx.AsyncClient:
    return client(lambda _: httpx.Response(status, stream=Chunks(body)))


async def test_standby_reports_lag_and_sessions() -> None:
    body = b'{"standby": true, "streaming": true, "lagSeconds": 0.25, "sessions": 2, "oldestTransactionSeconds": 1.5}'
    assert await look(saying(body)) == DatabaseState(True, True, Seconds(0.25), 2, Seconds(1.5))
    assert await look(saying(b'{"standby": false, "lagSeconds": null}')) == DatabaseState(False)


@pytest.mark.parametrize(
    ("http", "fault", "reason"),
    [
        (saying(b"{}"), Fault.GUEST, f"the guest's database at {URL}: standby: expected a value, the field is missing"),
        (
            saying(b'{"standby": true, "sessions": -1}'),
            Fault.GUEST,
            f"the guest's database at {URL}: sessions: expected",
        ),
        (saying(b"x" * (LARGEST + 1)), Fault.GUEST, "the guest's database status exceeds 4096 bytes"),
        (saying(b"it is starting\n", 503), Fault.GUEST, "no database status from the guest: it is starting"),
        (saying(b'{"error": "\xff"}', 503), Fault.GUEST, "no database status from the guest: {"),
        (saying(b'{"standby": "\xff"}'), Fault.GUEST, f"the guest's database at {URL}: "),
        (silent(), Fault.NETWORK, f"the guest's database at {URL} did not respond within 0.05 s"),
        (unreachable(), Fault.NETWORK, f"the guest's database at {URL} cannot be reached"),
    ],
)
async def test_unusable_answer_names_the_fault(http: httpx.AsyncClient, fault: Fault, reason: str) -> None:
    with pytest.raises(PortError) as caught:
        await look(http)
    assert (caught.value.fault, caught.value.reason[: len(reason)]) == (fault, reason)
