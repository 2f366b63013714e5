"""A small fleet for stories, in whole CPUs and GiB; the invariants are checked after every step."""

from __future__ import annotations

from fractions import Fraction

from msgspec import structs

from protocol.messages import AgentRequest, ObjectName
from protocol.names import SCHEDULER_NAME
from protocol.ranking.config import RankingConfig
from protocol.units import Bytes, ComputeUnit, Instant, MilliCpu, Resources
from scheduler_plugin.ledger.accounts.waiting_pods import PERCENT
from scheduler_plugin.ledger.events import (
    Fact,
    Listed,
    PermitRequested,
    PermitWritten,
    Report,
    SettingsRead,
    VmSeen,
    WriteOutcome,
)
from scheduler_plugin.ledger.facts import (
    MigrationFacts,
    MigrationPhase,
    NodeFacts,
    NodePolicy,
    PodFacts,
    ResourcePolicy,
    VmFacts,
)
from scheduler_plugin.ledger.invariants import violations
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.ledger.outcomes import Effect, PermitDecision

NOW = Instant(1000.0)
LATER = Instant(NOW + 60.0)
UNIT = ComputeUnit.parse("250m", "1Gi")


def amount(cpu: float, mem: float | None = None) -> Resources:
    """This many CPUs and GiB; as many GiB as CPUs if only one number is given."""
    return Resources(MilliCpu.cores(cpu), Bytes(int((cpu if mem is None else mem) * 1024**3)))


def policy(watermark: str = "0.7", system: float = 1) -> NodePolicy:
    kept = amount(system)
    return NodePolicy(
        UNIT, ResourcePolicy(Fraction(watermark), kept.cpu), ResourcePolicy(Fraction(watermark), kept.mem)
    )


def node(name: str = "n1", total: float = 10, *, is_open: bool = True) -> NodeFacts:
    return NodeFacts(name, amount(total), policy(), is_open)


def name(of: str) -> ObjectName:
    return ObjectName("db", of)


def vm(
    of: str,
    use: Resources,
    *,
    actual: Resources | None = None,
    permit: Resources | None = None,
    maximum: Resources | None = None,
    version: int = 1,
    uid: str = "first",
    pod: ObjectName | None = None,
) -> VmFacts:
    return VmFacts(name(of), f"{of}-{uid}", version, maximum or amount(20), use, actual, permit, pod)


def vm_pod(of: str, on: str | None = None, uid: str | None = None, *, finished: bool = False) -> PodFacts:
    """The pod of a VM; its UID is ``uid-NAME``."""
    return PodFacts(uid or f"uid-{of}", name(f"{of}-pod"), Resources(amount(0.1).cpu, Bytes(0)), name(of), on, finished)


def plain_pod(of: str, requests: Resources, on: str | None = None, *, finished: bool = False) -> PodFacts:
    """A pod that runs no VM."""
    return PodFacts(f"uid-{of}", name(of), requests, None, on, finished)


def migration(
    of: str,
    phase: MigrationPhase = MigrationPhase.RUNNING,
    *,
    to: str | None = None,
    number: int = 1,
    version: int = 1,
    source_pod: str | None = None,
    target_pod: str | None = None,
    is_terminating: bool = False,
    is_ours: bool = True,
    ended_at: float | None = None,
) -> MigrationFacts:
    """A migration of the VM ``of``, away from its pod ``NAME-pod`` (unless PENDING); its name is ``NAME-NUMBER``."""
    source = source_pod or (None if phase is MigrationPhase.PENDING else f"{of}-pod")
    return MigrationFacts(
        name=name(f"{of}-{number}"),
        uid=f"migration-{of}-{number}",
        version=version,
        vm=name(of),
        phase=phase,
        target=to,
        source_pod=None if source is None else name(source),
        target_pod=None if target_pod is None else name(target_pod),
        is_terminating=is_terminating,
        is_ours=is_ours,
        ended_at=ended_at,
    )


def permit_stored(revision: int, facts: VmFacts) -> PermitWritten:
    """The API server accepted the write of a permit, and returned ``facts``."""
    return PermitWritten(facts.name, revision, WriteOutcome.DONE, facts)


def settings_read(
    ranking: RankingConfig | None = None, scheduler: str = SCHEDULER_NAME, percent_of_nodes: int = PERCENT
) -> SettingsRead:
    return SettingsRead(ranking or RankingConfig(), scheduler, percent_of_nodes)


class Fleet:
    """A ledger that is checked after every step, with shortcuts for the service's calls."""

    def __init__(self, *facts: NodeFacts | PodFacts | VmFacts, now: Instant = NOW) -> None:
        self.ledger = Ledger()
        self.vms = {fact.name: fact for fact in facts if isinstance(fact, VmFacts)}
        nodes = [fact for fact in facts if isinstance(fact, NodeFacts)]
        pods = [fact for fact in facts if isinstance(fact, PodFacts)]
        self.apply(Listed(nodes, pods, self.vms.values()), now)

    def did(self, effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
        """Checks the invariants after a step."""
        assert violations(self.ledger) == []
        return effects

    def apply(self, event: PermitWritten | Fact | Report, now: Instant = LATER) -> tuple[Effect, ...]:
        """One event that asks for no decision."""
        return self.did(self.ledger.apply(event, now))

    def ask(
        self,
        of: str,
        wanted: Resources,
        *,
        number: int | None = None,
        last_permit: Resources | None = None,
        now: Instant = LATER,
    ) -> PermitDecision:
        """An agent's request, decided and not yet persisted."""
        request = AgentRequest(name(f"{of}-pod"), wanted, last_permit, sequence=number)
        decision = self.ledger.apply(PermitRequested(f"uid-{of}", request), now)
        self.did(decision.effects)
        return decision

    def store(self, decision: PermitDecision) -> tuple[Effect, ...]:
        """The API takes the decision's write, if there is one, and returns the object."""
        order = decision.persist
        if order is None:
            return ()
        old = self.vms[order.vm]
        new = structs.replace(old, version=old.version + 1, permit=order.permit, holders=order.holders)
        self.vms[order.vm] = new
        return self.apply(permit_stored(order.revision, new))

    def resize(self, of: str, use: Resources, *, now: Instant = LATER) -> tuple[Effect, ...]:
        """The VM's object says that it has and asks for ``use``."""
        old = self.vms[name(of)]
        new = structs.replace(old, version=old.version + 1, use=use, actual=use)
        self.vms[old.name] = new
        return self.apply(VmSeen(new), now)

    def grant(
        self,
        of: str,
        wanted: Resources,
        *,
        number: int | None = None,
        last_permit: Resources | None = None,
        now: Instant = LATER,
    ) -> Resources:
        """A whole round: ask, persist, answer."""
        decision = self.ask(of, wanted, number=number, last_permit=last_permit, now=now)
        self.store(decision)
        return decision.permit

    def reserved(self, of: str) -> Resources:
        """Reservation of a pod or VM of that name."""
        return self.ledger.claims[f"uid-{of}"].reserved

    def on(self, of: str) -> Resources:
        """Reservations on a node."""
        return self.ledger.nodes[of].reserved
