"""A real guest without root: every user of the machine reaches its daemon, which answers its owner alone."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from deploy.neonvm.addressing import DAEMON_PORT
from deploy.neonvm.network.chooser import NetworkKind
from deploy.neonvm.ports import GuestPhase
from deploy.neonvm.qemu.daemon import ask
from protocol.units import MilliCpu
from tests.vm.guests import BOOT_SECONDS, POD, booted, until

pytestmark = pytest.mark.vm


async def test_guest_behind_hub_requires_token(tmp_path: Path) -> None:
    async with booted(NetworkKind.HUB, tmp_path) as found:

        async def dial() -> socket.socket:
            return await found.network.connect(POD, found.place.guest_host, DAEMON_PORT)

        asked = [
            (await ask(dial, method, path, body, 10.0)).status
            for method, path, body in (
                ("GET", "/cpu", ""),
                ("PUT", "/cpu", "4000"),
                ("PUT", "/shutdown", ""),
                ("GET", "/database?theirs", ""),
            )
        ]
        assert asked == [401, 401, 401, 401]

        async def is_answered() -> bool:
            # 503 while the database that has just started cannot say.
            return (await ask(dial, "GET", found.place.daemon_path("/database"), "", 10.0)).status == 200

        await until(is_answered, BOOT_SECONDS, found.guest)
        await found.guest.set_cpu(MilliCpu(2000))
        state = await found.guest.state()
        assert (state.phase, state.cpu) == (GuestPhase.RUNNING, MilliCpu(2000))
