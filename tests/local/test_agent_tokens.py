"""An agent without a token is retried: its guest and all other pods keep running."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from deploy.local.kubelet.agents import AgentRun, Projection, keep_projected, project, sidecar_form
from deploy.local.kubelet.sandbox import NodeDependencies, keep_agent_running
from deploy.local.process import ProcessSupervisor
from deploy.neonvm.ports import PodNetwork
from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import PODS
from protocol.messages import ObjectName
from protocol.units import Seconds
from tests.fake_clock import FakeClock, settle
from tests.neonvm.fake_guests import FakeGuests, PlainNetwork
from tests.neonvm.in_process import InProcess

HOUR = Seconds(3600.0)


async def pod(api: InProcess) -> Json:
    spec: Json = {"containers": [{"name": "c", "image": "i"}]}
    return await api.client().create(PODS, "default", {"metadata": {"name": "db-x"}, "spec": spec})


async def test_full_disk_does_not_end_pod(tmp_path: Path) -> None:
    api, clock = InProcess(), FakeClock()
    (tmp_path / "file").touch()
    network = PodNetwork("10.1.0.1", (), "10.1.0.1", "10.1.255.1", ())
    form = sidecar_form(ObjectName("default", "db"), network)
    run = AgentRun(await pod(api), network, form, tmp_path / "file" / "pod")
    means = NodeDependencies(api.client(), PlainNetwork(), FakeGuests(), clock, tmp_path, None)
    attended = asyncio.ensure_future(keep_agent_running(run, means, ProcessSupervisor(run.program, clock)))
    for _ in range(3):
        await clock.advance(1.0)
        assert not attended.done(), attended
    attended.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attended
    api.server.close()


async def test_failed_token_renewal_is_retried(tmp_path: Path) -> None:
    api, clock = InProcess(), FakeClock()
    kept = Projection(await pod(api), "", tmp_path / "pod" / "token")
    await project(api.client(), kept)
    renewing = asyncio.ensure_future(keep_projected(api.client(), kept, clock))
    await settle()
    first = kept.file.read_text()
    kept.file.with_suffix(".new").mkdir()
    await clock.advance(HOUR)
    assert (renewing.done(), kept.file.read_text()) == (False, first)
    kept.file.with_suffix(".new").rmdir()
    kept.file.unlink()
    await clock.advance(2.0)
    assert (renewing.done(), kept.file.exists()) == (False, True)
    renewing.cancel()
    await asyncio.wait((renewing,))
    api.server.close()
