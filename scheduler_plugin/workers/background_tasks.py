"""Wakes waiting pods, and reads pods after binds with an unknown outcome."""

from __future__ import annotations

import asyncio
from typing import Final, Never

from protocol.backoff import Backoff, Retries
from protocol.kubernetes.api import ApiError, ApiRefusedError
from protocol.kubernetes.refusals import RefusalKind, capped_retry_after
from protocol.kubernetes.resources import PODS
from protocol.kubernetes.timestamps import micro_timestamp
from protocol.messages import ObjectName
from protocol.units import Seconds
from scheduler_plugin.cluster.write import RecentWrites
from scheduler_plugin.context import SchedulerContext
from scheduler_plugin.ledger.events import PodRead, TimePassed
from scheduler_plugin.ledger.facts import PodFacts
from scheduler_plugin.ledger.outcomes import ReadPod, RoomFreed
from scheduler_plugin.order_queues import OrderQueue, for_each
from scheduler_plugin.telemetry import LOG
from scheduler_plugin.texts import logs

BIND_SETTLE: Final = Seconds(10.0)
"""A binding sent this long ago has landed or never will."""

TIME_STEP: Final = Seconds(5.0)
"""Interval of ``TimePassed`` events."""

TOUCH_BACKOFF: Final = Backoff(Seconds(0.5), Seconds(30.0))
"""Added to the configured interval after a failed touch of a node."""

HEALTHY: Final = Seconds(60.0)
"""After this long without a refused touch, the backoff of refused ones starts over."""

ABOUT_US: Final = frozenset({RefusalKind.UNAUTHORIZED, RefusalKind.TOO_MANY_REQUESTS, RefusalKind.UNAVAILABLE})
"""Refusals that the touch of any other node would get too."""

READ_INTERVAL: Final = Seconds(1.0)
"""Interval of reads of pods with a bind in doubt."""


class BackgroundTasks:
    """Wakes waiting pods and settles binds in doubt."""

    def __init__(self, context: SchedulerContext) -> None:
        self._context = context
        self._in_flight: RecentWrites[str] = RecentWrites(BIND_SETTLE)
        self._refused: OrderQueue[str, RoomFreed] = OrderQueue()

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._wake())
            tasks.create_task(self._repeat_refused())
            tasks.create_task(self._read())
            tasks.create_task(self._report_time())

    def bind_sent(self, uid: str) -> None:
        """Record that a binding of this pod has an unknown outcome."""
        self._in_flight.sent(uid, self._context.clock.now())

    async def settle(self, uid: str, pod: ObjectName) -> PodFacts | None:
        """Read a pod and report it to the ledger, unless a bind may still land. Raises ``ApiError``."""
        pod_now = await self._fresh(uid, pod)
        # Until ``BIND_SETTLE`` after a bind was sent, "not bound" may change. "Bound" and "gone" are final.
        if pod_now is not None and pod_now.node is None and self._in_flight.may_land(uid, self._context.clock.now()):
            return pod_now
        self._in_flight.settled(uid)
        self._context.report(PodRead(uid, pod_now))
        return pod_now

    async def _fresh(self, uid: str, pod: ObjectName) -> PodFacts | None:
        try:
            pod_now = await self._context.feed.pods.read(pod, self._context.writer.read(PODS, pod))
        except ApiRefusedError as error:
            if error.kind is not RefusalKind.NOT_FOUND:
                raise
            if self._context.feed.pod(pod, uid) is not None:  # the feed may already have another pod of that name
                self._context.feed.pods.forget(pod)
            return None
        return pod_now if pod_now is not None and pod_now.uid == uid else None

    async def _wake(self) -> Never:
        retries = Retries(TOUCH_BACKOFF)
        while True:
            # At most one touch per node and interval.
            errors = await for_each(await self._context.queues.wakes.take_all(), self._touch)
            wait = self._context.feed.settings.wake_interval
            failed = [capped_retry_after(error.retry_after) for error in errors if error is not None]
            if failed:
                wait = Seconds(wait + max(failed) + retries.failed(self._context.clock.jitter()))
            else:
                retries.succeeded()
            await self._context.clock.sleep(wait)

    async def _repeat_refused(self) -> Never:
        """Repeat refused touches, with a backoff of their own: a node that nobody may change delays no other."""
        clock, retries = self._context.clock, Retries(TOUCH_BACKOFF, HEALTHY)
        while True:
            began = clock.now()
            refused = await self._refused.take_all()
            await clock.sleep(retries.failed(clock.jitter(), ran=Seconds(clock.now() - began)))
            for order in refused:
                self._context.queues.wakes.put(order.node, order)

    async def _touch(self, order: RoomFreed) -> ApiError | None:
        """Touch the node; return the error if other nodes should wait too. Either way the touch is retried."""
        try:
            await self._context.writer.touch_node(order.node, micro_timestamp(self._context.clock.wall()))
        except ApiError as error:
            is_refused = isinstance(error, ApiRefusedError)
            self._context.telemetry.wakes.labels("refused" if is_refused else "unknown").inc()
            if isinstance(error, ApiRefusedError) and error.kind is RefusalKind.NOT_FOUND:
                return None
            LOG.warning(logs.NODE_NOT_TOUCHED, extra={"node": order.node, "reason": str(error)})
            # Retry while the node exists: a pod that is not woken might wait forever.
            if isinstance(error, ApiRefusedError) and error.kind not in ABOUT_US:
                self._refused.put(order.node, order)
                return None
            self._context.queues.wakes.put(order.node, order)
            return error
        self._context.telemetry.wakes.labels("done").inc()
        return None

    async def _report_time(self) -> Never:
        """Report the time to the ledger."""
        while True:
            await self._context.clock.sleep(TIME_STEP)
            if self._context.ledger.is_ready:
                self._context.report(TimePassed())

    async def _read(self) -> Never:
        while True:
            await for_each(await self._context.queues.reads.take_all(), self._settle_bind)
            await self._context.clock.sleep(READ_INTERVAL)

    async def _settle_bind(self, order: ReadPod) -> None:
        try:
            await self.settle(order.uid, order.pod)
        except ApiError as error:
            LOG.warning(logs.POD_NOT_READ, extra={"pod": str(order.pod), "reason": str(error)})
            self._context.queues.reads.put(order.uid, order)
        else:
            # The bind may still land: read again.
            if self._in_flight.may_land(order.uid, self._context.clock.now()):
                self._context.queues.reads.put(order.uid, order)
