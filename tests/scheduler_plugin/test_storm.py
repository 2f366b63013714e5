"""A storm over the whole service: binds, permits, lost answers, cut watches, an API that leaves, and restarts.

After every step: guest use <= permit held by the agent <= reservation <= node. Where requests of pods follow their VMs
(B.10), kubelets answer soon, late or with a refusal, and a scheduler that knows nothing of us places pods beside them;
then no agent holds more than a kubelet has set aside, and in the end no request is left raised.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import httpx2 as httpx
import pytest

from protocol.kubernetes.api import ApiCall
from protocol.names import ANNOTATION_PERMIT, ANNOTATION_PERMIT_WRITER
from protocol.permits import decode_permit
from protocol.units import ZERO, Resources
from scheduler_plugin.ledger.accounts.claims import ClaimState
from scheduler_plugin.ledger.invariants import VmTruth, violations
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.settings.document import SchedulerSettings
from tests.examples import THOROUGH, examples
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import NODES, PODS, VMS, FakeCluster, Fault, to
from tests.scheduler_plugin.fake_kubelets import FIRST, FakeKubelets, following_pod, following_vm, requested
from tests.scheduler_plugin.objects import Obj, node
from tests.scheduler_plugin.running import Running, following_settings, running, usual_settings

STEPS = 280
SEEDS = {5: 90, 19: 90, 20: 120, 21: 120} | ({0: 280, 8: 280, 26: 280} if THOROUGH else {})
"""Seeds and their steps: 20 notices when a permit is answered that is not persisted."""

FOLLOWED = {5, 19}
"""In the quick suite requests follow in these and no others; in the thorough one each is played with and without."""

RESIZES = to("PATCH", "/resize")
SIZE = Resources.parse("6", "24Gi")
FIRST_SIZE = Resources.parse(FIRST["cpu"], FIRST["memory"])
PERMITS = to("PATCH", "/virtualmachines/")
WRITES = (PERMITS, to("POST", "/binding"), to("GET", "/pods/"), to("GET", "/virtualmachines/"))


@dataclass
class Agent:
    """One VM's agent: its permit and its guest's size. Ours ``numbers`` its requests, the original's does not."""

    pod: Obj
    held: Resources
    use: Resources
    is_bound: bool = False
    numbers: bool = True


Doing = Callable[[], Awaitable[None]]


class Storm:
    """One seeded story."""

    nodes: tuple[str, ...] = ("n1", "n2")
    writes: tuple[Callable[[ApiCall], bool], ...] = WRITES

    def __init__(self, seed: int, *, follows: bool = False) -> None:
        self.chance = random.Random(seed)
        self.follows = follows
        self.clock = FakeClock()
        self.cluster = FakeCluster()
        for name in self.nodes:
            self.cluster.put(NODES, node(name, "6", "24Gi"))
        self.agents: dict[str, Agent] = {}
        swap = frozenset({2: self.nodes, 3: self.nodes[1:]}.get(seed % 4, ()))
        self.kubelets = FakeKubelets(self.cluster, SIZE, self.nodes, swap)
        self.cluster.resized = self.is_resized
        self.made = 0
        self.started = self.sequence = 0
        self.stack = AsyncExitStack()
        self.scheduler: Running

    @property
    def identity(self) -> str:
        """The writer of permits since the last start."""
        return f"process-{self.started}"

    @property
    def settings(self) -> SchedulerSettings:
        return following_settings() if self.follows else usual_settings()

    async def start(self) -> None:
        await self.stack.aclose()
        self.started += 1
        starting = running(self.cluster, self.clock, self.settings, identity=self.identity)
        self.scheduler = await self.stack.enter_async_context(starting)

    def doings(self) -> tuple[tuple[Doing, int], ...]:
        """Random actions, with weights."""
        calm = ((self.create, 3), (self.bind, 6), (self.grow, 10), (self.use, 5), (self.shrink, 8), (self.delete, 1))
        wild = ((self.fault, 5), (self.waver, 4), (self.news, 2), (self.leave, 1), (self.start, 1), (self.haunt, 5))
        return *calm, *wild, *self.others()

    def others(self) -> tuple[tuple[Doing, int], ...]:
        """Actions of kubelets and other schedulers."""
        return ((self.kubelets_look, 8), (self.other_comes, 3), (self.other_goes, 3)) if self.follows else ()

    async def step(self) -> None:
        """One thing happens, then everything must hold."""
        doings, weights = zip(*self.doings(), strict=True)
        happens = self.chance.choices(doings, weights)[0]
        await happens()
        await self.clock.advance(self.chance.choice((0, 0.1, 1, 5, 40)))
        self.check()

    async def create(self) -> None:
        self.made += 1
        name, cpu, slots = f"v{self.made}", self.chance.randint(1, 2), self.chance.randint(1, 4)
        self.cluster.put(VMS, following_vm(name, cpu, slots))
        size = Resources.parse(cpu, f"{slots}Gi")
        self.agents[name] = Agent(self.cluster.put(PODS, following_pod(name)), size, size, numbers=self.made % 3 > 0)

    async def bind(self) -> None:
        for agent in self.agents.values():
            if not agent.is_bound:
                await self.scheduler.bind(agent.pod, self.chance.choice(self.nodes))
        for agent in self.agents.values():
            found = self.cluster.get(PODS, "default", agent.pod["metadata"]["name"])
            agent.is_bound = bool(found["spec"].get("nodeName"))

    async def grow(self) -> None:
        for name, agent in self._some():
            wanted = agent.use + Resources.parse(self.chance.randint(0, 3), f"{self.chance.randint(0, 4)}Gi")
            agent.held = agent.held.at_most(wanted)  # to ask for less is to give up the rest, answered or not
            permit = await self.ask(agent, wanted)
            if permit is not None:
                agent.held = permit
                if self.chance.random() < 0.5:
                    self.resize(name, agent, permit.at_least(agent.use))

    async def waver(self) -> None:
        """Agents request more, which may get no response, and then the size that they use."""
        for _, agent in self._some():
            if self.chance.random() < 0.5:
                self.cluster.faults.append(Fault(PERMITS))
            for wanted in (agent.use + Resources.parse(self.chance.randint(1, 3), "1Gi"), agent.use):
                agent.held = agent.held.at_most(wanted)
                agent.held = await self.ask(agent, wanted) or agent.held

    async def use(self) -> None:
        """Agents use their permits late, perhaps after the scheduler that granted them is gone."""
        for name, agent in self._some():
            self.resize(name, agent, agent.held)

    async def shrink(self) -> None:
        for name, agent in self._some():
            lower = Resources.parse(max(1, self.chance.randint(1, 4)), f"{self.chance.randint(1, 4)}Gi")
            agent.held = agent.use.at_most(lower)
            self.resize(name, agent, agent.held)
            if self.chance.random() < 0.8:
                await self.ask(agent, agent.held)

    async def ask(self, agent: Agent, wanted: Resources) -> Resources | None:
        """The permit for an absolute size, or None if the scheduler sent no permit."""
        self.sequence += 1
        numbered: dict[str, Any] = {"sequence": self.sequence} if agent.numbers else {}
        asking = self.scheduler.ask(agent.pod, wanted.cpu.quantity(), int(wanted.mem.as_gib), **numbered)
        response = await (self._heard(asking) if self.follows else asking)
        assert response.status_code in (200, 404, 503), response.text
        if response.status_code != 200:
            return None
        permit = response.json()["permit"]
        return Resources.parse(permit["vCPUs"], f"{permit['mem']}Gi").at_most(wanted)

    async def _heard(self, asking: Coroutine[None, None, httpx.Response]) -> httpx.Response:
        """The answer, which may wait for a kubelet."""
        task = asyncio.create_task(asking)
        await settle()
        while not task.done():
            await self.clock.advance(0.5)
        return task.result()

    def resize(self, name: str, agent: Agent, size: Resources) -> None:
        agent.use = Resources(size.cpu, size.mem)
        obj = copy.deepcopy(self.cluster.get(VMS, "default", name))
        obj["spec"]["guest"]["cpus"]["use"] = agent.use.cpu.quantity()
        obj["spec"]["guest"]["memorySlots"]["use"] = int(agent.use.mem.as_gib)
        self.cluster.put(VMS, obj)

    async def delete(self) -> None:
        if self.agents:
            self._delete(self.chance.choice(sorted(self.agents)))

    def _delete(self, name: str) -> None:
        agent = self.agents.pop(name)
        self.cluster.remove(PODS, "default", agent.pod["metadata"]["name"])
        self.cluster.remove(VMS, "default", name)

    def is_resized(self, pod: Obj) -> None:
        """Mostly the kubelet answers at once."""
        if self.follows and self.chance.random() < 0.7:
            self.kubelets.answer(pod)

    async def kubelets_look(self) -> None:
        refused = set(self.kubelets.look())
        for name in [name for name, each in self.agents.items() if each.pod["metadata"]["name"] in refused]:
            self._delete(name)

    async def other_comes(self) -> None:
        self.kubelets.other_comes(Resources.parse(self.chance.randint(1, 3), f"{self.chance.randint(1, 6)}Gi"))

    async def other_goes(self) -> None:
        self.kubelets.other_goes()

    async def fault(self) -> None:
        refuse = self.chance.choice((None, None, 409, 403))
        writes = (*self.writes, RESIZES) if self.follows else self.writes
        self.cluster.faults.append(
            Fault(self.chance.choice(writes), refuse=refuse, is_applied=self.chance.random() < 0.5)
        )

    async def haunt(self) -> None:
        """A permit's write that was lost arrives after all, however late; of other writes none does."""
        for lost in [call for call in self.cluster.lost if PERMITS(call)]:
            if self.chance.random() < 0.5 and self.cluster.arrive(lost):
                self.check_persisted()

    async def news(self) -> None:
        self.cluster.cut_watches()
        if self.chance.random() < 0.5:
            await settle()
            self.cluster.forget_history()

    async def leave(self) -> None:
        self.cluster.go_away()
        await self.clock.advance(30)
        self.cluster.come_back()

    def _some(self) -> list[tuple[str, Agent]]:
        bound = [(name, agent) for name, agent in sorted(self.agents.items()) if agent.is_bound]
        return self.chance.sample(bound, min(2, len(bound)))

    def check(self) -> None:
        ledger = self.scheduler.parts.context.ledger
        if not ledger.is_ready:
            return
        bound = [agent for agent in self.agents.values() if agent.is_bound]
        known = [a for a in bound if a.pod["metadata"]["uid"] in ledger.claims]
        world = {a.pod["metadata"]["uid"]: VmTruth(guest=a.use, permit=a.held.at_least(a.use)) for a in known}
        assert violations(ledger, world) == []
        self.check_persisted()
        if self.follows:
            self.check_requests(bound)
            return
        for name in self.nodes:
            on_node = [a for a in bound if self.node_of(a) == name]
            used = Resources.sum(a.held.at_least(a.use) for a in on_node)
            assert used.within(SIZE), (name, used)
            assert ledger.nodes[name].forced == ZERO

    def check_persisted(self) -> None:
        """A scheduler that starts now would find all that agents hold, and no more than this one has reserved.

        What one before it has tried to write, and never answered, may land later: it is more than any agent holds.
        """
        ledger = self.scheduler.parts.context.ledger
        for name, agent in self.agents.items():
            said = self.cluster.get(VMS, "default", name)["metadata"].get("annotations", {})
            permit = decode_permit(said[ANNOTATION_PERMIT]) if ANNOTATION_PERMIT in said else ZERO
            assert agent.held.within(permit.at_least(agent.use)), (name, agent.held, permit)
            claim = ledger.claims.get(agent.pod["metadata"]["uid"])
            is_ours = said.get(ANNOTATION_PERMIT_WRITER, "").startswith(f"{self.identity}/")
            if claim is not None and claim.vm is not None and is_ours:
                assert permit.within(claim.vm.reserved), (name, permit, claim.vm.reserved)

    def check_requests(self, bound: Iterable[Agent]) -> None:
        """Check that the pod requests, by which others place pods, cover everything that agents hold."""
        for agent in bound:
            self.kubelets.check(agent.pod["metadata"]["name"], agent.held.at_least(agent.use))

    async def calm(self, seconds: float) -> None:
        """Nothing goes wrong any more, no other pod is left, and kubelets answer."""
        self.cluster.faults.clear()
        self.kubelets.others_go()
        while seconds > 0:
            await self.clock.advance(10)
            if self.follows:
                await self.kubelets_look()
            seconds -= 10

    async def check_requests_in_the_end(self, ledger: Ledger, use: Callable[[SchedulerSettings], None]) -> None:
        """Pods request their reservations; once requests do not follow any more, their first requests.

        While a VM migrates, its pods' requests are not lowered.
        """
        bound = [agent.pod["metadata"]["uid"] for agent in self.agents.values() if self.node_of(agent) != "None"]
        claims = [ledger.claims[uid] for uid in bound if not ledger.claims[uid].is_migrating]
        reserved = {each.pod.name.name: each.vm.reserved for each in claims if each.vm is not None}
        assert self.requested(reserved) == reserved
        use(usual_settings())
        await self.calm(120)
        rests = [each.pod.name.name for each in claims if not each.is_migrating]
        assert set(self.requested(rests).values()) <= {FIRST_SIZE}

    def requested(self, pods: Iterable[str]) -> dict[str, Resources]:
        return {name: requested(self.cluster.get(PODS, "default", name)) for name in pods}

    def node_of(self, agent: Agent) -> str:
        meta = agent.pod["metadata"]
        return str(self.cluster.get(PODS, "default", meta["name"])["spec"].get("nodeName"))


def played(seeds: Iterable[int], followed: set[int]) -> list[tuple[int, bool]]:
    """Each seed with requests that follow or without; in the thorough suite both."""
    return [(seed, follows) for seed in seeds for follows in (False, True) if THOROUGH or follows is (seed in followed)]


@pytest.mark.parametrize(("seed", "follows"), played(SEEDS, FOLLOWED))
async def test_nothing_over_commits_in_a_storm(seed: int, follows: bool) -> None:
    storm = Storm(seed, follows=follows)
    await storm.start()
    for _ in range(examples(SEEDS[seed], STEPS)):
        await storm.step()
    await storm.calm(120)
    storm.check()
    context = storm.scheduler.parts.context
    claims = context.ledger.claims
    calm = {uid for uid, claim in claims.items() if claim.state is not ClaimState.INCOMING}
    bound = {a.pod["metadata"]["uid"] for a in storm.agents.values() if storm.node_of(a) != "None"}
    assert calm == bound, "every bound pod and nothing else is on the books"
    if follows:
        await storm.check_requests_in_the_end(context.ledger, context.feed.apply_settings)
    await storm.stack.aclose()
