"""Tokens that a program uses to read explanations of other programs."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from protocol.kubernetes.access_reviews import account_in
from protocol.kubernetes.api import ApiCall, ApiError, KubernetesApi
from protocol.kubernetes.objects import JsonObject, text
from protocol.kubernetes.resources import SERVICE_ACCOUNTS
from protocol.runtime.clock import Clock
from protocol.runtime.explaining.explain_access import token_in
from protocol.units import Instant, Seconds

LOG: Final = logging.getLogger("autoscale.tokens")
TIMEOUT: Final = Seconds(5.0)
LIFETIME: Final = Seconds(3600.0)
# Half of its life, so that no token expires in transit, even if clocks differ.
USED_FOR: Final = Seconds(LIFETIME / 2)
RETRY_AFTER: Final = Seconds(30.0)

Tokens = Callable[[str], Awaitable[str]]
"""Returns a token for an audience; empty if there is none."""


async def no_tokens(_: str) -> str:
    """Tokens of a program that needs none."""
    return ""


def tokens_of(token_file: Path | None, api: KubernetesApi, own: Callable[[], str | None], clock: Clock) -> Tokens:
    """The token in ``token_file`` for all audiences, or requested tokens of the service account of the token
    ``own``.
    """
    if token_file is None:
        return RequestedTokens(api, own, clock)

    async def in_file(_: str) -> str:
        return token_in(token_file)

    return in_file


@dataclass(slots=True)
class RequestedTokens:
    """See ``Tokens``."""

    api: KubernetesApi
    own: Callable[[], str | None]
    clock: Clock
    _cached: dict[str, tuple[str, Instant]] = field(default_factory=dict)
    _turns: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    async def __call__(self, audience: str) -> str:
        """See ``Tokens``."""
        # One request at a time per audience.
        async with self._turns[audience]:
            token, until = self._cached.get(audience, ("", Instant(float("-inf"))))
            if self.clock.now() >= until:
                token = await self._requested(audience)
                # Failures are cached too: otherwise every explanation would wait for the timeout.
                lasts = USED_FOR if token else RETRY_AFTER
                self._cached[audience] = token, Instant(self.clock.now() + lasts)
            return token

    async def _requested(self, audience: str) -> str:
        account = account_in(self.own() or "")
        if account is None:
            return ""
        body: JsonObject = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            # One token per audience, useless elsewhere; only the API server sees our own.
            "spec": {"audiences": [audience], "expirationSeconds": int(LIFETIME)},
        }
        path = SERVICE_ACCOUNTS.path(*account, "token")
        try:
            return text(await self.api.call(ApiCall("POST", path, TIMEOUT, body=body)), "status", "token")
        except ApiError as error:
            LOG.warning("no token for explanations", extra={"audience": audience, "error": str(error)})
            return ""


def bearer_header(token: str) -> dict[str, str]:
    """Header with ``token``; none if it is empty.

    >>> bearer_header("t"), bearer_header("")
    ({'Authorization': 'Bearer t'}, {})
    """
    return {"Authorization": f"Bearer {token}"} if token else {}
