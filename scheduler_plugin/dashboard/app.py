"""The one place where an ``autoscale-dashboard`` is put together. Nothing is made at import."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence

from protocol.kubernetes.api import KubernetesApi
from protocol.runtime.clock import Clock
from scheduler_plugin.dashboard import texts
from scheduler_plugin.dashboard.accounts import Accounts
from scheduler_plugin.dashboard.cost_reports import CostReports
from scheduler_plugin.dashboard.doorman import SignIn
from scheduler_plugin.dashboard.fleet import Fleet
from scheduler_plugin.dashboard.readers import Readers
from scheduler_plugin.dashboard.reviews import AccessReviewer
from scheduler_plugin.dashboard.sources.http_sources import Overheard, Sources
from scheduler_plugin.dashboard.telemetry import DashboardTelemetry
from scheduler_plugin.dashboard.web import page_app
from scheduler_plugin.history.ports import History


class Dashboard:
    """The page's program: background tasks and application. What agents answer to ``sources`` reaches the page.

    Without a ``judge`` people sign in by one-time links. ``labels`` are those that the history keeps.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - each is a part of its own
        self,
        title: str,
        api: KubernetesApi,
        sources: Sources,
        clock: Clock,
        judge: AccessReviewer | None,
        history: History | None = None,
        labels: Sequence[str] = (),
    ) -> None:
        self.api = api
        self.telemetry = DashboardTelemetry()
        self.fleet = Fleet(sources, clock, self.telemetry)
        self.readers = Readers(self.fleet.journal, secrets.token_hex(32), clock, self.telemetry)
        # Each needs the other, so one of the two is set afterwards.
        self.fleet.on_news = self.readers.stir
        self.doorman = SignIn(self.fleet, clock, self.telemetry, judge)
        # Whoever asks agents goes through it, so that the page always learns of an agent's trouble.
        self.sources = Overheard(sources, self.fleet.hear)
        reports = CostReports(history, sources, clock, labels)
        # With a judge the API is asked with the program's rights, so events are left out.
        self.accounts = Accounts(api, self.sources, clock, reports, history, reads_events=judge is None)
        self.app = page_app(title, self.doorman, self.readers, self.accounts)

    async def run(self) -> None:
        """Follows the cluster and wakes readers until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.fleet.run(self.api))
            tasks.create_task(self.readers.run())
            tasks.create_task(self._say_ready())

    def readiness(self) -> tuple[bool, str]:
        """Return True if the cluster has been read, with a text for probes."""
        missing = self.fleet.missing
        return not missing, texts.NOT_LISTED.format(kinds=", ".join(missing)) if missing else "ok"

    async def _say_ready(self) -> None:
        await self.fleet.synced.wait()
        self.telemetry.ready.set(1)
