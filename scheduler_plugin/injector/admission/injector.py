"""Handles AdmissionReviews: annotates postgres pods, and injects the agent into VM pods.

Only VM pods that mention the agent's volumes are refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from protocol.kubernetes.api import ApiCall, ApiError, ApiRefusedError, KubernetesApi
from protocol.kubernetes.objects import Json, controller_of, text
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import SERVICE_ACCOUNTS
from protocol.messages import ObjectName
from protocol.pod_database import is_pod_database
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds
from protocol.virtual_machine import InvalidObjectError
from scheduler_plugin.injector import texts
from scheduler_plugin.injector.admission.first_size import annotate
from scheduler_plugin.injector.admission.injection import AgentTemplate, RefusedPod, Unchanged, judge
from scheduler_plugin.injector.admission.reviews import MOST_VALUES, PodReview, answer, read_review, refusal
from scheduler_plugin.injector.predecessors import Predecessors

LOG: Final = logging.getLogger("autoscale.injector")

ACCOUNT_TIMEOUT: Final = Seconds(1.5)
"""Well below the 5 s that the API server waits for the response."""

ACCOUNT_KEPT: Final = Seconds(60.0)
MAX_KEPT: Final = 4096
LOOKUPS: Final = 8
"""Maximum concurrent lookups of service accounts, a quarter of our connections to the API server."""

FLOOR_FOR: Final = Seconds(600.0)
"""How long a pod keeps its predecessor's size, because with an empty cache its use does not show its need."""


@dataclass(slots=True)
class Injector:
    """Reviews new pods. ``template`` and ``problem`` may be replaced at any time.

    While there is a ``problem``, no agent is injected. ``report`` is called with each outcome.
    """

    api: KubernetesApi
    clock: Clock
    predecessors: Predecessors
    template: AgentTemplate
    report: Callable[[str], None]
    problem: str = texts.VERSION_UNKNOWN
    _lookups: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LOOKUPS))
    _found: dict[tuple[str, str], Instant] = field(default_factory=dict)
    """Namespaces and names of service accounts, and when each was found."""

    async def answer(self, body: bytes) -> bytes:
        """Handle an AdmissionReview. Raises ``MalformedReviewError``."""
        review = read_review(body)
        try:
            return await self._review(review)
        # A bug must not keep a database from starting, so allow the pod unchanged, with a warning.
        except Exception:
            LOG.exception(texts.POD_UNCHANGED, extra={"namespace": review.namespace})
            self.report("failed")
            return answer(review.uid, warning=texts.FAILED)

    async def _review(self, review: PodReview) -> bytes:
        if review.is_too_large:
            self.report("too_large")
            LOG.warning(texts.POD_TOO_LARGE, extra={"namespace": review.namespace})
            return answer(review.uid, warning=texts.TOO_LARGE.format(most=MOST_VALUES))
        if review.pod is None:
            return self._allow_unchanged(review, "not_a_new_pod")
        if is_pod_database(review.pod):
            return self._annotate(review, review.pod)
        return await self._inject(review, review.pod)

    async def _inject(self, review: PodReview, pod: Json) -> bytes:
        verdict = judge(pod, self.template)
        if isinstance(verdict, RefusedPod):
            self.report("refused")
            LOG.warning(texts.POD_REFUSED, extra={"namespace": review.namespace, "reason": verdict.why})
            return refusal(review.uid, texts.REFUSED.format(why=verdict.why))
        if isinstance(verdict, Unchanged):
            return self._allow_unchanged(review, verdict.outcome, verdict.why)
        # Checked last, so that only pods that would get an agent cause a warning.
        if self.problem:
            return self._allow_unchanged(review, "not_possible", self.problem)
        # The API server would refuse a pod with a missing service account.
        if why := await self._missing_account(review.namespace, self.template.agent.service_account):
            return self._allow_unchanged(review, "no_account", why)
        self.report("injected")
        return answer(review.uid, verdict)

    def _annotate(self, review: PodReview, pod: Json) -> bytes:
        name = ObjectName(review.namespace, text(pod, "metadata", "name"))
        before = self.predecessors.size_before(name, text(controller_of(pod), "uid"))
        try:
            operations = annotate(pod, before, self.clock.wall() + FLOOR_FOR)
        except InvalidObjectError as error:
            self.report("unreadable")
            LOG.warning(texts.POD_UNREADABLE, extra={"namespace": review.namespace, "reason": str(error)})
            return answer(review.uid, warning=texts.NOT_RESIZED.format(why=error))
        self.report("replaces" if len(operations) > 1 else "first_requests")
        return answer(review.uid, operations)

    async def _missing_account(self, namespace: str, account: str) -> str:
        # Anyone may send reviews: reviews of invented namespaces must neither delay others nor take all connections.
        found_at = self._found.get((namespace, account))
        if found_at is not None and self.clock.now() - found_at < ACCOUNT_KEPT:
            return ""
        call = ApiCall("GET", SERVICE_ACCOUNTS.path(namespace, account), ACCOUNT_TIMEOUT)
        try:
            async with asyncio.timeout(ACCOUNT_TIMEOUT), self._lookups:
                await self.api.call(call)
        except (ApiError, TimeoutError) as error:
            if isinstance(error, ApiRefusedError) and error.kind is RefusalKind.NOT_FOUND:
                return texts.NO_ACCOUNT.format(namespace=namespace, account=account)
            return texts.ACCOUNT_UNREADABLE.format(account=account, error=str(error) or texts.TIMED_OUT)
        if len(self._found) >= MAX_KEPT:
            self._found.clear()
        self._found[namespace, account] = self.clock.now()
        return ""

    def _allow_unchanged(self, review: PodReview, outcome: str, why: str = "") -> bytes:
        self.report(outcome)
        if not why:
            return answer(review.uid)
        LOG.warning(texts.WITHOUT_AGENT, extra={"namespace": review.namespace, "reason": why})
        # kubectl shows the warning, but controllers only log it; hence the log line above.
        return answer(review.uid, warning=texts.NO_AGENT.format(why=why))
