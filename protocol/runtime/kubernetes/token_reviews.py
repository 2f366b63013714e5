"""The API server's word on bearer tokens (B.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.kubernetes.access_reviews import token_review
from protocol.kubernetes.api import ApiCall, KubernetesApi
from protocol.kubernetes.objects import JsonObject
from protocol.kubernetes.resources import TOKEN_REVIEWS
from protocol.units import Seconds

REVIEW_TIMEOUT: Final = Seconds(3.0)
"""Longer than a healthy API ever needs, shorter than agents wait (5 s)."""

_PATH: Final = TOKEN_REVIEWS.path()


@dataclass(frozen=True, slots=True)
class TokenReviews:
    """Asks over ``api``, which should have connections of its own: a flood of reviews must not delay bindings."""

    api: KubernetesApi

    async def review(self, token: str, audience: str) -> JsonObject:
        """The TokenReview of ``token``. Raises ``ApiRefusedError`` or ``ApiUnknownError``."""
        # Without audiences the API server checks for its own, which the default token of every pod has.
        return await self.api.call(ApiCall("POST", _PATH, REVIEW_TIMEOUT, body=token_review(token, audience)))
