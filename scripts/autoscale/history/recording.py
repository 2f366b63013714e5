"""Records a cluster's history while a command runs, and prints the recorder's warnings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from rich.console import Console

from deploy.kube.informer import WatchLog
from protocol.kubernetes.api import KubernetesApi
from protocol.kubernetes.resources import MIGRATIONS
from protocol.runtime.clock import SystemClock
from protocol.units import Seconds
from scheduler_plugin.dashboard.sources.cluster_sampler import ClusterSampler
from scheduler_plugin.dashboard.sources.http_sources import Sources
from scheduler_plugin.history.recorder import LOG, Recorder
from scripts.autoscale.running import background
from scripts.autoscale.site import Site, SiteSources
from scripts.autoscale.terminal.printing import print_lines


@asynccontextmanager
async def site_sources(site: Site) -> AsyncIterator[SiteSources]:
    """Sources for the programs of a site; they follow the agents' pods within the context."""
    sources = SiteSources(site, SystemClock())
    async with background(sources.pods.run()):
        yield sources


@asynccontextmanager
async def recording(  # noqa: PLR0913, PLR0917 - the recorder's settings
    api: KubernetesApi,
    sources: Sources,
    path: Path,
    console: Console,
    labels: Sequence[str] = (),
    interval: float = 10.0,
) -> AsyncIterator[Recorder]:
    """Records a cluster into ``path`` within the context. A failure of the recorder is only logged."""
    clock = SystemClock()
    looks = ClusterSampler(api, sources, clock, _RecordedKinds())
    with warnings_on(console):
        async with background(looks.run()):
            recorder = Recorder(path, looks, clock, labels=labels, interval=Seconds(interval))
            async with background(recorder.run(), _log_failure):
                yield recorder


class _RecordedKinds(WatchLog):
    """Warns of objects that are not recorded, which would silently be missing from costs."""

    def watch_missing(self, kind: str) -> None:
        """See ``WatchReport``."""
        # Migrations are optional in a cluster.
        if kind != MIGRATIONS.plural:
            LOG.warning("not recorded", extra={"reason": f"the API server refuses to list {kind}"})


@contextmanager
def warnings_on(console: Console) -> Iterator[None]:
    """Prints the warnings of the history's log within the context."""
    printer = _Printer(console)
    LOG.addHandler(printer)
    try:
        yield
    finally:
        LOG.removeHandler(printer)


class _Printer(logging.Handler):
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


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        LOG.error("recording has failed", extra={"reason": repr(error)})
