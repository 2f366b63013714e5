"""Records a cluster while a command runs, from its watches, scheduler and agents; and says what is wrong with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console

from deploy.kube.informer import Informer
from protocol.kubernetes.api import ApiError
from protocol.kubernetes.objects import Json, JsonObject
from protocol.kubernetes.resources import MIGRATIONS, NODES, PODS, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.pod_database import is_pod_database
from protocol.runtime.clock import Clock, SystemClock
from protocol.units import Seconds
from scheduler_plugin.dashboard.sources.http_sources import Hears
from scheduler_plugin.databases import database_name
from scheduler_plugin.history.core.looks import ClusterSample, keys_of_nodes
from scheduler_plugin.history.recorder import LOG, LookError, Recorder
from scripts.autoscale.demonstration.waiting import together
from scripts.autoscale.running import background
from scripts.autoscale.site import Site, SitePods, agent_says
from scripts.autoscale.terminal.printing import print_lines

# Without migrations: a cluster that lacks their definition can be recorded, too.
_NEEDED: Final = (VIRTUAL_MACHINES, PODS, NODES)
_PATIENCE: Final = 10.0
"""Seconds that the first lists may take."""


def unheard(_: ObjectName, __: Json | None) -> None:
    """Nothing but the history wants to know."""


class SiteSource:
    """See ``Source``; ``site_source`` makes one whose watches run."""

    def __init__(self, site: Site, clock: Clock, hears: Hears = unheard) -> None:
        self._site, self._clock, self._hears = site, clock, hears
        self._pods = SitePods.of(())
        self._informers = {kind: Informer(site.client, kind, clock) for kind in (*_NEEDED, MIGRATIONS)}

    async def run(self) -> None:
        """Watches until cancelled."""
        await together(*(informer.run() for informer in self._informers.values()))

    async def look(self) -> ClusterSample:
        """See ``Source``."""
        await self._synced()
        # Agents are found by pods; the index is made once for all of this look.
        self._pods = SitePods.of(self._informers[PODS].objects.values())
        return ClusterSample(
            at=round(self._clock.wall() * 1000),
            vms=[
                *self._informers[VIRTUAL_MACHINES].objects.values(),
                *filter(is_pod_database, self._informers[PODS].objects.values()),
            ],
            nodes=await self._site.of_scheduler("/nodes"),
            price_keys=keys_of_nodes(self._informers[NODES].objects.values()),
            migrations=list(self._informers[MIGRATIONS].objects.values()),
        )

    async def _synced(self) -> None:
        """Raises ``LookError``."""
        try:
            async with asyncio.timeout(_PATIENCE):
                for kind in _NEEDED:
                    await self._informers[kind].synced.wait()
        except TimeoutError:
            unread = [kind.plural for kind in _NEEDED if not self._informers[kind].synced.is_set()]
            raise LookError(f"not read yet: {', '.join(unread)}") from None

    async def account(self, vm: JsonObject) -> Json | None:
        """See ``Source``."""
        try:
            agent_explanation = await agent_says(self._site, dict(vm), self._pods)
        except ApiError:
            agent_explanation = None
        # A silent agent is reported as well: the page shows it as one.
        self._hears(database_name(vm), agent_explanation)
        return agent_explanation


@asynccontextmanager
async def site_source(site: Site, clock: Clock, hears: Hears = unheard) -> AsyncIterator[SiteSource]:
    """A source whose watches run within the context. ``hears`` gets every answer of an agent."""
    source = SiteSource(site, clock, hears)
    async with background(source.run()):
        yield source


@asynccontextmanager
async def recording(  # noqa: PLR0913, PLR0917 - each is a setting of its own
    site: Site,
    path: Path,
    console: Console,
    labels: Sequence[str] = (),
    interval: float = 10.0,
    hears: Hears = unheard,
) -> AsyncIterator[Recorder]:
    """Records ``site`` into ``path`` within the context, and tells ``hears`` every answer of an agent.

    A recorder that ends early logs that, and fails nothing.
    """
    clock = SystemClock()
    with warnings_on(console):
        async with site_source(site, clock, hears) as source:
            recorder = Recorder(path, source, clock, labels=labels, interval=Seconds(interval))
            async with background(recorder.run(), _say_ended):
                yield recorder


@contextmanager
def warnings_on(console: Console) -> Iterator[None]:
    """Within the context a person reads the warnings of a history, with what they are about."""
    spoken = _Spoken(console)
    LOG.addHandler(spoken)
    try:
        yield
    finally:
        LOG.removeHandler(spoken)


class _Spoken(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        # `extra` of a log call becomes attributes of the record.
        attributes = vars(record)
        message = ": ".join(
            filter(None, (record.getMessage(), attributes.get("note", ""), attributes.get("reason", "")))
        )
        print_lines(self._console, [message])


def _say_ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        LOG.error("nothing is recorded any more", extra={"reason": repr(error)})
