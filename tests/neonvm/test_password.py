"""The password of a guest's database follows the owner's Secret."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from deploy.neonvm.objects.vm_spec import password_secret
from deploy.neonvm.password import read_password_file, sync_password
from deploy.neonvm.ports import GuestError
from protocol.kubernetes.objects import JsonObject
from tests.fake_clock import FakeClock


@dataclass
class FakeGuest:
    """Takes a password unless it is ``away``."""

    away: bool = False
    passwords: list[str] = field(default_factory=list)

    async def set_password(self, password: str) -> None:
        if self.away:
            raise GuestError("the guest has stopped")
        self.passwords.append(password)


async def test_guest_gets_each_password_once(tmp_path: Path) -> None:
    """None at first; then the Secret is made, the guest is away for a while, and the password is changed later."""
    clock, guest, file = FakeClock(), FakeGuest(), tmp_path / "password"
    keeping = asyncio.create_task(sync_password(guest, lambda: read_password_file(file), clock))
    heard = list[list[str]]()
    for text, away in [(None, False), ("first\n", True), ("first\n", False), ("first\n", False), ("second", False)]:
        if text is not None:
            file.write_text(text)
        guest.away = away
        await clock.advance(5.0)
        await settled()
        heard.append(list(guest.passwords))
    keeping.cancel()
    assert heard == [[], [], ["first"], ["first"], ["first", "second"]]


async def settled() -> None:
    """Files are read by a thread."""
    for _ in range(20):
        await asyncio.sleep(0.001)


async def test_unusable_password_counts_as_none(tmp_path: Path) -> None:
    file = tmp_path / "password"
    for written in (b"two\nlines", b"\xff", b"", b"x" * 1000):
        file.write_bytes(written)
        assert await read_password_file(file) == ""


def test_secret_is_named_by_vm_or_group() -> None:
    """A label alone would give any database's password to users who may create VMs in its namespace."""
    label = {"autoscaling.neon.tech/group": "orders"}
    owner = {"apiVersion": "autoscaling.neon.tech/v1", "kind": "VirtualMachineGroup", "name": "orders", "uid": "g"}

    def secret_of(labels: JsonObject, *owners: JsonObject) -> str:
        metadata = {"namespace": "shop", "name": "db", "labels": labels, "ownerReferences": list(owners)}
        return str(password_secret({"metadata": metadata}))

    assert secret_of(label, {**owner, "controller": True}) == "shop/orders.postgres-password"
    for owners in ([], [owner], [{**owner, "controller": True, "name": "other"}], [{**owner, "apiVersion": "v1"}]):
        assert secret_of(label, *owners) == "shop/db.postgres-password"
    assert secret_of({}, {**owner, "controller": True}) == "shop/db.postgres-password"
