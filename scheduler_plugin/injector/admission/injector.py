"""Handles AdmissionReviews: annotates postgres pods, and injects the agent into VM pods. Refuses only VM pods that
mention the agent's volumes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from protocol.kubernetes.api import ApiCall, ApiError, ApiRefusedError, KubernetesApi
from protocol.kubernetes.objects import Json, controller_of, text
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import SERVICE_ACCOUNTS
from protocol.messages import ObjectName
from protocol.pod_database import is_pod_database
from protocol.runtime.clock import Clock
from protocol.units import Seconds
from protocol.virtual_machine import InvalidObjectError
from scheduler_plugin.injector import texts
from scheduler_plugin.injector.admission.first_size import annotate
from scheduler_plugin.injector.admission.injection import AgentTemplate, Left, RefusedPod, judge
from scheduler_plugin.injector.admission.reviews import MOST_VALUES, PodReview, answer, read_review, refusal
from scheduler_plugin.injector.predecessors import Predecessors

LOG: Final = logging.getLogger("autoscale.injector")

ACCOUNT_TIMEOUT: Final = Seconds(1.5)
"""The API server waits 5 s for the response."""

FLOOR_FOR: Final = Seconds(600.0)
"""How long a pod keeps its predecessor's size: with an empty cache its usage says little about its need."""


@dataclass(slots=True)
class Injector:
    """``template`` and ``problem`` may be replaced at any time; no agent is injected while there is a ``problem``.

    ``report`` is called with each outcome.
    """

    api: KubernetesApi
    clock: Clock
    predecessors: Predecessors
    template: AgentTemplate
    report: Callable[[str], None]
    problem: str = texts.VERSION_UNKNOWN

    async def answer(self, body: bytes) -> bytes:
        """Handle an AdmissionReview. Raises ``MalformedReviewError``."""
        question = read_review(body)
        try:
            return await self._review(question)
        # A bug must not keep a database from starting: allow the pod unchanged, with a warning.
        except Exception:
            LOG.exception(texts.POD_UNCHANGED, extra={"namespace": question.namespace})
            self.report("failed")
            return answer(question.uid, warning=texts.FAILED)

    async def _review(self, question: PodReview) -> bytes:
        if question.is_too_large:
            self.report("too_large")
            LOG.warning(texts.POD_TOO_LARGE, extra={"namespace": question.namespace})
            return answer(question.uid, warning=texts.TOO_LARGE.format(most=MOST_VALUES))
        if question.pod is None:
            return self._allow_unchanged(question, "not_a_new_pod")
        if is_pod_database(question.pod):
            return self._annotate(question, question.pod)
        return await self._inject(question, question.pod)

    async def _inject(self, question: PodReview, pod: Json) -> bytes:
        verdict = judge(pod, self.template)
        if isinstance(verdict, RefusedPod):
            self.report("refused")
            LOG.warning(texts.POD_REFUSED, extra={"namespace": question.namespace, "reason": verdict.why})
            return refusal(question.uid, texts.REFUSED.format(why=verdict.why))
        if isinstance(verdict, Left):
            return self._allow_unchanged(question, verdict.outcome, verdict.why)
        # Last, so that only pods that would get an agent cause a warning.
        if self.problem:
            return self._allow_unchanged(question, "not_possible", self.problem)
        # The API server would refuse a pod with a missing service account.
        if why := await self._missing_account(question.namespace, self.template.agent.service_account):
            return self._allow_unchanged(question, "no_account", why)
        self.report("injected")
        return answer(question.uid, verdict)

    def _annotate(self, question: PodReview, pod: Json) -> bytes:
        name = ObjectName(question.namespace, text(pod, "metadata", "name"))
        before = self.predecessors.size_before(name, text(controller_of(pod), "uid"))
        try:
            operations = annotate(pod, before, self.clock.wall() + FLOOR_FOR)
        except InvalidObjectError as error:
            self.report("unreadable")
            LOG.warning(texts.POD_UNREADABLE, extra={"namespace": question.namespace, "reason": str(error)})
            return answer(question.uid, warning=texts.NOT_RESIZED.format(why=error))
        self.report("replaces" if len(operations) > 1 else "first_requests")
        return answer(question.uid, operations)

    async def _missing_account(self, namespace: str, account: str) -> str:
        call = ApiCall("GET", SERVICE_ACCOUNTS.path(namespace, account), ACCOUNT_TIMEOUT)
        try:
            await self.api.call(call)
        except ApiError as error:
            if isinstance(error, ApiRefusedError) and error.kind is RefusalKind.NOT_FOUND:
                return texts.NO_ACCOUNT.format(namespace=namespace, account=account)
            return texts.ACCOUNT_UNREADABLE.format(account=account, error=error)
        return ""

    def _allow_unchanged(self, question: PodReview, outcome: str, why: str = "") -> bytes:
        self.report(outcome)
        if not why:
            return answer(question.uid)
        LOG.warning(texts.WITHOUT_AGENT, extra={"namespace": question.namespace, "reason": why})
        # kubectl shows it; controllers only log it, hence the log above.
        return answer(question.uid, warning=texts.NO_AGENT.format(why=why))
