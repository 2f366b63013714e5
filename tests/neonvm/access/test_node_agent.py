"""The agent of a node at the port of a runner pod."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from agent.adapters.guest_database import database_status
from agent.app import _guest_tls, plain_pool
from agent.ports import PortError
from deploy.neonvm.access.callers import AGENT
from protocol.runtime.certificates.issuing import Purpose, issue
from protocol.units import Seconds
from tests.neonvm.access.secured_pod import NOW, YEAR, authority, secured_pod


async def test_database_query_uses_client_certificate(tmp_path: Path) -> None:
    """Its files may appear after its start, and may be renewed: they are read for each connection."""
    folder = tmp_path / "guests"
    folder.mkdir()
    async with secured_pod(tmp_path) as pod, plain_pool(_guest_tls(folder)) as http:
        query = partial(database_status, http, f"https://127.0.0.1:{pod.api.port}/database", Seconds(2.0))
        with pytest.raises(PortError, match="cannot be reached"):
            await query()
        pair = issue(authority("ours"), Purpose(AGENT), YEAR, NOW).pair
        (folder / "tls.crt").write_bytes(pair.certificate)
        (folder / "tls.key").write_bytes(pair.key)
        pod.pod.daemon.answers["GET /database"] = (200, '{"standby": false, "sessions": 3}')
        assert (await query()).sessions == 3
