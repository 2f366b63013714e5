"""What must come about once nothing goes wrong any more: nothing waits that could go, nothing is kept for nobody."""

from __future__ import annotations

from typing import Final

from protocol.units import Resources
from tests.oracle.fleet import AWAY, Agent, Machine
from tests.oracle.judge import SIZE
from tests.oracle.story import NAMES, Story

ROUNDS: Final = 9
TICK: Final = 10.0


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
        story.resize(machine, machine.own)
        if story.fleet.node(machine) is not None:
            story.report_of(machine)
        for agent in machine.agents:
            agent.blind_until = agent.quiet_until = AWAY
    for _ in range(ROUNDS):
        for machine, agent in _agents(story):
            await _speak(story, machine, agent, None)
        await story.clock.advance(TICK)
        story.require(story.judge.look(story.ledger))
    story.require(_kept_for_nobody(story))
    if not any(story.is_moving(name) for name in story.fleet.machines):  # rooms are kept on two nodes
        await _bind_all(story)
        await _grow_all(story)


async def _end_moves(story: Story) -> None:
    """What is on its way arrives or fails."""
    for _ in range(60):
        await story.carry()
        await story.clock.advance(1)


def _agents(story: Story) -> list[tuple[Machine, Agent]]:
    fleet = story.fleet
    bound = [each for each in fleet.machines.values() if fleet.node(each) is not None and fleet.is_enabled(each)]
    return [(machine, agent) for machine in bound for agent in machine.agents]


async def _speak(story: Story, machine: Machine, agent: Agent, wanted: Resources | None) -> None:
    """The agent reads its VM and asks for ``wanted``, or for what the VM has."""
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
        if claim is not None and (machine.agents or not story.fleet.is_enabled(machine)) and claim.reserved != use:
            found.append(f"after the storm {machine.name} has {use}, reserved is {claim.reserved}")
    return found


def _free(story: Story, node: str) -> Resources:
    used = Resources.sum(story.fleet.has(each) for each in story.fleet.on(node))
    return SIZE.minus_or_zero(used + story.fleet.foreign(node))


async def _bind_all(story: Story) -> None:
    """A pod that fits is bound."""
    for machine in list(story.fleet.machines.values()):
        need = story.fleet.use(machine)
        for node in NAMES if story.fleet.node(machine) is None else ():
            if need.within(_free(story, node)):
                why = await story.bind_to(machine, node)
                story.require([f"{machine.name} fits on {node} and is refused: {why}"] if why else [])
                break


async def _grow_all(story: Story) -> None:
    """What fits is granted to an agent of the VM."""
    machines = {machine.name: machine for machine, _ in _agents(story)}
    for machine in machines.values():
        node, more = story.fleet.node(machine), Resources.parse(1, "1Gi")
        if node is None or not more.within(_free(story, node)):
            continue
        wanted = (story.fleet.use(machine) + more).at_most(Resources.parse(8, "16Gi"))
        for agent in machine.agents:
            await _speak(story, machine, agent, wanted)
        granted = [agent.hold for agent in machine.agents if agent.hold is not None and wanted.within(agent.hold)]
        story.require([] if granted else [f"{machine.name} fits with {wanted} on {node}, which is not granted"])
        await story.clock.advance(1)
