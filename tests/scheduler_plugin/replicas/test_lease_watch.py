"""A standby that watches the Lease: what it sees, and what it does without permission to watch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from protocol.kubernetes.api import ApiCall, ApiUnknownError
from protocol.kubernetes.objects import JsonObject
from protocol.runtime.kubernetes.lease import Leadership
from scheduler_plugin.replica import PAUSE, LeaseWatch
from tests.fake_clock import FakeClock
from tests.scheduler_plugin.fake_cluster import refused
from tests.scheduler_plugin.replicas.pair import TERMS

FREE = b'{"type":"MODIFIED","object":{"metadata":{"name":"autoscaling-scheduler"},"spec":{"holderIdentity":""}}}'


class Watched:
    """An API server whose watches are given by the test, one after the other, followed by silence."""

    def __init__(self, *watches: Exception | list[bytes]) -> None:
        self.watches = list(watches)
        self.asked: list[ApiCall] = []

    async def call(self, call: ApiCall) -> JsonObject:
        raise ApiUnknownError("it only watches")

    page = call

    @asynccontextmanager
    async def stream(self, call: ApiCall) -> AsyncIterator[AsyncIterator[bytes]]:
        self.asked.append(call)
        found = self.watches.pop(0) if self.watches else []
        if isinstance(found, Exception):
            raise found
        yield self._lines(found)

    async def _lines(self, lines: list[bytes]) -> AsyncIterator[bytes]:
        for each in lines:
            yield each
        if not self.watches:
            await asyncio.Event().wait()


async def looks(*watches: Exception | list[bytes]) -> tuple[int, list[ApiCall]]:
    """Number of reads of the Lease caused by the watch, within three watches."""
    clock, api = FakeClock(), Watched(*watches)
    leadership = Leadership(api, clock, TERMS, "replica-2")  # type: ignore[arg-type]  # pages are never read
    told = list[None]()
    leadership.poll = lambda: told.append(None)  # type: ignore[method-assign]
    task = asyncio.create_task(LeaseWatch(leadership, clock).run())
    await clock.advance(2 * PAUSE)
    task.cancel()
    return len(told), api.asked


async def test_only_free_lease_triggers_look() -> None:
    held = FREE.replace(b'""', b'"replica-1"')
    bookmark = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}'
    count, asked = await looks([held, bookmark, FREE, held])
    assert count == 1
    assert [each.path for each in asked] == ["/apis/coordination.k8s.io/v1/namespaces/autoscale-system/leases"]
    assert asked[0].query["fieldSelector"] == "metadata.name=autoscaling-scheduler"


async def test_denied_listen_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "autoscale.lease"):
        count, asked = await looks(refused(403, "may not watch"), refused(403, "may not watch"), [FREE])
    assert (count, len(asked), len(caplog.records)) == (1, 3, 1)


@pytest.mark.parametrize("line", [b"no JSON", b'{"type":"ERROR","object":{"code":410}}'])
async def test_bad_lease_event_restarts_watch(line: bytes) -> None:
    count, asked = await looks([line], [FREE])
    assert (count, len(asked)) == (1, 2)
