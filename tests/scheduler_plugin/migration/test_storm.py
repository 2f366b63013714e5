"""A storm on the whole service while VMs migrate: nodes fill up, and every step of a migration may fail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.kubernetes.timestamps import micro_timestamp
from protocol.units import Seconds
from scheduler_plugin.planner.victims import MoveDelays
from scheduler_plugin.settings.document import SchedulerSettings
from tests.examples import THOROUGH, examples
from tests.scheduler_plugin.fake_cluster import MIGRATIONS, PODS, VMS, to
from tests.scheduler_plugin.migration.fake_controller import FakeController
from tests.scheduler_plugin.test_storm import STEPS, WRITES, Doing, Storm, played

SEEDS = {11: 150, 16: 240} | ({17: 280, 49: 280, 67: 280, 59: 280} if THOROUGH else {})
"""Seeds and their steps in the quick suite: both notice a permit that is answered but not persisted."""

MORE = 3_000
"""Ten times the steps within which most storms order a move."""

FOLLOWED = {11}
"""In the quick suite requests follow in these and no others."""


class MovingStorm(Storm):
    """A storm in which a controller carries out the scheduler's migrations with delays."""

    nodes = ("n1", "n2", "n3")
    writes = (*WRITES, to("POST", "/virtualmachinemigrations"), to("DELETE", "/virtualmachinemigrations/"))

    def __init__(self, seed: int, *, follows: bool = False) -> None:
        super().__init__(seed, follows=follows)
        self.cluster.stamp = lambda: micro_timestamp(self.clock.wall())
        self.outcomes: set[str] = set()

    @property
    def settings(self) -> SchedulerSettings:
        """With a short cooldown, so that VMs move again and again."""
        usual = super().settings
        return replace(usual, migration=replace(usual.migration, delays=MoveDelays(cooldown=Seconds(60.0))))

    def doings(self) -> tuple[tuple[Doing, int], ...]:
        return *super().doings(), (self.proceed, 25), (self.wait, 5)

    async def wait(self) -> None:
        await self.clock.advance(11)

    async def proceed(self) -> None:
        """Every migration advances by one step, or fails."""
        for _, name in list(self.cluster.collections[MIGRATIONS].objects):
            await self._proceed(FakeController(self.cluster, self._vm_of(name)), name)

    def _vm_of(self, name: str) -> str:
        return str(self.cluster.get(MIGRATIONS, "default", name)["spec"]["vmName"])

    async def _proceed(self, controller: FakeController, name: str) -> None:
        obj = self.cluster.get(MIGRATIONS, "default", name)
        status = obj.get("status", {})
        if status.get("phase") in ("Succeeded", "Failed"):
            self._clear(obj)
        elif "deletionTimestamp" in obj["metadata"]:
            controller.obey_deletion()
            self.outcomes.add("cancelled")
        elif ("default", controller.vm) not in self.cluster.collections[VMS].objects or self.chance.random() < 0.05:
            self._break_off(controller)
        else:
            await self._step(controller, status)

    def _clear(self, obj: dict[str, object]) -> None:
        metadata = obj["metadata"]
        assert isinstance(metadata, dict)
        if "deletionTimestamp" in metadata:
            self.cluster.remove(MIGRATIONS, "default", metadata["name"])

    def _break_off(self, controller: FakeController) -> None:
        self.outcomes.add("failed")
        controller.fail("by chance")

    async def _step(self, controller: FakeController, status: dict[str, str]) -> None:
        if not status:
            controller.accept()
        elif "targetPodName" not in status:
            self.kubelets.made_afresh(controller.make_target())
        elif not controller.target["spec"].get("nodeName"):
            fits = await self.filtered(controller)
            if fits:
                await self.scheduler.bind(controller.target, self.chance.choice(fits))
        elif status["phase"] == "Pending":
            controller.transfer()
        else:
            self._arrive(controller)

    async def filtered(self, controller: FakeController) -> list[str]:
        args = {"Pod": controller.target, "Nodes": None, "NodeNames": list(self.nodes)}
        return list((await self.scheduler.verb("filter", args))["NodeNames"] or ())

    def _arrive(self, controller: FakeController) -> None:
        controller.hand_over()
        self.agents[controller.vm].pod = controller.target
        controller.succeed()
        self.outcomes.add("succeeded")


@pytest.mark.parametrize(("seed", "follows"), played(SEEDS, FOLLOWED))
async def test_moves_never_over_commit(seed: int, follows: bool) -> None:
    storm = MovingStorm(seed, follows=follows)
    await storm.start()
    for _ in range(examples(SEEDS[seed], STEPS)):
        await storm.step()
    # Chance decides when the first move is ordered, and how it ends: that VMs arrive is for calmer tests.
    for _ in range(MORE):
        if storm.outcomes:
            break
        await storm.step()
    for _ in range(20):
        await storm.calm(30)
        await storm.proceed()
        storm.check()
    ledger = storm.scheduler.parts.context.ledger
    bound = {obj["metadata"]["uid"] for obj in storm.cluster.collections[PODS].objects.values() if _node(obj)}
    reserved = {each.reservation_uid for each in ledger.migrations.values()} & ledger.claims.keys()
    assert ledger.claims.keys() - reserved == bound, "every bound pod and nothing else is on the books"
    assert storm.outcomes, "no move was ordered that came to an end"
    if follows:
        await storm.check_requests_in_the_end(ledger, storm.scheduler.parts.context.feed.apply_settings)
    await storm.stack.aclose()


def _node(pod: dict[str, dict[str, object]]) -> object:
    return pod["spec"].get("nodeName")
