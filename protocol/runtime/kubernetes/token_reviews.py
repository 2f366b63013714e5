"""Reviews bearer tokens with the API server (B.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.kubernetes.access_reviews import token_review
from protocol.kubernetes.api import ApiCall, KubernetesApi
from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.resources import TOKEN_REVIEWS
from protocol.units import Seconds

REVIEW_TIMEOUT: Final = Seconds(3.0)
"""Longer than a healthy API server needs, but shorter than agents wait (5 s)."""

_PATH: Final = TOKEN_REVIEWS.path()


@dataclass(frozen=True, slots=True)
class TokenReviews:
    """Sends reviews over ``api``, which should have its own connections: a flood of reviews must not delay bindings."""

    api: KubernetesApi

    async def review(self, token: str, audience: str) -> JsonObject:
        """The TokenReview of ``token``. Raises ``ApiRefusedError`` or ``ApiUnknownError``."""
        # Always send an audience: without one, the API server would accept the default token of every pod.
        return await self.api.call(ApiCall("POST", _PATH, REVIEW_TIMEOUT, body=token_review(token, audience)))
