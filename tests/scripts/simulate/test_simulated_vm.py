"""The simulated VM's agent: skipped ticks change no result, so sampling rarely gives the same as sampling always."""

from __future__ import annotations

from random import Random
from unittest.mock import ANY

import numpy as np
import pytest
from msgspec.structs import replace

from agent.core.actions import PatchVm, RequestPermit
from agent.core.advance import advance
from agent.core.events import Patched, SchedulerAnswered, Scraped, Started, VmSeen
from agent.core.guest import CpuSeconds, GuestSample
from agent.core.plan import plan
from agent.core.state import GiveBack, begin
from agent.core.vm import Vm
from protocol.messages import AgentRequest, ObjectName, PluginResponse
from protocol.units import Bytes, Instant, Seconds
from protocol.virtual_machine import Bounds
from scripts.autoscale.simulate.run import WakeSchedule, recheck_delays
from scripts.autoscale.simulate.simulated_vm import (
    MEM_STALL,
    NeighbourShrinks,
    SimulatedVm,
    agent_policy,
    observe_guest,
)
from scripts.autoscale.simulate.vm_table import SLOT, UNIT

STEP = Seconds(15.0)
BOUNDS = Bounds(UNIT, UNIT * 32)
GIB = 1024**3


class Generous:
    """A scheduler with a limit: grants every request, up to ``most`` units."""

    def __init__(self, most: int = 32) -> None:
        self.most = most
        self.asked: list[AgentRequest] = []

    def request_permit(self, vm: SimulatedVm, request: AgentRequest, now: Instant) -> PluginResponse:
        self.asked.append(request)
        return PluginResponse(request.resources.at_most((UNIT * self.most).at_least(vm.use)), UNIT, vm.is_migrating)

    def publish(self, vm: SimulatedVm, now: Instant) -> None:
        vm.version += 1
        vm.refresh_agent(now)


def a_vm(units: int = 4) -> SimulatedVm:
    vm = SimulatedVm(0, BOUNDS, UNIT * units, agent_policy(STEP))
    vm.start_agent("vm-0-0", Instant(0.0))
    return vm


def some_demand(seed: int, steps: int) -> list[tuple[float, float]]:
    """Levels that change every few minutes, bursts, and memory that follows slowly."""
    random, cores, mem, found = Random(seed), 1.0, 2.0 * GIB, []
    for _ in range(steps):
        if random.random() < 0.06:
            cores = random.choice((0.05, 0.4, 1.0, 2.5, 5.0, 9.0)) * random.uniform(0.8, 1.2)
        if random.random() < 0.02:
            mem = random.uniform(0.3, 20.0) * GIB
        found.append((cores, mem))
    return found


class StepByStep:
    """The real agent through its own forwards alone: every scrape an event, every plan carried out."""

    def __init__(self, units: int) -> None:
        self.state = begin(ObjectName("fleet", "vm-0-0"), agent_policy(STEP), Instant(0.0), 0.0, 1)
        self.use, self.version, self.busy, self.stall, self.mem_stall = UNIT * units, 1, 0.0, 0.0, 0.0
        advance(self.state, VmSeen(self.view()), Instant(0.0), 0.0)

    def view(self) -> Vm:
        return Vm(BOUNDS, self.use, self.use, SLOT, self.version)

    def step(self, cores: float, mem: float, now: Instant) -> None:
        sample, over = observe_guest(cores, mem, self.use)
        self.busy += (over.busy or 0.0) * STEP
        self.stall += (over.cpu_stall or 0.0) * STEP
        self.mem_stall += (over.mem_stall or 0.0) * STEP
        counters = GuestSample(
            cpus={str(cpu): CpuSeconds(self.busy / 8) for cpu in range(8)},
            runnable=sample.runnable,
            load1=sample.load1,
            load5=sample.load5,
            mem_total=sample.mem_total,
            mem_available=sample.mem_available,
            cpu_stall=self.stall,
            mem_stall=self.mem_stall,
        )
        advance(self.state, Scraped(counters), now, 0.0)
        while actions := plan(self.state, now).actions:
            for action in actions:
                advance(self.state, Started(action), now, 0.0)
                if isinstance(action, RequestPermit):
                    advance(self.state, SchedulerAnswered(PluginResponse(action.request.resources, UNIT)), now, 0.0)
                elif isinstance(action, PatchVm):
                    self.use, self.version = action.target, self.version + 1
                    advance(self.state, Patched(self.view()), now, 0.0)


def test_guest_serves_up_to_its_size() -> None:
    sample, over = observe_guest(4.0, 3.0 * GIB, UNIT * 4)
    assert (over.busy, over.cpu_stall, over.mem_stall) == (1.0, 0.75, 0.0)
    assert (sample.runnable, sample.load1, sample.mem_used) == (5.0, 4.0, Bytes(3 * GIB))
    sample, over = observe_guest(0.5, 5.0 * GIB, UNIT * 4)
    assert (over.busy, over.cpu_stall, over.mem_stall) == (0.5, 0.0, MEM_STALL)
    assert sample.mem_used == UNIT.mem * 4


def test_a_guest_without_demand_has_nothing_that_waits() -> None:
    sample, over = observe_guest(0.0, 1.0 * GIB, UNIT * 4)
    assert (over.busy, over.cpu_stall, over.mem_stall, sample.load1) == (0.0, 0.0, 0.0, 0.0)


def test_growth_marks_shrinks_of_last_minute_as_regrown() -> None:
    shrinks, giving = NeighbourShrinks(), GiveBack(lean_until=Instant(1000.0))
    for moment, what in (
        (0, "gave"),
        (50, "gave"),
        (59, "gave"),
        (65, "grew"),
        (66, "grew"),
        (200, "gave"),
        (260, "grew"),
    ):
        now = Instant(float(moment))
        giving.note_shrink(now) if what == "gave" else giving.note_growth(now)
        shrinks.note(giving, now)
        shrinks.note(giving, now)  # another action of the same instant
    assert (shrinks.count, shrinks.regrown) == (4, 2)


@pytest.mark.parametrize("seed", range(3))
def test_shortcut_decides_like_the_real_agent(seed: int) -> None:
    vm, real, cluster = a_vm(), StepByStep(4), Generous()
    for step, (cores, mem) in enumerate(some_demand(seed, 600)):
        now = Instant(step * STEP)
        real.step(cores, mem, now)
        if step == 0:  # the first scrape of the real one has nothing to compare with
            vm.act(cluster, now, 0.0)
            continue
        if vm.observe(cores, mem, now):
            vm.act(cluster, now, 0.0)
        assert (step, vm.use) == (step, real.use)


@pytest.mark.parametrize("seed", range(3))
def test_skipping_steady_vms_never_lowers_sizes(seed: int) -> None:
    demand = some_demand(seed, 1500)
    always, seldom, cluster = a_vm(), a_vm(), Generous()
    wakes = WakeSchedule(1, recheck_delays(seldom.policy.smoothing, STEP))
    looks, sizes = 0, []
    for step, (cores, mem) in enumerate(demand):
        now = Instant(step * STEP)
        is_new = np.array([step > 0 and demand[step] != demand[step - 1]])
        if always.observe(cores, mem, now) or not step:
            always.act(cluster, now, 0.0)
        for _ in wakes.due(step, is_new):
            looks, size = looks + 1, seldom.use
            if seldom.observe(cores, mem, now) or not step:
                seldom.act(cluster, now, 0.0)
            wakes.may_shrink[0] = seldom.may_shrink
            if seldom.use != size:
                wakes.record_change(step, 0)
        sizes.append((always.use.cpu.value, seldom.use.cpu.value))
    exact, fast = np.array(sizes).T
    assert looks < 0.5 * len(demand)
    assert fast.sum() == pytest.approx(exact.sum(), rel=0.02)
    assert (fast < exact).mean() < 0.005


def test_vm_at_its_need_is_not_rechecked() -> None:
    wakes = WakeSchedule(3, [2])
    none, all_vms = np.zeros(3, dtype=np.bool_), np.ones(3, dtype=np.bool_)
    assert wakes.due(0, all_vms).tolist() == [0, 1, 2]
    wakes.may_shrink[:] = [True, False, True]
    assert wakes.due(1, none).tolist() == []
    wakes.record_change(1, 1)
    assert wakes.due(2, none).tolist() == [0, 1, 2]
    wakes.may_shrink[1] = True
    wakes.wake_next(0)
    assert wakes.due(3, none).tolist() == [0, 1]


def test_recheck_delays_follow_the_windows() -> None:
    smoothing = agent_policy(STEP).smoothing
    assert recheck_delays(smoothing, STEP) == [2, 15, 21, 121, 123, 136, 142]
    assert recheck_delays(smoothing, Seconds(30.0)) == [8, 11, 61, 69, 72]


def test_denied_agent_keeps_its_size() -> None:
    vm, cluster = a_vm(), Generous(most=6)
    vm.act(cluster, Instant(0.0), 0.0)
    assert vm.observe(6.0, GIB, Instant(15.0))
    vm.act(cluster, Instant(15.0), 0.0)
    assert (vm.use, vm.held, vm.is_denied) == (UNIT * 6, UNIT * 6, True)


def test_obsolete_denied_request_is_withdrawn() -> None:
    vm, cluster = a_vm(), Generous(most=6)
    vm.act(cluster, Instant(0.0), 0.0)
    vm.observe(6.0, GIB, Instant(15.0))
    vm.act(cluster, Instant(15.0), 0.0)
    for step in range(2, 40):
        if vm.observe(1.2, GIB, Instant(step * STEP)):
            vm.act(cluster, Instant(step * STEP), 0.0)
    assert (vm.use, vm.is_denied, cluster.asked[-1].resources) == (UNIT * 6, False, UNIT * 6)


def test_migrating_agent_requests_no_more() -> None:
    vm, cluster = a_vm(), Generous()
    vm.act(cluster, Instant(0.0), 0.0)
    vm.is_migrating = True
    cluster.publish(vm, Instant(15.0))
    vm.observe(6.0, GIB, Instant(15.0))
    vm.act(cluster, Instant(15.0), 0.0)
    assert (vm.use, cluster.asked[-1].resources, vm.is_waiting) == (UNIT * 4, UNIT * 4, True)


def test_agent_is_silent_while_it_would_repeat_itself() -> None:
    """An agent with the right size sends one request for any load; it sends the next one for a new need or object."""
    vm, cluster = a_vm(), Generous()
    for step in range(4):
        vm.observe(0.8, 2.5 * GIB, Instant(step * STEP))
        assert not vm.would_repeat(Instant(step * STEP))
        vm.act(cluster, Instant(step * STEP), 0.0)
    # By now it has seen enough to say what it needs, which is all that it has, and no older answer counts any more.
    now = Instant(4 * STEP)
    vm.observe(0.8, 2.5 * GIB, now)
    assert (vm.would_repeat(now), cluster.asked[-1].needs) == (True, None)
    vm.observe(0.2, 2.4 * GIB, now)
    assert vm.would_repeat(now)
    vm.observe(0.8, 4.0 * GIB, now)
    assert not vm.would_repeat(now)
    vm.observe(0.8, 2.5 * GIB, now)
    cluster.publish(vm, now)
    assert not vm.would_repeat(now)


class Greedy(Generous):
    """A scheduler whose node is short now and then, and asks for all that a VM offers."""

    def request_permit(self, vm: SimulatedVm, request: AgentRequest, now: Instant) -> PluginResponse:
        response = super().request_permit(vm, request, now)
        return replace(response, shrink_to=request.needs if now % 600.0 < 60.0 else None)


@pytest.mark.parametrize("seed", range(3))
def test_silent_agent_plans_its_last_request(seed: int) -> None:
    """Silence is an agent's own plan."""
    vm, cluster, silent = a_vm(8), Greedy(), 0
    for step, demand in enumerate(some_demand(seed, 1200)):
        now = Instant(step * STEP)
        vm.observe(*demand, now)
        if vm.would_repeat(now):
            silent += 1
            last, planned = cluster.asked[-1], plan(vm.state, now).actions
            assert [action.request for action in planned if isinstance(action, RequestPermit)] == [
                replace(last, metrics=ANY, sequence=ANY)
            ]
            assert (len(planned), last.needs) == (1, None)
        else:
            vm.act(cluster, now, 0.0)
    assert silent > 20


def test_agent_that_offers_room_is_never_silent() -> None:
    vm, cluster = a_vm(8), Generous()
    for step in range(5):
        now = Instant(step * STEP)
        vm.observe(0.5, 1.0 * GIB, now)
        vm.act(cluster, now, 0.0)
        assert not (vm.would_repeat(now) and cluster.asked[-1].needs)
    assert cluster.asked[-1].needs is not None


class Restless(Generous):
    """A scheduler that says something else every time, and makes its agent ask again at once."""

    def request_permit(self, vm: SimulatedVm, request: AgentRequest, now: Instant) -> PluginResponse:
        side = vm.state.scheduler
        side.next_at = now
        return PluginResponse(request.resources, UNIT, migrate=not side.migrate)


def test_unsettled_agent_raises() -> None:
    with pytest.raises(RuntimeError, match="the agent of fleet/vm-0 does not settle"):
        a_vm().act(Restless(), Instant(0.0), 0.0)
