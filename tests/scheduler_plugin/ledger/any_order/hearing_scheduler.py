"""A scheduler whose watches deliver events late, twice or as a list. It writes permits, and sometimes dies."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from msgspec.structs import replace

from protocol.guest.sleep import SLEEPING
from protocol.messages import ObjectName
from protocol.units import Instant, Resources
from scheduler_plugin.ledger.accounts.permit_state import SETTLE
from scheduler_plugin.ledger.events import (
    Listed,
    MigrationGone,
    MigrationSeen,
    PermitWritten,
    PodGone,
    PodRead,
    PodSeen,
    TimePassed,
    VmGone,
    VmSeen,
    WriteOutcome,
)
from scheduler_plugin.ledger.facts import MigrationFacts, PodFacts, VmFacts
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.ledger.outcomes import Effect, PersistPermit, ReadPod
from tests.scheduler_plugin.ledger.any_order.undelivered_news import NODES, Api, kinds, names
from tests.scheduler_plugin.ledger.fleet import NOW, name, node, permit_stored


class HearingScheduler(RuleBasedStateMachine):
    """The ledgers of successive processes on one API server."""

    def __init__(self) -> None:
        super().__init__()
        self.api, self.now = Api(), NOW
        self.ledger = Ledger()
        self.agents: dict[str, Resources] = {}
        self.guests: dict[str, Resources] = {}
        """What guests use that were woken by a stored permit, by their pods."""
        self.writes: dict[ObjectName, PersistPermit] = {}
        self.heard: list[object] = []
        self.start()

    @precondition(lambda self: self.api.version % 7 == 0)
    @rule()
    def start(self) -> None:
        """A new process rebuilds everything from the API; what the last one was about to write is lost."""
        self.ledger = Ledger()
        self.writes.clear()
        self.relist()

    @precondition(lambda self: self.api.version % 3 == 0)
    @rule()
    def relist(self) -> None:
        for queue in self.api.news.values():
            queue.clear()
        self.heard.clear()
        nodes = [node(each, 12) for each in NODES]
        api = self.api
        lists = Listed(nodes, api.pods.values(), api.vms.values(), api.migrations.values())
        self.did(self.ledger.apply(lists, self.now))

    @rule(kind=kinds, count=st.integers(1, 3))
    def hear(self, kind: str, count: int) -> None:
        for _ in range(min(count, len(self.api.news[kind]))):
            found = self.api.news[kind].pop(0)
            self.heard = [*self.heard[-5:], found] if isinstance(found, VmFacts | MigrationFacts) else self.heard
            self.take(kind, found)

    @precondition(lambda self: self.heard)
    @rule(data=st.data())
    def hear_again(self, data: st.DataObject) -> None:
        """Old news of an object that is still there."""
        found = data.draw(st.sampled_from(self.heard))
        if isinstance(found, VmFacts) and found.name in self.ledger.vms:
            self.take("vm", found)
        elif isinstance(found, MigrationFacts) and found.name in self.ledger.migrations:
            self.take("migration", found)

    def take(self, kind: str, found: object) -> None:
        ledger = self.ledger
        match kind, found:
            case "vm", VmFacts():
                self.did(ledger.apply(VmSeen(found), self.now))
            case "vm", ObjectName():
                self.did(ledger.apply(VmGone(found), self.now))
            case "pod", PodFacts():
                self.did(ledger.apply(PodSeen(found), self.now))
            case "pod", str():
                self.did(ledger.apply(PodGone(found), self.now))
            case _, MigrationFacts():
                self.did(ledger.apply(MigrationSeen(found), self.now))
            case _, ObjectName():
                self.did(ledger.apply(MigrationGone(found), self.now))

    def did(self, effects: tuple[Effect, ...]) -> None:
        self.writes |= {effect.vm: effect for effect in effects if isinstance(effect, PersistPermit)}
        for read in [effect for effect in effects if isinstance(effect, ReadPod)]:
            self.did(self.ledger.apply(PodRead(read.uid, self.api.pods.get(read.uid)), self.now))

    @rule(seconds=st.sampled_from((1.0, SETTLE / 2, SETTLE)))
    def wait(self, seconds: float) -> None:
        self.now = Instant(self.now + seconds)
        self.did(self.ledger.apply(TimePassed(), self.now))

    @rule(vm=names, is_lost=st.booleans())
    def write(self, vm: str, is_lost: bool) -> None:
        order = self.writes.pop(name(vm), None)
        if order is not None:
            self.carry_out(order, is_lost=is_lost)

    def meets_news_of_sleep(self, vm: VmFacts) -> bool:
        """True if the write is for an older version of a VM that slept or sleeps: then the object is read first."""
        account = self.ledger.vms.get(vm.name)
        known = None if account is None else account.facts
        return known is None or (known.version != vm.version and bool({known.phase, vm.phase} & SLEEPING))

    def carry_out(self, order: PersistPermit, *, is_lost: bool = False) -> bool:
        """Write a permit to the VM with its UID. The scheduler may or may not see the result."""
        found = self.api.vms.get(order.vm)
        stored = None
        if found is not None and self.meets_news_of_sleep(found):
            self.take("vm", found)
            if not self.ledger.is_write_needed(order):
                ended = PermitWritten(order.vm, order.revision, WriteOutcome.REFUSED, None, "not wanted")
                self.did(self.ledger.apply(ended, self.now))
                return False
        if found is not None and found.uid == order.uid:
            stored = self.api.put_vm(replace(found, permit=order.permit))
        if stored is None or is_lost:
            self.did(self.ledger.apply(PermitWritten(order.vm, order.revision, WriteOutcome.UNKNOWN), self.now))
            return False
        self.did(self.ledger.apply(permit_stored(order.revision, stored), self.now))
        return True
