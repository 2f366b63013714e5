"""The fleet as it is now: informers and the scheduler's reports, kept as rows in a journal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

import msgspec

from protocol.kubernetes.access_reviews import Scope
from protocol.kubernetes.api import KubernetesApi
from protocol.kubernetes.objects import Json, JsonObject, shortened
from protocol.kubernetes.resources import HVPAS, MIGRATIONS, PODS, TORTOISES, VIRTUAL_MACHINES, VM_GROUPS, Resource
from protocol.messages import ObjectName
from protocol.pod_database import is_pod_database
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.watches.informer import FactInformer
from protocol.runtime.kubernetes.watches.kinds import FactChange, Kind
from protocol.units import Seconds
from scheduler_plugin.dashboard import texts
from scheduler_plugin.dashboard.core.frames import GROUP, MOVE, NODE, STANDING, VM
from scheduler_plugin.dashboard.core.journal import Journal
from scheduler_plugin.dashboard.core.rows import (
    PENDING,
    Row,
    StandingRow,
    VmRow,
    group_row,
    move_row,
    node_rows,
    standing_row,
    vm_row,
    vm_stated,
)
from scheduler_plugin.dashboard.core.said import SchedulerReport, differing, said_of, troubles_in, words
from scheduler_plugin.dashboard.core.states import Lasting
from scheduler_plugin.dashboard.sources.http_sources import Sources
from scheduler_plugin.dashboard.telemetry import DashboardTelemetry
from scheduler_plugin.databases import OPTED_IN

LOOK: Final = Seconds(1.0)
"""The shortest pause between two looks at the scheduler; a slow look makes it longer."""

GROUP_KINDS: Final = (VM_GROUPS, HVPAS, TORTOISES)
WATCHED: Final = (VIRTUAL_MACHINES, PODS, MIGRATIONS)
"""The page shows these as current, so it says when updates stop."""
_FEW: Final = 4
"""A pause is this many times as long as the look before it, from ``LOOK`` to ``LONGEST_PAUSE``."""
LONGEST_PAUSE: Final = Seconds(5.0)


class Fleet:
    """Rows by kind. ``on_news`` is called after each change and must not wait for anything."""

    def __init__(self, sources: Sources, clock: Clock, telemetry: DashboardTelemetry) -> None:
        self.journal = Journal()
        self.on_news: Callable[[], None] = lambda: None
        self.synced = asyncio.Event()
        self._sources, self._clock = sources, clock
        self._words: dict[str, SchedulerReport] = {}
        self._waiting, self._silent_agents = Lasting(), Lasting()
        self._troubles: dict[str, str] = {}
        self._said: StandingRow | None = None
        self._silent = 0
        # Without databases there is no page. Kinds that are missing or forbidden count as listed.
        self._unlisted = {VIRTUAL_MACHINES.plural, PODS.plural}
        self._informers: dict[Resource, FactInformer[Row | None]] = {
            VIRTUAL_MACHINES: self._informer(VIRTUAL_MACHINES, VM, vm_row, telemetry),
            PODS: self._informer(PODS, VM, _pod_row, telemetry),
            MIGRATIONS: self._informer(MIGRATIONS, MOVE, move_row, telemetry),
        }
        for kind in GROUP_KINDS:
            self._informers[kind] = self._informer(kind, GROUP, partial(group_row, kind.kind), telemetry)

    def _informer(
        self, kind: Resource, rows: str, read: Callable[[JsonObject], Row | None], telemetry: DashboardTelemetry
    ) -> FactInformer[Row | None]:
        is_extra, labels = kind is not VIRTUAL_MACHINES, OPTED_IN if kind is PODS else ""
        watched = Kind(kind.plural, kind.path(), read, is_optional=is_extra, may_be_forbidden=is_extra, labels=labels)
        return FactInformer(watched, partial(self._changed, rows), telemetry)

    @property
    def missing(self) -> list[str]:
        """The kinds that have not been listed yet."""
        return sorted(self._unlisted)

    @property
    def scopes(self) -> set[Scope]:
        """The scopes that hold anything."""
        return {
            Scope(name.namespace, kind is PODS) for kind, informer in self._informers.items() for name in informer.facts
        }

    async def run(self, api: KubernetesApi) -> None:
        """Follows the cluster until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for kind, informer in self._informers.items():
                tasks.create_task(informer.run(api, self._clock, partial(self._listed, kind.plural)))
            tasks.create_task(self._look_for_ever())

    def hear(self, vm: ObjectName, account: Json | None) -> None:
        """Takes in the answer of a VM's agent. None, if it did not answer, clears its earlier answer."""
        key, troubles = str(vm), troubles_in(account or {})
        trouble = shortened(texts.TROUBLE.format(parts="; ".join(troubles))) if troubles else ""
        # An agent's answer may arrive after its VM is gone, and would then stay for ever.
        if trouble == self._troubles.get(key, "") or self.journal.get(VM, key) is None:
            return
        if trouble:
            self._troubles[key] = trouble
        else:
            del self._troubles[key]
        if self._renew([key]):
            self.on_news()

    async def look(self) -> None:
        """One look at the scheduler."""
        # Sizes and permits come by watches within milliseconds; reservations and denials come only from here.
        answer = await self._sources.of_scheduler("/nodes")
        # If the scheduler does not answer, the numbers stay, and the page says that they are old.
        self._said = standing_row(answer)
        self._notice_silence()
        news = self._stand()
        if answer is not None:
            # Decoding the pods of a large fleet would hold up the events.
            nodes, reports = await asyncio.to_thread(lambda: (node_rows(answer), words(answer)))
            news = self.journal.replace(NODE, nodes) or news
            # Only these rows can have changed, and renewing all of them is slow.
            changed, self._words = differing(self._words, reports), reports
            news = self._renew([*changed, *self._mute(reports)]) or news
        # Time alone makes this news: no event says that a VM has waited for a minute.
        news = self._renew(self._waiting.long(self._clock.now())) or news
        if news:
            self.on_news()

    def _mute(self, said: Mapping[str, SchedulerReport]) -> list[str]:
        """The VMs whose agents have been silent for long: a new leader has not heard from any agent at first."""
        now = self._clock.now()
        # For a VM that the scheduler mentions again after a gap, silence counts from zero.
        for key in self._silent_agents.keys - said.keys():
            self._silent_agents.see(key, now, is_so=False)
        for key, report in said.items():
            self._silent_agents.see(key, now, is_so=report.silent)
        return self._silent_agents.long(now)

    def _renew(self, keys: Iterable[str]) -> bool:
        rows = [row for key in keys if isinstance(row := self.journal.get(VM, key), VmRow)]
        # A list, as ``any`` over a generator would stop at the first change.
        news = [self.journal.put(VM, self._laid_over(row)) for row in rows]
        return any(news)

    def _laid_over(self, row: VmRow) -> VmRow:
        now, stated = self._clock.now(), said_of(row, self._words.get(row.key))
        trouble = texts.NO_CONTACT if self._silent_agents.is_long(row.key, now) else self._troubles.get(row.key, "")
        return vm_stated(msgspec.structs.replace(stated, waiting=self._waiting.is_long(row.key, now), trouble=trouble))

    async def _look_for_ever(self) -> None:
        while True:
            begun = self._clock.now()
            await self.look()
            # One look serves all readers: nothing is asked more often because more people look.
            pause = Seconds((self._clock.now() - begun) * _FEW)
            await self._clock.sleep(min(LONGEST_PAUSE, max(LOOK, pause)))

    def _notice_silence(self) -> None:
        if all(self._informers[kind].is_answered for kind in WATCHED):
            self._silent = 0
        # Wall-clock time, as people read it; only the first look that notices the silence sets it.
        elif not self._silent:
            self._silent = round(self._clock.wall())

    def _stand(self) -> bool:
        # The row says nothing about the scheduler before it has been asked.
        if self._said is None:
            return False
        row = msgspec.structs.replace(self._said, listed=not self._unlisted, silent=self._silent)
        return self.journal.put(STANDING, row)

    def _listed(self, plural: str) -> None:
        self._unlisted.discard(plural)
        if not self._unlisted:
            self.synced.set()
        if self._stand():
            self.on_news()

    def _changed(self, rows: str, change: FactChange[Row | None]) -> None:
        # A deleted object has its key in its last fact.
        row = change.after if change.after is not None else change.before
        if row is None:
            return
        if change.after is None:
            # A migration may have the name of a VM, whose state stays.
            if isinstance(row, VmRow):
                self._waiting.see(row.key, self._clock.now(), is_so=False)
                self._troubles.pop(row.key, None)
            news = self.journal.remove(rows, row.key)
        elif isinstance(row, VmRow):
            self._waiting.see(row.key, self._clock.now(), is_so=row.phase == PENDING)
            news = self.journal.put(rows, self._laid_over(row))
        else:
            news = self.journal.put(rows, row)
        if news:
            self.on_news()


def _pod_row(pod: JsonObject) -> Row | None:
    return vm_row(pod) if is_pod_database(pod) else None
