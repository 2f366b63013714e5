"""An API server and a kubelet that refuse resizes by rules, and an agent that keeps asking."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from protocol.units import Resources
from scheduler_plugin.ledger.outcomes import ResizePod
from tests.scheduler_plugin.ledger.fleet import amount, vm
from tests.scheduler_plugin.ledger.requested import Requested

FIRST = amount(2)
LITTLE, PLENTY = amount(0.1), amount(9)
TRIES = 4


@dataclass
class Rules:
    """Refusals: of requests below ``minimum`` or above ``maximum`` by the API server; by the kubelet, of more than its
    ``room``, and with ``swap`` of any change of memory. Refusals ``name`` CPU and memory or not.
    """

    minimum: Resources = LITTLE
    maximum: Resources = PLENTY
    room: Resources = PLENTY
    swap: bool = False
    name: bool = True
    lost: float = 0.0

    def refusal(self, what: str, at_fault: list[str]) -> str:
        return f"{what} {' and '.join(at_fault) if self.name else 'it'}" if at_fault else ""


@dataclass
class Refusing:
    """One VM and its pod, advanced second by second. ``wish`` is the size that its agent requests, ``held`` its
    permit.
    """

    seed: int
    rules: Rules = field(default_factory=Rules)
    wish: Resources = FIRST
    held: Resources = FIRST
    seconds: int = 0
    writes: list[int] = field(default_factory=list)
    chance: random.Random = field(init=False)
    at: Requested = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.held, asked = self.some(), self.some()
        uses = replace(vm("a", self.held, actual=self.held, permit=self.held), first_requests=FIRST)
        self.at = Requested(asked=asked, allocated=asked, vm=uses)

    def some(self, minimum: int = 1) -> Resources:
        return amount(self.chance.randint(minimum, 8), self.chance.randint(minimum, 8))

    def change(self) -> None:
        """Something is otherwise from now on."""
        rules, chance = self.rules, self.chance
        match chance.randrange(8):
            case 0:
                rules.minimum = chance.choice([LITTLE, self.some().at_most(FIRST)])
            case 1:
                rules.maximum = chance.choice([PLENTY, self.some(minimum=2)])
            case 2:
                rules.room = chance.choice([PLENTY, self.some(minimum=2)])
            case 3:
                rules.swap = chance.random() < 0.4
            case 4:
                rules.name, rules.lost = chance.random() < 0.5, chance.choice([0.0, 0.3])
            case 5 if chance.random() < 0.3:
                self.at.start()
            case _:
                self.wish = self.some()

    def second(self) -> None:
        """The writer sometimes handles the pod, its agent sends requests, and the kubelet usually responds."""
        self.seconds += 1
        self.at.pass_time(1)
        if self.seconds % 2 == 0:
            self._carry_out(self.at.due)
        self._kubelet_looks()
        if self.seconds % 3 == 0:
            self._carry_out(lambda: self.at.raising(self.wish))
            self._kubelet_looks()
            self._ask()

    def _ask(self) -> None:
        account = self.at.ledger.claims["uid-a"].vm
        assert account is not None
        may = account.reserved.at_least(self.at.secured)
        self.held = self.at.grant(self.wish)
        assert self.held.within(may), "nothing is permitted that is neither reserved nor set aside"
        use = self.wish.at_most(self.held)
        if use != self.at.vm.use:
            self.at.use(use)

    def _carry_out(self, find: Callable[[], ResizePod | None]) -> None:
        for _ in range(TRIES):
            order = find()
            if order is None or self._ends(order):
                return

    def _ends(self, order: ResizePod) -> bool:
        """The API server's answer to a write; False if it was refused."""
        at, rules = self.at, self.rules
        self.writes.append(self.seconds)
        if self.chance.random() < rules.lost:
            if self.chance.random() < 0.5:
                at.lands(order)
            return True
        low, high = rules.minimum.minus_or_zero(order.size), order.size.minus_or_zero(rules.maximum)
        why = rules.refusal("403: too little or too much of", _names(low.at_least(high)))
        if order.version != str(at.version) or why:
            at.refused(order, why if order.version == str(at.version) else "")
            at.look()
            return False
        assert at.lands(order)
        at.look()
        return True

    def _kubelet_looks(self) -> None:
        at, rules = self.at, self.rules
        if self.chance.random() < 0.1 or at.allocated in {None, at.asked} or at.allocated is None:
            return
        more = at.asked.minus_or_zero(at.allocated)
        lacking = Resources(
            more.cpu if at.asked.cpu > rules.room.cpu else more.cpu * 0,
            more.mem if at.asked.mem > rules.room.mem else more.mem * 0,
        )
        if rules.swap:
            lacking = lacking.at_least(Resources(lacking.cpu, more.mem + at.allocated.mem.minus_or_zero(at.asked.mem)))
        before = (at.allocated, at.problem)
        at.problem = rules.refusal("Deferred: not enough", _names(lacking)[:1])
        at.allocated = at.allocated if at.problem else at.asked
        at.version += (at.allocated, at.problem) != before
        at.look()


def _names(parts: Resources) -> list[str]:
    return [name for name, part in (("cpu", parts.cpu), ("memory", parts.mem)) if part]
