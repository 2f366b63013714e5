"""Agents: their reads, requests, responses and actions."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Final

from protocol.guest.sleep import WAKING
from protocol.units import ZERO, Instant, Resources
from scheduler_plugin.ledger.accounts.permit_state import SETTLE
from scheduler_plugin.web import agents
from scheduler_plugin.web.hot_paths import HotRequest, HotResponse
from tests.oracle.fleet import KEPT, Agent, Machine, Patch, View
from tests.oracle.stage import BrokenError, Message, Stage
from tests.scheduler_plugin.fake_cluster import Obj
from tests.scheduler_plugin.objects import token_text

LIFE: Final = 24.0
"""Seconds that a message lives; below the scheduler's ``SETTLE``."""

NEWS: Final = SETTLE - LIFE
"""Seconds until an agent has heard that autoscaling is off, so that its last resize lands within ``SETTLE``."""

PATIENCE: Final = 5.0
"""Seconds that an agent waits for an answer."""


class Agents(Stage):
    """One or two for each VM."""

    def _some_agent(self) -> tuple[Machine, Agent] | None:
        bound = [each for each in self.fleet.machines.values() if each.agents and self.fleet.node(each) is not None]
        if not bound:
            return None
        machine = self.chance.choice(bound)
        return machine, self.chance.choice(machine.agents)

    def look(self) -> None:
        """An agent reads its VM."""
        found = self._some_agent()
        if found is None:
            return
        machine, agent = found
        if self.clock.now() < agent.blind_until:
            return
        agent.view = self.fleet.view(machine)
        version = agent.view.version
        agent.patches = [each for each in agent.patches if each.base is None or each.base >= version]
        if not agent.view.enabled:
            agent.hold, agent.waits = None, 0

    def ask(self) -> None:
        found = self._some_agent()
        if found is None:
            return
        machine, agent = found
        if self.clock.now() - agent.asked_at > PATIENCE:
            agent.waits = 0
        if agent.view is None or agent.waits or self.clock.now() < agent.quiet_until:
            return
        message = self.ask_for(machine, agent, self.wish(agent.view))
        if self.chance.random() < 0.85:
            self._arrive(message)

    def wish(self, view: View) -> Resources:
        """A size that an agent requests according to its view: any, zero to sleep, or its whole size to wake."""
        if view.wakes_with is None:
            return self.size()
        return view.wakes_with if view.phase == WAKING else ZERO

    def ask_for(self, machine: Machine, agent: Agent, wanted: Resources) -> Message:
        """Send a request, which stays in transit until it arrives. The agent gives up now what it does not request."""
        wanted, last = wanted.at_least(agent.floor()), agent.hold
        agent.hold = agent.hold and agent.hold.at_most(wanted)
        agent.sequence += 1
        self.messages += 1
        body: Obj = {
            "protoVersion": 4,
            "pod": {"name": machine.pod, "namespace": "default"},
            "resources": amounts(wanted, machine.slots),
            "lastPermit": None if agent.hold is None else amounts(agent.hold, machine.slots),
            "metrics": None,
        }
        # Any claim, true or not: an agent may lie about what its VM needs, and need not give what it offers.
        if self.chance.random() < 0.5:
            body["needs"] = amounts(self.size(), machine.slots)
            # Without CPU it may sleep.
            if self.chance.random() < 0.3:
                body["needs"]["vCPUs"] = 0
        if agent.numbers:
            body["sequence"] = agent.sequence
        agent.waits, agent.asked_at = self.messages, self.clock.now()
        message = Message(self.messages, machine, agent, json.dumps(body).encode(), self.clock.now())
        self.note(f"{agent.token} asks {wanted} for {machine.name}, holds {last} (#{message.number})")
        self.wire.append(message)
        return message

    def deliver_now(self, message: Message) -> None:
        """Deliver the request once, and its response."""
        self.wire.remove(message)
        self._post(message)

    def deliver(self) -> None:
        """A late message, or a duplicate, arrives."""
        self.wire = [each for each in self.wire if self.clock.now() - each.at < LIFE]
        if self.wire:
            self._arrive(self.chance.choice(self.wire))

    def _arrive(self, message: Message) -> None:
        if self.chance.random() < 0.9:
            self.wire.remove(message)
        self._post(message)

    def _post(self, message: Message) -> None:
        service = self.schedulers.service
        if service is None:
            return
        message.stored = self.fleet.stored(message.machine) or ZERO
        before = message.had = self.fleet.has(message.machine)
        shown = f"Bearer {token_text(message.agent.token)}"
        answer = agents.request(service, HotRequest(message.body, shown, "10.0.0.1"))
        if isinstance(answer, HotResponse):
            self._answered(message, answer, before)
        else:
            task = asyncio.ensure_future(answer)
            self.asking[task] = message
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[HotResponse]) -> None:
        message = self.asking.pop(task, None)
        if message is not None and not task.cancelled():
            with suppress(BrokenError):  # the step that is under way ends the story
                self._written(message, task)

    def _written(self, message: Message, task: asyncio.Task[HotResponse]) -> None:
        """A response that has waited for a write."""
        held = message.agent.hold
        self._answered(message, task.result(), message.had.at_least(self.fleet.has(message.machine)))
        if message.agent.hold is not held and message.machine.name in self.fleet.machines:
            self.require(self.judge.written(message.machine, message.agent, message.stored))

    def _answered(self, message: Message, answer: HotResponse, before: Resources) -> None:
        machine, agent, body = message.machine, message.agent, json.loads(answer.body)
        if answer.status >= 500 and answer.status != 503:
            self.require([f"{answer.status} {body}"])
        if answer.status != 200:
            self.note(f"#{message.number}: {answer.status} {body['error']}")
            agent.waits = 0 if agent.waits == message.number else agent.waits
            return
        asked = json.loads(message.body)
        if (body.get("shrinkTo") or {}).get("vCPUs") == 0 and asked["needs"]["vCPUs"]:
            self.require([f"{machine.name} is asked to sleep, which it did not offer"])
        permit = Resources.parse(body["permit"]["vCPUs"], f"{body['permit']['mem'] * (1024 // machine.slots)}Mi")
        is_heard = (
            (self.api.calm or self.chance.random() < 0.93) and agent.waits == message.number and agent in machine.agents
        )
        self.note(f"#{message.number}: permit {permit}{'' if is_heard else ', which nobody hears'}")
        if not is_heard or self.fleet.machines.get(machine.name) is not machine:
            return
        agent.waits = 0
        if not agent.floor().within(permit):
            return
        self.granted += 1
        agent.hold, agent.is_unknown = permit if self.fleet.is_enabled(machine) else None, False
        agent.answered_at = self.clock.now()
        agent.answered_version = 0 if agent.view is None else agent.view.version
        self.require(self.judge.added(machine, before))

    def patch(self) -> None:
        """An agent resizes its VM within its permit."""
        found = self._some_agent()
        if found is None or found[1].view is None or not found[1].view.enabled or len(found[1].patches) > 1:
            return
        machine, agent = found
        if found[1].view.wakes_with is not None:
            return
        if self.is_moving(machine.name) or not (agent.numbers or self._may_patch_any_version(machine, agent)):
            return
        assert agent.view is not None
        target = self.size().at_most(agent.limit()).at_least(Resources.parse(1, "1Gi"))
        if target == agent.view.use:
            return
        base, due = (
            agent.view.version if agent.numbers else None,
            target.at_most(machine.own.at_least(agent.hold or ZERO)),
        )
        patch = Patch(base, target, due, Instant(self.clock.now() + LIFE))
        agent.patches.append(patch)
        if self.chance.random() < 0.8:
            self._land(machine, agent, patch)

    def _may_patch_any_version(self, machine: Machine, agent: Agent) -> bool:
        is_off = not self.fleet.is_enabled(machine) and self.clock.now() - machine.off_since > NEWS
        return agent.hold is not None and not is_off

    def land_patch(self) -> None:
        """A late resize lands, even of an agent that is gone."""
        flights = [
            (each, agent, patch)
            for each in self.fleet.machines.values()
            for agent in each.agents
            for patch in agent.patches
        ]
        if flights:
            self._land(*self.chance.choice(flights))

    def _land(self, machine: Machine, agent: Agent, patch: Patch) -> None:
        agent.patches.remove(patch)
        if patch.base not in (None, self.fleet.version(machine)):
            return
        self.note(f"{agent.token} resizes {machine.name} to {patch.target}")
        self.resize(machine, patch.target)
        machine.own = patch.due
        if self.clock.now() >= agent.blind_until and self.chance.random() < 0.8:
            agent.view = self.fleet.view(machine)

    def end_patches(self) -> None:
        """No call lives forever, and what no object records no longer than a scheduler waits for it."""
        now = self.clock.now()
        for machine in self.fleet.machines.values():
            for agent in machine.agents:
                if machine.is_pod and now - agent.answered_at > KEPT:
                    agent.hold, agent.patches = None, []
                agent.patches = [each for each in agent.patches if each.base is not None or each.ends > now]

    def restart_agent(self) -> None:
        found = self._some_agent()
        if found is not None:
            machine, agent = found
            self.note(f"the agent {agent.token} of {machine.name} is restarted")
            fresh = Agent(agent.token, agent.uid, agent.numbers, self._sequence(), patches=agent.patches)
            machine.agents[machine.agents.index(agent)] = fresh

    def hide_agent(self) -> None:
        """Cut an agent off from the API server, or from the scheduler."""
        found = self._some_agent()
        if found is not None:
            until = Instant(self.clock.now() + self.chance.choice((5.0, 40.0, 120.0)))
            if self.chance.random() < 0.5:
                found[1].blind_until = until
            else:
                found[1].quiet_until = until


def amounts(size: Resources, slots: int) -> Obj:
    """As v2.1 writes them: memory in slots, of which a GiB has this many."""
    return {"vCPUs": size.cpu.quantity(), "mem": int(size.mem.as_gib * slots)}
