"""Assembles ``autoscale-dashboard``. Nothing is created at import."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence

from protocol.kubernetes.api import KubernetesApi
from protocol.runtime.clock import Clock
from scheduler_plugin.dashboard import texts
from scheduler_plugin.dashboard.cost_reports import CostReports
from scheduler_plugin.dashboard.detail_queries import DetailQueries
from scheduler_plugin.dashboard.fleet import Fleet
from scheduler_plugin.dashboard.readers import Readers
from scheduler_plugin.dashboard.reviews import AccessReviewer
from scheduler_plugin.dashboard.sign_in import SignIn
from scheduler_plugin.dashboard.sources.http_sources import ObservedSources, Sources
from scheduler_plugin.dashboard.telemetry import DashboardTelemetry
from scheduler_plugin.dashboard.web import page_app
from scheduler_plugin.history.ports import History


class Dashboard:
    """Background tasks and application of the page. Responses of agents to ``sources`` also update the page.

    Without a ``reviewer`` users sign in with one-time links. ``labels`` are the keys of labels in the history.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - each is a part of its own
        self,
        title: str,
        api: KubernetesApi,
        sources: Sources,
        clock: Clock,
        reviewer: AccessReviewer | None,
        history: History | None = None,
        labels: Sequence[str] = (),
    ) -> None:
        self.api = api
        self.telemetry = DashboardTelemetry()
        self.fleet = Fleet(sources, clock, self.telemetry)
        self.readers = Readers(self.fleet.journal, secrets.token_hex(32), clock, self.telemetry)
        # Set afterwards, because each needs the other.
        self.fleet.on_change = self.readers.notify
        self.authenticator = SignIn(self.fleet, clock, self.telemetry, reviewer)
        # For all queries of agents, so that the page shows their problems.
        self.sources = ObservedSources(sources, self.fleet.record_explanation)
        reports = CostReports(history, sources, clock, labels)
        # With a reviewer, API calls have the program's permissions, so leave out events.
        self.details = DetailQueries(api, self.sources, clock, reports, history, reads_events=reviewer is None)
        self.app = page_app(title, self.authenticator, self.readers, self.details)

    async def run(self) -> None:
        """Watch the cluster and wake open pages until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.fleet.run(self.api))
            tasks.create_task(self.readers.run())
            tasks.create_task(self._log_ready())

    def readiness(self) -> tuple[bool, str]:
        """Return whether the cluster has been read, and a text for probes."""
        missing = self.fleet.missing
        return not missing, texts.NOT_LISTED.format(kinds=", ".join(missing)) if missing else "ok"

    async def _log_ready(self) -> None:
        await self.fleet.synced.wait()
        self.telemetry.ready.set(1)
