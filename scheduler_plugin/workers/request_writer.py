"""Writes the requests of VM pods: raised before a permit or a bind, lowered later (B.10)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, Never
from weakref import WeakValueDictionary

from protocol.kubernetes.api import ApiCall, ApiError, ApiRefusedError, KubernetesApi
from protocol.kubernetes.objects import items, text
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import PODS
from protocol.messages import AgentRequest
from protocol.units import Instant, Seconds
from scheduler_plugin.context import SchedulerContext
from scheduler_plugin.ledger.events import (
    RaiseRequested,
    RequestsFollow,
    ResizeDue,
    ResizeOutcomeUnknown,
    ResizeRefused,
)
from scheduler_plugin.ledger.facts import PodFacts
from scheduler_plugin.ledger.outcomes import LedgerError, ResizePod
from scheduler_plugin.order_queues import AT_ONCE, for_each
from scheduler_plugin.telemetry import LOG
from scheduler_plugin.texts import explanations, logs
from scheduler_plugin.workers.pacing import Pacer

KUBELET_TIMEOUT: Final = Seconds(2.0)
"""The kubelet usually responds within 1 s; agents wait for 5 s."""

MAX_BIND_DELAY: Final = Seconds(3.0)
"""Maximum delay of a bind by requests: kube-scheduler waits 10 s for it."""

ROUND_INTERVAL: Final = Seconds(2.0)
"""Interval of rounds over all pods with wrong requests."""

DISCOVERY_INTERVAL: Final = Seconds(300.0)
"""Retry interval for an API server without ``pods/resize``: it may have been upgraded."""

DISCOVERY_TIMEOUT: Final = Seconds(3.0)

YIELD_EVERY: Final = 256
"""Number of pods checked before other tasks run."""

TRIES: Final = 4
"""Consecutive writes for one pod: it may have changed, and after a refusal CPU and memory are tried separately."""

NOT_ABOUT_SIZE: Final = frozenset({RefusalKind.UNAUTHORIZED, RefusalKind.NOT_FOUND, RefusalKind.TOO_MANY_REQUESTS})
"""Refusals that smaller requests would get as well."""

VERDICTS: Final = frozenset({"Deferred", "Infeasible"})
"""The kubelet's reasons for refused requests."""


class RequestWriter:
    """The only writer of requests of VM pods."""

    def __init__(self, context: SchedulerContext) -> None:
        self._context = context
        # Weak: removed once no task writes or waits.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._pacer: Pacer[str] = Pacer(context.clock)
        self._has_resize: bool | None = None
        self._discovered_at = Instant(0.0)

    async def raise_for_agent(self, uid: str, request: AgentRequest) -> None:
        """Raise the pod's requests for the agent's request, as far as node, API server and kubelet allow."""
        ledger = self._context.ledger
        if not ledger.needs_raise(uid, request):
            return
        began = self._context.clock.now()
        # Without its turn, the agent gets what the requests cover, and asks again.
        if not await self._pacer.turn(uid):
            return
        async with self._lock(uid):
            await self._carry_out(RaiseRequested(uid, request))
        # After ``KUBELET_TIMEOUT`` the agent gets what the requests cover, and asks again.
        await self._wait_for_kubelet(uid, Instant(began + KUBELET_TIMEOUT))
        self._context.telemetry.requests.waited.observe(self._context.clock.now() - began)

    async def raise_before_bind(self, uid: str) -> None:
        """Before a bind, raise the pod's requests to its VM's reservation, for at most ``MAX_BIND_DELAY``."""
        if not self._context.ledger.lacks_requests(uid):
            return
        ended, until = asyncio.Event(), Instant(self._context.clock.now() + MAX_BIND_DELAY)
        async with asyncio.TaskGroup() as tasks:
            # The bind goes on if requests cannot be raised: the VM starts, but does not grow before they are.
            raising = tasks.create_task(self._raise_reserved(uid, ended))
            await self._context.clock.wait(ended, until)
            # The regular round takes over.
            raising.cancel()

    async def _raise_reserved(self, uid: str, ended: asyncio.Event) -> None:
        try:
            async with self._lock(uid):
                await self._carry_out(ResizeDue(uid))
        finally:
            ended.set()

    def request_vm_size(self, pod: PodFacts) -> None:
        """Set the requests of a waiting pod to its VM's size, for preemption and cluster autoscalers."""
        if self._context.ledger.follows_requests and pod.runner is not None:
            self._context.queues.waiting_requests.put(pod.uid, pod)

    async def run(self) -> None:
        """Follow all reservations until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow())
                tasks.create_task(self._follow_waiting())
        finally:
            for event in self._context.queues.requests_seen.values():
                event.set()  # wake waiters, so that they notice the end of the term

    async def _follow(self) -> Never:
        while True:
            await self._check_support()
            await self._round()
            await self._context.clock.sleep(ROUND_INTERVAL)

    async def _check_support(self) -> None:
        """Update whether requests follow reservations, by the settings and the API server."""
        context, now = self._context, self._context.clock.now()
        is_wanted = context.feed.settings.pod_requests
        # ``None``: unknown. An upgrade may add ``pods/resize`` at any time.
        if is_wanted and (
            self._has_resize is None or (not self._has_resize and now - self._discovered_at >= DISCOVERY_INTERVAL)
        ):
            self._discovered_at = now
            with suppress(ApiError):
                is_offered = await offers_pod_resize(context.writer.api)
                # Log once.
                if not is_offered and self._has_resize is not False:
                    LOG.warning(logs.NO_RESIZE)
                self._has_resize = is_offered
        limits_cpu = context.feed.settings.limits_cpu
        # Permits wait for requests unless ``pods/resize`` is known to be missing.
        context.report(RequestsFollow(is_wanted, can=self._has_resize is not False, limits_cpu=limits_cpu))
        context.telemetry.requests.followed.set(context.ledger.follows_requests)

    async def _round(self) -> None:
        uids = self._context.ledger.pods_to_resize()
        wrong = enumerate(uids, start=1)
        # A shared iterator keeps all workers busy.
        short = await for_each(range(min(AT_ONCE, len(uids))), lambda _: self._correct(wrong))
        self._context.telemetry.requests.short.set(sum(short))

    async def _correct(self, wrong: Iterator[tuple[int, str]]) -> int:
        """Write the requests of the pods ``wrong``, one after the other; return how many stay short."""
        ledger, short = self._context.ledger, 0
        for count, uid in wrong:
            async with self._lock(uid):
                has_written = await self._carry_out(ResizeDue(uid))
            # All workers together keep the configured rate.
            if has_written:
                await self._context.clock.sleep(Seconds(AT_ONCE / self._context.feed.settings.lazy_writes_per_second))
            short += ledger.lacks_requests(uid)
            if count % YIELD_EVERY == 0:
                await asyncio.sleep(0)
        return short

    async def _follow_waiting(self) -> Never:
        queue = self._context.queues.waiting_requests
        while True:
            to_retry = await for_each(await queue.take_all(), self._request_waiting)
            for pod in filter(None, to_retry):
                queue.put(pod.uid, pod)
            await self._context.clock.sleep(ROUND_INTERVAL if any(to_retry) else Seconds(0.0))

    async def _request_waiting(self, waiting: PodFacts) -> PodFacts | None:
        """Write the requests of a waiting pod; return the pod if that must be retried."""
        # The watch may have a newer version.
        pod, outcome = self._context.feed.pod(waiting.name, waiting.uid) or waiting, ""
        with suppress(LedgerError):
            # The second order lowers nothing, in case the API server refuses the first.
            for order in self._context.ledger.requests_of_waiting(pod):
                outcome = await self._write(order)
                if outcome != "refused":
                    break
        return pod if outcome in {"conflict", "unknown"} else None

    async def _carry_out(self, event: RaiseRequested | ResizeDue) -> bool:
        """Write what ``event`` needs, with retries after refusals; return True if anything was sent."""
        for attempt in range(TRIES):
            order, effects = self._context.ledger.apply(event, self._context.clock.now())
            self._context.queues.add(effects)
            if order is None:
                return bool(attempt)
            # After an unknown outcome the pod's version may be out of date.
            if await self._write(order) in {"written", "unknown"}:
                break
        return True

    async def _write(self, order: ResizePod) -> str:
        outcome = "unknown"
        try:
            pod = self._context.feed.pods.learn(await self._context.writer.resize_pod(order))
            outcome = "written"
            self._note_changed(order, pod)
        except ApiRefusedError as error:
            outcome = "conflict" if error.kind is RefusalKind.CONFLICT else "refused"
            await self._refused(order, error)
        except ApiError as error:
            self._log_failure(order, error)
            self._context.report(ResizeOutcomeUnknown(order, str(error)))
        self._context.telemetry.requests.writes.labels(outcome).inc()
        if order.reverts and outcome == "written":
            self._report_reverted(order)
        return outcome

    def _note_changed(self, order: ResizePod, pod: PodFacts | None) -> None:
        """Record which part of the write a webhook dropped; it counts as refused."""
        runner = None if pod is None else pod.runner
        if runner is not None and runner.requested != order.size:
            self._context.report(ResizeRefused(order, explanations.CHANGED_BY_API.format(requests=runner.requested)))

    def _report_reverted(self, order: ResizePod) -> None:
        verdict = order.reverts if order.reverts in VERDICTS else "other"
        self._context.telemetry.requests.withdrawn.labels(verdict).inc()
        details = {"pod": str(order.pod), "requests": str(order.size), "verdict": order.reverts}
        LOG.info(logs.RESIZE_REVERTED, extra=details)

    async def _refused(self, order: ResizePod, error: ApiRefusedError) -> None:
        is_conflict = error.kind is RefusalKind.CONFLICT
        is_final, is_of_size = error.refusal.is_by_validation, error.kind not in NOT_ABOUT_SIZE
        if not is_conflict:
            self._log_failure(order, error)
        self._context.report(ResizeRefused(order, "" if is_conflict else str(error), is_final, is_of_size))
        # The pod may be gone, or the API server was downgraded: check again.
        if error.kind is RefusalKind.NOT_FOUND and self._has_resize:
            self._has_resize = None
        if is_conflict:
            with suppress(ApiError):
                # The next attempt uses this version.
                await self._context.feed.pods.read(order.pod, self._context.writer.read(PODS, order.pod))

    def _log_failure(self, order: ResizePod, error: ApiError) -> None:
        details = {"pod": str(order.pod), "requests": str(order.size), "reason": str(error)}
        LOG.warning(logs.REQUESTS_NOT_WRITTEN, extra=details)

    async def _wait_for_kubelet(self, uid: str, until: Instant) -> None:
        clock, events = self._context.clock, self._context.queues.requests_seen
        # After the term the kubelet's response must not lead to a permit.
        while self._context.ledger.awaits_kubelet(uid) and clock.now() < until and self._context.term.may_write:
            event = events.setdefault(uid, asyncio.Event())
            try:
                await clock.wait(event, until)
            finally:
                # Several may wait for one pod: the first to end removes the event, and another may have added a new
                # one.
                if events.get(uid) is event:
                    del events[uid]

    def _lock(self, uid: str) -> asyncio.Lock:
        return self._turns.setdefault(uid, asyncio.Lock())


async def offers_pod_resize(api: KubernetesApi) -> bool:
    """Return True if running pods can be resized (``pods/resize``, KEP-1287). Raises ``ApiError``."""
    resources = await api.call(ApiCall("GET", "/api/v1", DISCOVERY_TIMEOUT))
    # By the resource, not the version: a feature gate controls it.
    return any(text(resource, "name") == "pods/resize" for resource in items(resources, "resources"))
