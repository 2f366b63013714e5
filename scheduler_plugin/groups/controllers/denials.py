"""Denials of room for postgres pods, from the scheduler's ``/explain``, because the pods do not show them."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Final, Protocol

import httpx2 as httpx
import msgspec

from protocol.messages import ObjectName
from protocol.pod_database import database_of
from protocol.runtime.clock import Clock
from protocol.runtime.explaining.explain_access import AUDIENCE
from protocol.units import Resources, Seconds
from protocol.wire.wire_quantities import cpu_from_wire, mem_from_wire
from scheduler_plugin.databases import database_url
from scheduler_plugin.groups.core.tandem import DeniedRoom
from scheduler_plugin.own_tokens import Tokens, bearer_header, no_tokens

LOG: Final = logging.getLogger("autoscale.groups")

_TIMEOUT: Final = Seconds(5.0)
_SHOWN: Final = 200
"""Characters of a response that are logged."""

_MOST_FAULTS: Final = 1000
"""Maximum number of pods whose last fault is remembered."""


class Denials(Protocol):
    """The scheduler's denials."""

    async def of(self, pod: ObjectName) -> DeniedRoom | None:
        """The present denial for the database in ``pod``; None if there is none, or the scheduler does not respond."""


class _LackingAmounts(msgspec.Struct, frozen=True):
    cpu: str
    mem: str


class _ExplainedPod(msgspec.Struct, frozen=True, rename="camel"):
    denied: _LackingAmounts
    denied_for_seconds: Annotated[float, msgspec.Meta(ge=0.0, le=1e9)] | None = None


class _ExplainedDatabase(msgspec.Struct, frozen=True):
    pods: tuple[_ExplainedPod, ...]


@dataclass(slots=True)
class HttpDenials:
    """``Denials`` from the scheduler at the URL ``scheduler``."""

    http: httpx.AsyncClient
    scheduler: str
    clock: Clock
    tokens: Tokens = no_tokens
    _faults: dict[ObjectName, str] = field(default_factory=dict)

    async def of(self, pod: ObjectName) -> DeniedRoom | None:
        """See ``Denials``."""
        path = f"/explain/{database_url(database_of(pod))}"
        try:
            headers = bearer_header(await self.tokens(AUDIENCE))
            # The client's timeouts are per read.
            async with asyncio.timeout(_TIMEOUT):
                answer = await self.http.get(f"{self.scheduler.rstrip('/')}{path}", headers=headers)
            pods = msgspec.json.decode(answer.raise_for_status().content, type=_ExplainedDatabase).pods
            denial = next((self._denial(account) for account in pods if account.denied_for_seconds is not None), None)
        # Retried by the next reconcile.
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError, RecursionError) as error:
            self._note(pod, _fault(error))
            return None
        self._faults.pop(pod, None)
        return denial

    def _note(self, pod: ObjectName, fault: str) -> None:
        """Log a fault once, not in each reconcile or for each pod. Without denials no standby would be promoted."""
        if fault not in self._faults.values():
            LOG.warning("cannot read denials of primaries from the scheduler", extra={"error": fault})
        self._faults[pod] = fault
        # Bounded, because faults of deleted pods would stay.
        if len(self._faults) > _MOST_FAULTS:
            del self._faults[next(iter(self._faults))]

    def _denial(self, account: _ExplainedPod) -> DeniedRoom:
        lacks = Resources(cpu_from_wire("cpu", account.denied.cpu), mem_from_wire("mem", account.denied.mem))
        since = self.clock.wall() - (account.denied_for_seconds or 0.0)
        # Whole seconds, so that the condition's message is stable.
        return DeniedRoom(lacks, datetime.fromtimestamp(round(since), UTC))


def _fault(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"HTTP {error.response.status_code}: {error.response.text[:_SHOWN]}"
    return str(error) or type(error).__name__
