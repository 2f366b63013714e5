"""Handles requests of agents: authenticate, decide, and store an increase before the response (S4.5, B.4).

A sidecar's token is bound to the VM's pod (namespace, name and UID) and valid for that pod only. A per-node agent, with
a service account listed in the settings, may request permits for pods on the node that its token is bound to; so may a
pod that the settings admit without a token, on its own node. Only those two may do so for a database in an ordinary
pod. An unusable token gets 401, another pod's token 403; neither changes anything.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

import msgspec

from protocol.codec import MalformedMessageError, WireRequest
from protocol.kubernetes.access_reviews import CallerIdentity
from protocol.kubernetes.api import ApiError
from protocol.messages import AgentRequest, ObjectName, PluginResponse
from protocol.units import Bytes, Instant, Seconds
from protocol.virtual_machine import VirtualMachine
from scheduler_plugin.auth.authenticator import OverloadedError, TokenAuthenticator
from scheduler_plugin.context import SchedulerContext
from scheduler_plugin.ledger import outcomes
from scheduler_plugin.ledger.events import PermitRequested
from scheduler_plugin.ledger.facts import PodFacts
from scheduler_plugin.settings.document import Tokenless
from scheduler_plugin.texts import refusals
from scheduler_plugin.workers.event_recorder import SchedulerEvents
from scheduler_plugin.workers.permit_writer import PermitWriter
from scheduler_plugin.workers.request_writer import RequestWriter


def identity_of(pod: PodFacts | None, admitted: Tokenless | None) -> CallerIdentity | None:
    """Identity of ``pod``, by the source address of a request; None if it is not admitted."""
    # Never a VM's pod: programs in a guest must not act for other VMs. The address of a terminating pod may be reused.
    if pod is None or admitted is None or pod.vm is not None or pod.traits.is_terminating or not admitted.admits(pod):
        return None
    account = f"{pod.name.namespace}:{pod.name.name}"
    # With the pod's node, like any per-node agent.
    return CallerIdentity(account, pod.name.namespace, pod.name.name, pod.uid, pod.node, by_address=True)


def may_speak_for(caller: CallerIdentity, pod: PodFacts, node: str | None, node_agents: frozenset[str]) -> bool:
    """Return True if ``caller`` is the agent of ``pod``, whose claim is on ``node``."""
    # By UID: the pod may have been recreated under the same name.
    if caller.pod_uid is not None and caller.pod_uid == pod.uid:
        # Anyone who creates a pod can mount such a token. A database must not reserve room that it does not use.
        if pod.database is not None:
            return False
        return caller.namespace == pod.name.namespace and caller.pod == pod.name.name
    return (caller.by_address or caller.account in node_agents) and caller.node is not None and caller.node == node


RETRY_AFTER: Final = Seconds(1.0)
AT_ONCE: Final = Seconds(0.0)
"""For requests that another scheduler can answer."""


class CallerRefusedError(Exception):
    """An error response to an agent: HTTP status, message, and when to retry."""

    def __init__(self, status: int, message: str, retry_after: Seconds | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class Granted(msgspec.Struct, frozen=True, gc=False):
    """A response for an agent, and the slot size for older protocol versions."""

    response: PluginResponse
    slot_size: Bytes


class Permits:
    """Decides agents' requests."""

    def __init__(
        self,
        context: SchedulerContext,
        authenticator: TokenAuthenticator,
        writer: PermitWriter,
        events: SchedulerEvents,
        requests: RequestWriter,
    ) -> None:
        self._context, self._authenticator = context, authenticator
        self._writer, self._events, self._requests = writer, events, requests

    def ask(self, wire: WireRequest, authorization: str | None, address: str) -> Granted | Awaitable[Granted]:
        """Decide an agent's request from ``address``. Raises ``CallerRefusedError``, immediately or when awaited."""
        identity = self.identity_if_known(authorization, address)
        return (
            self._after_identification(wire, authorization, address) if identity is None else self.judge(wire, identity)
        )

    def identity_if_known(self, authorization: str | None, address: str) -> CallerIdentity | None:
        """The caller, if cached or known by address. Raises ``CallerRefusedError``."""
        context = self._context
        # Before the first complete list an existing pod would get 404.
        if not context.ledger.is_ready:
            raise CallerRefusedError(503, refusals.NOT_READY, RETRY_AFTER)
        feed = context.feed
        if authorization is None:
            # An address shared by several pods identifies none of them.
            return identity_of(feed.addresses.only_pod_at(address), feed.settings.tokenless)
        return self._authenticator.cached_identity(authorization, feed.settings.audience)

    def precheck(self, authorization: str | None, address: str) -> None:
        """Check the caller before its request is read.

        Raises ``CallerRefusedError`` if it cannot be an agent.
        """
        if authorization is None:
            # A scheduler that is not ready says so to the request itself, together with its offer of batches.
            is_refused = self._context.ledger.is_ready and self.identity_if_known(None, address) is None
        else:
            is_refused = self._authenticator.is_refused(authorization, self._context.feed.settings.audience)
        if is_refused:
            raise CallerRefusedError(401, refusals.NO_TOKEN)

    async def identify(self, authorization: str | None, address: str) -> CallerIdentity:
        """Owner of this token from ``address``. Raises ``CallerRefusedError``."""
        try:
            identity = await self._authenticator.identify(authorization, self._context.feed.settings.audience, address)
        except OverloadedError:
            raise CallerRefusedError(503, refusals.TOO_MANY_TOKENS, RETRY_AFTER) from None
        except ApiError as error:
            message = refusals.NOT_REVIEWED.format(error=error)
            raise CallerRefusedError(503, message, self._retry_after()) from None
        if identity is None:
            raise CallerRefusedError(401, refusals.NO_TOKEN)
        return identity

    def judge(self, wire: WireRequest, identity: CallerIdentity) -> Granted | Awaitable[Granted]:
        """Decide a request of an authenticated agent. Raises ``CallerRefusedError``, immediately or when awaited."""
        pod = self._pod_of(wire.pod, identity)
        vm = self._context.feed.vm_of(pod)
        if vm is None:
            raise CallerRefusedError(503, refusals.VM_UNKNOWN.format(pod=pod), RETRY_AFTER)
        try:
            request = wire.resolve(vm.slot_size)
        except MalformedMessageError as error:
            raise CallerRefusedError(400, str(error)) from None
        ledger = self._context.ledger
        # A token bound only to a node has no pod UID.
        agent = identity.pod_uid or identity.account
        # Raise the pod's requests first: the permit must not exceed what the kubelet has allocated.
        if ledger.follows_requests and ledger.needs_raise(pod.uid, request):
            return self._after_requests(pod, vm, request, agent)
        return self._decide(pod, vm, request, agent)

    async def _after_identification(self, wire: WireRequest, authorization: str | None, address: str) -> Granted:
        outcome = self.judge(wire, await self.identify(authorization, address))
        return outcome if isinstance(outcome, Granted) else await outcome

    async def _after_requests(self, pod: PodFacts, vm: VirtualMachine, request: AgentRequest, agent: str) -> Granted:
        try:
            await self._requests.raise_for_agent(pod.uid, request)
        except outcomes.LedgerError as error:
            raise _refusal(error) from None
        outcome = self._decide(pod, vm, request, agent)
        return outcome if isinstance(outcome, Granted) else await outcome

    def _decide(
        self, pod: PodFacts, vm: VirtualMachine, request: AgentRequest, agent: str
    ) -> Granted | Awaitable[Granted]:
        context = self._context
        try:
            # Decide and record in one call, without an await in between.
            decision = context.ledger.apply(PermitRequested(pod.uid, request, agent), context.clock.now())
        except outcomes.LedgerError as error:
            raise _refusal(error) from None
        if decision.effects:
            context.queues.add(decision.effects)
        # Not if the VM should only stay at its size.
        if decision.shrink_to not in {None, decision.permit}:
            context.telemetry.shrinks.inc()
        is_whole = request.resources.within(decision.permit)
        context.telemetry.permit("migrate" if decision.migrate else "whole" if is_whole else "partly").inc()
        if not is_whole and not decision.migrate:
            self._events.denied(vm, pod.uid, request.resources, decision.permit)
        granted = Granted(decision.response, vm.slot_size)
        if decision.persist is None:
            return self._within_term(granted)
        # A successor would not know an increase that was not stored.
        if decision.persist.before_answer:
            return self._after_write(vm, decision.persist, granted, decision.wakes_since)
        # A successor that reads the old, larger permit reserves too much, which is safe.
        context.queues.add((decision.persist,))
        return self._within_term(granted)

    async def _after_write(
        self, vm: VirtualMachine, permit: outcomes.PersistPermit, granted: Granted, wakes_since: Instant | None
    ) -> Granted:
        why = await self._writer.store(permit)
        # If the outcome is unknown, the reservation stays and the agent retries.
        if why:
            self._events.not_stored(vm, permit.permit, why)
            message = refusals.NOT_STORED.format(vm=permit.vm, why=why)
            raise CallerRefusedError(503, message, self._retry_after())
        if wakes_since is not None:
            self._context.telemetry.wake_seconds.observe(self._context.clock.now() - wakes_since)
        return self._within_term(granted)

    def _within_term(self, granted: Granted) -> Granted:
        """Return the response if this process still leads; a new leader may lack the permit. Raises
        ``CallerRefusedError``.
        """
        if not self._context.term.leads:
            raise CallerRefusedError(503, refusals.LOST_LEADERSHIP, AT_ONCE)
        return granted

    def _retry_after(self) -> Seconds:
        # If this process can no longer write, send the agent to the new leader immediately.
        return RETRY_AFTER if self._context.term.may_write else AT_ONCE

    def _pod_of(self, name: ObjectName, identity: CallerIdentity) -> PodFacts:
        context = self._context
        uid = context.ledger.uid_of(name)
        claim = None if uid is None else context.ledger.claims.get(uid)
        if claim is None:
            raise CallerRefusedError(404, refusals.POD_UNKNOWN.format(pod=name))
        if not may_speak_for(identity, claim.pod, claim.node, context.feed.settings.node_agents):
            raise CallerRefusedError(403, refusals.NOT_ITS_AGENT.format(account=identity.account, pod=name))
        if identity.pod_uid is not None and identity.pod_uid not in context.ledger.claims:
            # Tokens are accepted for a while after their pod is gone.
            raise CallerRefusedError(404, refusals.TOKENS_POD_UNKNOWN.format(caller=identity))
        if claim.pod.vm is None:
            raise CallerRefusedError(400, refusals.NOT_A_VM.format(pod=name))
        return claim.pod


def _refusal(error: outcomes.LedgerError) -> CallerRefusedError:
    if isinstance(error, outcomes.UnknownPodError):
        return CallerRefusedError(404, str(error))
    if isinstance(error, outcomes.OtherAgentError):
        return CallerRefusedError(409, str(error))
    if isinstance(error, outcomes.NotReadyError):
        return CallerRefusedError(503, str(error), RETRY_AFTER)
    raise error
