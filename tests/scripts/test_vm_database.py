"""The Secret of a database's password, which a command makes before its VM."""

from __future__ import annotations

from protocol.kubernetes.objects import Json
from scripts.autoscale.demonstration.vm_database import make_password, password_of
from tests.neonvm.in_process import InProcess

VM: Json = {"metadata": {"namespace": "default", "name": "db"}}


async def test_existing_password_stays() -> None:
    client = InProcess().client()
    assert await password_of(client, VM) == ""
    await make_password(client, VM)
    password = await password_of(client, VM)
    await make_password(client, VM)
    assert password
    assert await password_of(client, VM) == password
