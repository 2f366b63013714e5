"""A VM whose pod's requests follow it: the pod as the API server and a kubelet see it, and the ledger."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from msgspec import structs

from protocol.messages import AgentRequest
from protocol.units import ZERO, Instant, MilliCpu, Resources, Seconds
from scheduler_plugin.ledger.events import (
    PermitRequested,
    PodSeen,
    RaiseRequested,
    RequestsFollow,
    ResizeDue,
    ResizeRefused,
    TimePassed,
    VmSeen,
)
from scheduler_plugin.ledger.facts import NodeFacts, PodFacts, RunnerRequests, VmFacts
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.ledger.outcomes import Effect, PermitDecision, ResizePod
from tests.scheduler_plugin.ledger.fleet import LATER, Fleet, amount, name, node, permit_stored, vm, vm_pod

MANY = amount(100)


@dataclass
class Requested:
    """The pod of the VM ``a`` on a node of 10 CPUs and GiB, of which 9 may be reserved.

    ``room`` is what the kubelet gives the pod at most, ``by_us`` what of its requests the scheduler wrote, and
    ``cpu_limit`` the limit that it wrote. ``is_seen``: it has looked at what is asked.
    """

    asked: Resources = field(default_factory=lambda: amount(1))
    allocated: Resources | None = field(default_factory=lambda: amount(1))
    problem: str = ""
    by_us: Resources = ZERO
    is_seen: bool = True
    cpu_limit: MilliCpu | None = None
    version: int = 1
    room: Resources = MANY
    now: Instant = LATER
    beside: tuple[PodFacts, ...] = ()
    vm: VmFacts = field(default_factory=lambda: vm("a", amount(1), actual=amount(1), permit=amount(1)))
    fleet: Fleet = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    @property
    def ledger(self) -> Ledger:
        return self.fleet.ledger

    @property
    def node(self) -> NodeFacts:
        return node()

    @property
    def secured(self) -> Resources:
        """Resources that the pod really holds on its node."""
        return self.asked if self.allocated is None else self.asked.at_most(self.allocated)

    @property
    def pod(self) -> PodFacts:
        runner = RunnerRequests(
            self.asked, self.allocated, self.problem, str(self.version), self.by_us, self.is_seen, self.cpu_limit
        )
        counts = ZERO if runner.verdict == "Infeasible" else self.asked
        requests = counts.at_least(self.allocated or self.asked)
        return replace(vm_pod("a", "n1"), requests=requests, runner=runner)

    def start(self) -> None:
        """A scheduler that has read the present objects, and has no other knowledge."""
        self.fleet = Fleet(self.node, self.vm, self.pod, *self.beside, now=self.now)
        self.ledger.apply(RequestsFollow(True), self.now)

    def look(self) -> tuple[Effect, ...]:
        """The watch shows the pod."""
        return self.fleet.apply(PodSeen(self.pod))

    def pass_time(self, seconds: float) -> None:
        self.now = Instant(self.now + Seconds(seconds))
        self.fleet.apply(TimePassed(), self.now)

    def request(self, wanted: Resources) -> AgentRequest:
        return AgentRequest(name("a-pod"), wanted)

    def raising(self, wanted: Resources) -> ResizePod | None:
        order, effects = self.ledger.apply(RaiseRequested("uid-a", self.request(wanted)), self.now)
        self.fleet.did(effects)
        return order

    def due(self) -> ResizePod | None:
        order, effects = self.ledger.apply(ResizeDue("uid-a"), self.now)
        self.fleet.did(effects)
        return order

    def lands(self, order: ResizePod) -> bool:
        """The API server takes the write if it is for this version of the pod."""
        if order.version != str(self.version):
            return False
        limit = self.cpu_limit if order.cpu_limit is None else order.cpu_limit
        self.version += (order.size, limit) != (self.asked, self.cpu_limit)
        self.cpu_limit = limit
        self.asked, self.by_us, self.problem = order.size, order.size, ""
        return True

    def refused(self, order: ResizePod, why: str, *, is_final: bool = False, is_of_size: bool = True) -> None:
        refused = self.ledger.apply(ResizeRefused(order, why, is_final=is_final, is_of_size=is_of_size), self.now)
        self.fleet.did(refused)

    def refused_all(self, wanted: Resources, why: str) -> None:
        """Refuse every attempt for the agent, until there are no more."""
        while (order := self.raising(wanted)) is not None:
            self.refused(order, why)

    def refused_all_due(self, why: str) -> None:
        """Refuse every attempt without an agent, until there are no more."""
        while (order := self.due()) is not None:
            self.refused(order, why)

    def kubelet_answers(self) -> None:
        """The kubelet allocates the requests, or refuses them with a reason."""
        if self.asked.within(self.room):
            self.allocated, self.problem = self.asked, ""
        else:
            rise = self.asked.minus_or_zero(self.room)
            lacking = "cpu" if rise.cpu > ZERO.cpu else "memory"
            self.problem = f"Deferred: Node didn't have enough resource: {lacking}"
        self.version += 1

    def kubelet_refuses(self) -> None:
        """The kubelet refuses the requests as infeasible, and the watch delivers that."""
        self.problem = "Infeasible: Node didn't have enough capacity"
        self.version += 1
        self.look()

    def written(self, order: ResizePod | None) -> None:
        """The whole way of a write: it lands, the kubelet answers, the watch shows both."""
        assert order is not None
        assert self.lands(order)
        self.look()
        self.kubelet_answers()
        self.look()

    def decide(self, wanted: Resources) -> PermitDecision:
        decision = self.ledger.apply(PermitRequested("uid-a", self.request(wanted)), self.now)
        self.fleet.did(decision.effects)
        return decision

    def grant(self, wanted: Resources) -> Resources:
        """The agent asks, and its permit is stored."""
        decision = self.decide(wanted)
        self.store(decision)
        return decision.permit

    def store(self, decision: PermitDecision) -> None:
        order = decision.persist
        if order is not None:
            self.vm = structs.replace(self.vm, version=self.vm.version + 1, permit=order.permit)
            self.fleet.apply(permit_stored(order.revision, self.vm))

    def use(self, size: Resources) -> None:
        """Set the guest's size, and show it in the VM's object."""
        self.vm = structs.replace(self.vm, version=self.vm.version + 1, use=size, actual=size)
        self.fleet.apply(VmSeen(self.vm), self.now)

    def is_in_phase(self, phase: str) -> None:
        """The VM falls asleep or is waking, and its object shows it; it wakes with the size that it used."""
        size = self.vm.use.at_least(self.vm.wakes_with or ZERO)
        changes = {"phase": phase, "use": ZERO, "actual": None, "wakes_with": size, "pod": name("a-pod")}
        self.vm = structs.replace(self.vm, version=self.vm.version + 1, **changes)
        self.fleet.apply(VmSeen(self.vm), self.now)


def order(size: float, version: int, reverts: str = "") -> ResizePod:
    """The order to resize the pod of the VM ``a``."""
    return ResizePod("uid-a", name("a-pod"), amount(size), str(version), reverts)


def problem_of(at: Requested) -> str:
    """The reason why the pod's requests differ from its VM's reservation."""
    return at.ledger.explain("uid-a", at.now).requests_problem
