"""The clients of a VM that may move stay until one has moved."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from deploy.local.cluster.content import apply_crds
from deploy.local.cluster.folder import ClusterFolder
from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import MIGRATIONS, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.names import AUTO_MIGRATION
from protocol.runtime.clock import Clock
from protocol.units import Seconds
from scripts.autoscale.demonstration.migration_scenario import NEIGHBOURS, MigrationScenario
from scripts.autoscale.demonstration.pgbench import Outcome
from scripts.autoscale.demonstration.vm_clients import ClientReport, RunClients
from scripts.autoscale.site import RemoteSite
from tests.fake_clock import FakeClock, settle
from tests.neonvm.in_process import InProcess
from tests.scripts.clusters import cluster_at

MOVE = ObjectName("default", "move")


@dataclass
class Waves:
    """Clients that do ten transactions in each wave; ``begun`` has the length of each."""

    clock: Clock
    begun: list[int] = field(default_factory=list)

    async def live(self, seconds: int) -> ClientReport:
        self.begun.append(seconds)
        await self.clock.sleep(Seconds(float(seconds)))
        return ClientReport(Outcome(10, 0, ""))


async def test_clients_stay_until_a_vm_has_moved() -> None:
    api, clock = InProcess(), FakeClock()
    client, waves = api.client(), Waves(clock)
    await apply_crds(client, clock)

    async def clients_of(_: Json) -> RunClients:
        return waves.live

    scenario = MigrationScenario(
        RemoteSite(cluster_at(folder=ClusterFolder.of("x")), client), clock, lambda _: None, clients_of
    )
    watching = asyncio.ensure_future(scenario.watch())
    await scenario.create_neighbours()
    scenario._clients[NEIGHBOURS[0]] = waves.live

    async def load(seconds: int) -> None:
        await clock.sleep(Seconds(float(seconds)))

    playing = asyncio.ensure_future(scenario.play(load, 30))
    await settle()
    vm = await client.get(VIRTUAL_MACHINES, NEIGHBOURS[0])
    assert AUTO_MIGRATION not in str(vm)
    body: Json = {"apiVersion": MIGRATIONS.api_version, "kind": MIGRATIONS.kind, "metadata": {"name": MOVE.name}}
    await client.create(MIGRATIONS, "default", {**body, "spec": {"vmName": NEIGHBOURS[0].name}})
    await clock.advance(30.0)
    assert waves.begun == [35, 15], "the next wave is there before the first has gone"
    await client.merge_patch(MIGRATIONS, MOVE, {"status": {"phase": "Succeeded"}}, "status")
    for _ in range(3):
        await clock.advance(10.0)
    (point,) = await playing
    assert (point.succeeded, waves.begun) == (True, [35, 15])
    watching.cancel()
    await asyncio.wait((watching,))
