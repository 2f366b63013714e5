"""The one place where an ``autoscale-dashboard`` is put together. Nothing is made at import."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.types import ASGIApp

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


@dataclass(slots=True)
class Dashboard:
    """The page's program: background tasks and application. What agents answer to ``sources`` reaches the page."""

    api: KubernetesApi
    sources: Sources
    fleet: Fleet
    readers: Readers
    doorman: SignIn
    accounts: Accounts
    telemetry: DashboardTelemetry
    app: ASGIApp

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


def assemble(  # noqa: PLR0913, PLR0917 - each is a part of its own
    title: str,
    api: KubernetesApi,
    sources: Sources,
    clock: Clock,
    judge: AccessReviewer | None,
    history: History | None = None,
    labels: Sequence[str] = (),
) -> Dashboard:
    """Puts one together; nothing runs yet. Without a ``judge`` people sign in by one-time links. ``labels`` are those
    that the history keeps.
    """
    telemetry = DashboardTelemetry()
    fleet = Fleet(sources, clock, telemetry)
    readers = Readers(fleet.journal, secrets.token_hex(32), clock, telemetry)
    # Each needs the other, so one of the two is set afterwards.
    fleet.on_news = readers.stir
    doorman = SignIn(fleet, clock, telemetry, judge)
    # Whoever asks agents goes through it, so that the page always learns of an agent's trouble.
    overheard = Overheard(sources, fleet.hear)
    reports = CostReports(history, sources, clock, labels)
    # With a judge the API is asked with the program's rights, so events are left out.
    accounts = Accounts(api, overheard, clock, reports, history, reads_events=judge is None)
    app = page_app(title, doorman, readers, accounts)
    return Dashboard(api, overheard, fleet, readers, doorman, accounts, telemetry, app)
