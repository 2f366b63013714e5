"""Replicas are killed, stopped, cut off and terminated, while VMs are created, resized and deleted, and writes land
late.

After every step: guest use <= permit held by the agent <= reservation <= node.
"""

from __future__ import annotations

import json
import os
from typing import Final

import pytest

from protocol.kubernetes.api import ApiCall
from protocol.units import Resources, Seconds
from scheduler_plugin.ledger.accounts.claims import ClaimState
from scheduler_plugin.ledger.invariants import VmTruth, violations
from tests.examples import examples
from tests.scheduler_plugin.fake_cluster import PODS, to
from tests.scheduler_plugin.replicas.pair import Process, Replicas, replicas
from tests.scheduler_plugin.replicas.stopped_process import Fate, as_usual
from tests.scheduler_plugin.test_storm import RESIZES, Agent, Doing, Storm, played

SEEDS: Final = [int(seed) for seed in os.environ.get("AUTOSCALE_STORM_SEEDS", "1,2,3").split(",")]
FOLLOWED: Final = {3}
"""In the quick suite requests follow in these and no others."""

TOTAL: Final = Resources.parse("6", "24Gi")
BINDING: Final = to("POST", "/binding")


class StormOfSuccessions(Storm):
    """One seeded story with two replicas."""

    run: Replicas

    async def begin(self) -> None:
        self.run = await self.stack.enter_async_context(replicas(self.cluster, self.clock, settings=self.settings))
        for process in self.run.running:
            process.way.fate = self.fate

    def doings(self) -> tuple[tuple[Doing, int], ...]:
        calm = ((self.create, 3), (self.bind, 6), (self.grow, 12), (self.use, 5), (self.shrink, 8), (self.delete, 1))
        wild = ((self.kill, 1), (self.terminate, 1), (self.stop, 2), (self.cut, 1), (self.mend, 4), (self.news, 1))
        return *calm, *wild, *self.others()

    def fate(self, call: ApiCall) -> Fate:
        """The fate of a write. A binding lands while its sender leads or never (decision 37), a resize of requests
        within ten seconds or never (decision 45).
        """
        if self.chance.random() < 0.85:
            return Fate()
        late = Seconds(self.chance.choice((0.5, 3.0, 10.0, 40.0)))
        if BINDING(call):
            late = Seconds(0.5)
        if RESIZES(call):
            late = Seconds(min(late, 3.0))
        return Fate(self.chance.choice((None, Seconds(0.0), late)), is_answered=False)

    # What happens to replicas -----------------------------------------------------------------------------------

    def _some_process(self) -> Process:
        leader = self.run.leader
        return leader if leader is not None and self.chance.random() < 0.8 else self.chance.choice(self.run.running)

    async def _replace(self, process: Process) -> None:
        made = await self.run.start()
        made.way.fate = self.fate
        assert process not in self.run.running

    async def kill(self) -> None:
        process = self._some_process()
        await self.run.end(process, Process.kill)
        await self._replace(process)

    async def terminate(self) -> None:
        process = self._some_process()
        if process.way.goes.is_set():
            await self.run.end(process, Process.terminate)
            await self._replace(process)

    async def stop(self) -> None:
        self._some_process().stop()

    async def cut(self) -> None:
        self._some_process().way.is_cut = True
        self.cluster.cut_watches()

    async def mend(self) -> None:
        for process in self.run.running:
            process.resume()
            process.way.is_cut = False

    async def calm(self, seconds: float) -> None:
        for process in self.run.running:
            process.way.fate = as_usual
        await super().calm(seconds)

    # What happens to VMs ----------------------------------------------------------------------------------------

    async def bind(self) -> None:
        for agent in self.agents.values():
            meta = agent.pod["metadata"]
            if not agent.is_bound:
                node = self.chance.choice(self.nodes)
                args = {"PodName": meta["name"], "PodNamespace": "default", "PodUID": meta["uid"], "Node": node}
                await self.run.answered("http://extender/bind", {}, json.dumps(args).encode())
        self._note_bound()

    def _note_bound(self) -> None:
        for agent in self.agents.values():
            found = self.cluster.get(PODS, "default", agent.pod["metadata"]["name"])
            agent.is_bound = bool(found["spec"].get("nodeName"))

    async def ask(self, agent: Agent, wanted: Resources) -> Resources | None:
        self.sequence += 1
        cpu, slots = wanted.cpu.quantity(), int(wanted.mem.as_gib)
        response = await self.run.ask(agent.pod, cpu, slots, sequence=self.sequence)
        if response is None or response.status_code != 200:
            return None
        permit = response.json()["permit"]
        return Resources.parse(permit["vCPUs"], f"{permit['mem']}Gi").at_most(wanted)

    def check(self) -> None:
        self._note_bound()
        bound = [agent for agent in self.agents.values() if agent.is_bound]
        for name in () if self.follows else self.nodes:
            used = Resources.sum(each.held.at_least(each.use) for each in bound if self.node_of(each) == name)
            assert used.within(TOTAL), (name, used)
        if self.follows:
            self.check_requests(bound)
        leader = self.run.leader
        if leader is None or not leader.way.goes.is_set():
            return
        ledger = leader.replica.context.ledger
        known = [each for each in bound if each.pod["metadata"]["uid"] in ledger.claims]
        world = {a.pod["metadata"]["uid"]: VmTruth(guest=a.use, permit=a.held.at_least(a.use)) for a in known}
        assert violations(ledger, world) == []


@pytest.mark.parametrize(("seed", "follows"), played(SEEDS, FOLLOWED))
async def test_successions_lose_or_duplicate_no_permit(seed: int, follows: bool) -> None:
    storm = StormOfSuccessions(seed, follows=follows)
    await storm.begin()
    for _ in range(examples(60, 400)):
        await storm.step()
    await storm.mend()
    await storm.calm(120)
    storm.check()
    assert storm.run.leader is not None
    assert storm.run.leader is storm.run.served
    context = storm.run.leader.replica.context
    claims = context.ledger.claims
    on_books = {uid for uid, claim in claims.items() if claim.state is not ClaimState.INCOMING}
    bound = {a.pod["metadata"]["uid"] for a in storm.agents.values() if storm.node_of(a) != "None"}
    assert on_books == bound, "every bound pod and nothing else is on the books"
    if follows:
        await storm.check_requests_in_the_end(context.ledger, context.feed.apply_settings)
    await storm.stack.aclose()
