"""Liveness without faults: nothing waits if it can proceed, and no room stays reserved without need."""

from __future__ import annotations

from typing import Final

from protocol.guest.sleep import ASLEEP, WAKING
from protocol.units import Resources
from scheduler_plugin.ledger.wake_reserve import DEFAULT_RESERVE
from tests.oracle.fleet import AWAY, Agent, Machine
from tests.oracle.judge import SIZE
from tests.oracle.story import NAMES, Story

ROUNDS: Final = 9
TICK: Final = 10.0
OF_SLEEPER: Final = Resources.parse("100m", "128Mi")
"""What the pod of a VM that sleeps requests."""


async def calm(story: Story) -> None:
    """Agents ask for what their VMs have, again and again; then rooms are what objects say, and are given away."""
    story.api.webhook, story.api.calm = None, True
    story.wire.clear()
    await story.start()
    await story.start()
    await story.clock.advance(60)
    await _end_moves(story)
    story.end_patches()
    for machine in story.fleet.machines.values():
        story.bound(machine, None)
        if not story.fleet.sleeps(machine):
            story.resize(machine, machine.own.at_least(Resources.parse(1, "1Gi")))
        if story.fleet.node(machine) is not None:
            story.report_of(machine)
        for agent in machine.agents:
            agent.blind_until = agent.quiet_until = AWAY
    for machine in story.fleet.machines.values():
        if story.fleet.sleeps(machine):
            story.enter(machine, ASLEEP)
    for _ in range(ROUNDS):
        for machine, agent in _agents(story):
            await _speak(story, machine, agent, None)
        await story.clock.advance(TICK)
        story.require(story.judge.look(story.ledger))
    story.require(_kept_for_nobody(story))
    if not any(story.is_moving(name) for name in story.fleet.machines):  # rooms are kept on two nodes
        await _bind_all(story)
        await _wake_all(story)
        await _grow_all(story)


async def _wake_all(story: Story) -> None:
    """A VM that fits wakes as soon as its agent sends a request."""
    for machine in [machine for machine in story.fleet.machines.values() if story.fleet.sleeps(machine)]:
        node, size = story.fleet.node(machine), story.fleet.wakes_with(machine)
        story.enter(machine, WAKING)
        machine.is_tainted = False
        await story.clock.advance(1)
        for agent in machine.agents:
            await _speak(story, machine, agent, size)
        fits = node is not None and size.within(_free(story, node))
        is_woken = story.start_guest_of(machine) or not machine.agents
        story.require([] if is_woken or not fits else [f"{machine.name} fits with {size} on {node}, and does not wake"])
        if story.fleet.sleeps(machine):
            story.enter(machine, ASLEEP)
            for agent in machine.agents:
                await _speak(story, machine, agent, None)


async def _end_moves(story: Story) -> None:
    """Complete or fail migrations in progress."""
    for _ in range(60):
        await story.carry()
        await story.clock.advance(1)


def _agents(story: Story) -> list[tuple[Machine, Agent]]:
    fleet = story.fleet
    bound = [each for each in fleet.machines.values() if fleet.node(each) is not None and fleet.is_enabled(each)]
    return [(machine, agent) for machine in bound for agent in machine.agents]


async def _speak(story: Story, machine: Machine, agent: Agent, wanted: Resources | None) -> None:
    """The agent reads its VM and requests ``wanted``, or the VM's present size."""
    agent.patches.clear()
    agent.view, agent.waits = story.fleet.view(machine), 0
    message = story.ask_for(machine, agent, wanted or story.fleet.use(machine))
    story.deliver_now(message)
    await story.clock.advance(0.1)


def _kept_for_nobody(story: Story) -> list[str]:
    found, ledger = [], story.ledger
    if ledger is None:
        return ["after the storm no scheduler is at work"]
    for machine in story.fleet.machines.values():
        pod = story.pod_of(machine)
        claim = ledger.claims.get(pod["metadata"]["uid"])
        use = story.fleet.use(machine)
        if story.fleet.sleeps(machine):
            use = use.at_least(OF_SLEEPER)
        if claim is not None and (machine.agents or not story.fleet.is_enabled(machine)) and claim.reserved != use:
            found.append(f"after the storm {machine.name} has {use}, reserved is {claim.reserved}")
    return found


def _free(story: Story, node: str) -> Resources:
    used = Resources.sum(
        story.fleet.has(each).at_least(OF_SLEEPER) if story.fleet.sleeps(each) else story.fleet.has(each)
        for each in story.fleet.on(node)
    )
    return SIZE.minus_or_zero(used + story.fleet.foreign(node))


def _open(story: Story, node: str) -> Resources:
    """Free room for all VMs, without the wake reserve."""
    sleeps = any(story.fleet.sleeps(machine) for machine in story.fleet.on(node))
    free = _free(story, node)
    return free.minus_or_zero(SIZE.scaled(DEFAULT_RESERVE.share)) if sleeps else free


async def _bind_all(story: Story) -> None:
    """A pod that fits is bound."""
    for machine in list(story.fleet.machines.values()):
        need = story.fleet.use(machine)
        for node in NAMES if story.fleet.node(machine) is None else ():
            if need.within(_open(story, node)):
                why = await story.bind_to(machine, node)
                story.require([f"{machine.name} fits on {node} and is refused: {why}"] if why else [])
                break


async def _grow_all(story: Story) -> None:
    """Grant an agent of the VM everything that fits."""
    machines = {machine.name: machine for machine, _ in _agents(story)}
    for machine in machines.values():
        node, more = story.fleet.node(machine), Resources.parse(1, "1Gi")
        if node is None or story.fleet.sleeps(machine) or not more.within(_open(story, node)):
            continue
        wanted = (story.fleet.use(machine) + more).at_most(Resources.parse(8, "16Gi"))
        for agent in machine.agents:
            await _speak(story, machine, agent, wanted)
        granted = [agent.hold for agent in machine.agents if agent.hold is not None and wanted.within(agent.hold)]
        story.require([] if granted else [f"{machine.name} fits with {wanted} on {node}, which is not granted"])
        await story.clock.advance(1)
