"""Records a cluster while a command runs, and tells a person what is wrong with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from rich.console import Console

from protocol.runtime.clock import SystemClock
from protocol.units import Seconds
from scheduler_plugin.dashboard.sources.http_sources import Hears
from scheduler_plugin.history.recorder import LOG, Recorder
from scripts.autoscale.history.site_source import site_source, unheard
from scripts.autoscale.site import Site
from scripts.autoscale.terminal.printing import print_lines


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
            task = asyncio.create_task(recorder.run())
            # Nobody awaits the task while it runs, so its error would go unseen until the end.
            task.add_done_callback(_say_ended)
            try:
                yield recorder
            finally:
                task.cancel()
                # An error of the recorder must not hide the one that ends the context.
                await asyncio.gather(task, return_exceptions=True)


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
