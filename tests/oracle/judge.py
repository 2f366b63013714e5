"""Invariants, checked with API objects and with responses to agents. The ledger is only asked for reservations.

- What the VMs of a node may use is within the node, whenever an answer or a binding has added to it.
- What an agent of a VM holds is stored, or in use: a scheduler that starts now would find it.
- What a VM may use is reserved by the scheduler that is at work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from protocol.units import ZERO, Instant, Resources, Seconds
from scheduler_plugin.ledger.ledger import Ledger
from tests.oracle.fleet import Agent, Fleet, Machine

SIZE: Final = Resources.parse("10", "40Gi")
UNSEEN: Final = Seconds(40.0)
"""What others put on a node, or take from an object, may be unknown for so long to a scheduler whose watch was cut."""


class Judge:
    """Records outsiders' actions, and reports violations."""

    def __init__(self, fleet: Fleet, now: Callable[[], Instant]) -> None:
        self.fleet = fleet
        self._now = now
        self._outside: dict[str, Instant] = {}

    def outsider(self, node: str | None) -> None:
        """Others have increased the load of the node."""
        if node is not None:
            self._outside[node] = self._now()

    def added(self, machine: Machine, before: Resources) -> list[str]:
        """Violations after the scheduler allowed the VM more than ``before``."""
        node = self.fleet.node(machine)
        after = self.fleet.may_use(machine)
        if node is None or after.within(before) or self._now() - self._outside.get(node, float("-inf")) < UNSEEN:
            return []
        shares = {each.name: self._share(each, machine) for each in self.fleet.on(node)}
        total = Resources.sum(shares.values()) + self.fleet.foreign(node)
        over = total.minus_or_zero(SIZE)
        raised = after.minus_or_zero(before)
        if not ((over.cpu and raised.cpu) or (over.mem and raised.mem)):
            return []
        return [
            f"node {node} is over by {over} after {machine.name} went from {before} to {after}: "
            + ", ".join(f"{name} {share}" for name, share in shares.items())
        ]

    def _share(self, machine: Machine, grown: Machine) -> Resources:
        """The part of its node that a VM counts. A resize by a neighbour within a permit that others revoked counts
        only if there is room, because nobody could know of that permit.
        """
        is_unknown = machine.is_excused and machine is not grown
        used = self.fleet.may_use(machine)
        return used.at_most(self.fleet.stored(machine) or ZERO) if is_unknown else used

    def written(self, machine: Machine, agent: Agent, before: Resources) -> list[str]:
        """Violations after an awaited response, while ``before`` was stored at first."""
        known = before.at_least(self.fleet.stored(machine) or ZERO).at_least(self.fleet.use(machine))
        is_edited = self._now() - machine.edited_at < UNSEEN
        if machine.is_pod or is_edited or agent.hold is None or agent.hold.within(known):
            return []
        return [f"{machine.name}: {agent.hold} was written and answered, stored is {self.fleet.stored(machine)}"]

    def look(self, ledger: Ledger | None) -> list[str]:
        """Present violations."""
        found = []
        for machine in self.fleet.machines.values():
            if not machine.is_pod:
                self._settle(machine)
                found += self._not_stored(machine)
            if ledger is not None:
                found += self._not_reserved(machine, ledger)
        return found

    def _settle(self, machine: Machine) -> None:
        """A permit that was restored is trusted again; one that was taken back while autoscaling was off is void.

        What was taken back is what the VM used then; it may have been resized since. So may a VM whose permit was
        lowered while no scheduler ran: the next one counts of that what there is room for. What it has not answered
        itself it does not know as held, even if it stores as much for another agent.
        """
        stored, use = self.fleet.stored(machine) or ZERO, self.fleet.use(machine)
        if not self.fleet.is_enabled(machine):
            for agent in machine.agents:
                agent.hold = agent.hold and agent.hold.at_most(use.at_least(stored))
        if self.fleet.cluster.webhook is not None:
            machine.is_tainted = True
        elif stored != machine.forged and all(
            _is_known(agent) and agent.may_order.within(stored) for agent in machine.agents
        ):
            machine.is_tainted = False
            machine.is_excused = machine.is_excused and not machine.own.within(stored)

    def _not_stored(self, machine: Machine) -> list[str]:
        if machine.is_tainted or self.fleet.node(machine) is None:
            return []
        stored = self.fleet.stored(machine) or ZERO
        known = stored.at_least(self.fleet.use(machine)).at_least(self.fleet.reported(machine))
        return [
            f"{machine.name}: {self._who(agent)} holds {agent.hold}, stored is {self.fleet.stored(machine)}"
            for agent in machine.agents
            if agent.hold is not None and not agent.hold.within(known)
        ]

    def _not_reserved(self, machine: Machine, ledger: Ledger) -> list[str]:
        pod = self.fleet.cluster.collections["/api/v1/pods"].objects.get(("default", machine.pod))
        claim = None if pod is None else ledger.claims.get(pod["metadata"]["uid"])
        if claim is None or pod is None or machine.is_excused or not pod["spec"].get("nodeName"):
            return []
        # Until the agent of a pod is heard, all that is free beside the pod is kept.
        if claim.is_unbounded:
            return []
        most = self.fleet.may_use(machine)
        return [] if most.within(claim.reserved) else [f"{machine.name} may use {most}, reserved is {claim.reserved}"]

    @staticmethod
    def _who(agent: Agent) -> str:
        return f"the agent in {agent.uid}"


def _is_known(agent: Agent) -> bool:
    return not (agent.is_unknown and agent.may_order.any)
