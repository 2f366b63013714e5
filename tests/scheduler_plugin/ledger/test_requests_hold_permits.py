"""A pod's requests cover its agent's permit, even if messages are lost, late or refused, or processes are killed
(B.10).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from protocol.units import Instant, Resources
from scheduler_plugin.ledger.accounts.pod_requests import SETTLE
from scheduler_plugin.ledger.outcomes import ResizePod
from tests.scheduler_plugin.ledger.fleet import amount
from tests.scheduler_plugin.ledger.requested import Requested

SIZES = st.builds(amount, st.integers(1, 9), st.integers(1, 9))
WHICH = st.integers(0, 5)


@dataclass
class Sent:
    """A write on its way: ``is_awaited`` by the process that sent it."""

    order: ResizePod
    at: Instant
    is_awaited: bool = True
    has_landed: bool = field(default=False)


class RequestsHoldPermits(RuleBasedStateMachine):
    """One VM; an agent that obeys; writes that land late, twice tried, or never; a kubelet; crashes."""

    def __init__(self) -> None:
        super().__init__()
        self.at = Requested()
        self.permit = amount(1)
        self.sent: list[Sent] = []

    def send(self, order: ResizePod | None) -> None:
        if order is not None:
            self.sent.append(Sent(order, self.at.now))

    @property
    def is_busy(self) -> bool:
        return any(each.is_awaited for each in self.sent)

    def pick(self, which: int) -> Sent:
        return self.sent[which % len(self.sent)]

    @rule(wanted=SIZES)
    def asks(self, wanted: Resources) -> None:
        self.permit = self.permit.at_most(wanted)
        self.at.use(self.at.vm.use.at_most(self.permit))
        if not self.is_busy:
            self.send(self.at.raising(wanted))
        self.permit = self.at.grant(wanted)
        self.at.use(wanted.at_most(self.permit))

    @precondition(lambda self: not self.is_busy)
    @rule(wanted=SIZES)
    def asks_and_gets(self, wanted: Resources) -> None:
        """As it mostly is: nothing is lost on the way."""
        order = self.at.raising(wanted)
        if order is not None:
            self.at.lands(order)
            self.at.kubelet_answers()
            self.at.look()
        self.asks(wanted)

    @precondition(lambda self: not self.is_busy)
    @rule()
    def follows(self) -> None:
        self.send(self.at.due())

    @precondition(lambda self: self.sent)
    @rule(which=WHICH)
    def lands(self, which: int) -> None:
        found = self.pick(which)
        if not found.has_landed and self.at.now - found.at < SETTLE:
            found.has_landed = self.at.lands(found.order)

    @precondition(lambda self: self.sent)
    @rule()
    def all_land_that_can(self) -> None:
        for which in range(len(self.sent)):
            self.lands(which)

    @precondition(lambda self: self.sent)
    @rule(which=WHICH, why=st.sampled_from(["", "", "403: exceeded quota"]))
    def is_answered(self, which: int, why: str) -> None:
        found = self.pick(which)
        if not found.is_awaited:
            return
        self.sent.remove(found)
        if found.has_landed:
            self.at.look()
        else:
            self.at.refused(found.order, why)

    @precondition(lambda self: self.sent)
    @rule(which=WHICH)
    def has_no_answer(self, which: int) -> None:
        self.pick(which).is_awaited = False

    @rule()
    def is_watched(self) -> None:
        self.at.look()

    @rule(room=st.sampled_from([3, 9, 9, 9]))
    def kubelet_answers(self, room: int) -> None:
        self.at.room = amount(room).at_least(self.at.allocated or amount(1))
        self.at.kubelet_answers()
        self.at.room = amount(9)

    @rule(seconds=st.sampled_from([1, 6, 6, 40]))
    def time_passes(self, seconds: int) -> None:
        for each in self.sent:  # a call ends before what it sent may be forgotten
            each.is_awaited = each.is_awaited and self.at.now + seconds - each.at < SETTLE
        self.at.pass_time(seconds)
        self.sent = [each for each in self.sent if each.is_awaited or self.at.now - each.at < SETTLE]

    @rule()
    def is_killed(self) -> None:
        for each in self.sent:
            each.is_awaited = False
        self.at.start()

    @invariant()
    def requests_hold_the_permit(self) -> None:
        assert self.permit.within(self.at.secured), (self.permit, self.at.secured)

    @invariant()
    def requests_fit_the_node(self) -> None:
        assert self.at.asked.within(self.at.node.allocatable)


TestRequestsHoldPermits = RequestsHoldPermits.TestCase
