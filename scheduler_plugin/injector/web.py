"""The injector's HTTP endpoint: ``POST /mutate`` for the API server."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from scheduler_plugin.injector import texts
from scheduler_plugin.injector.admission.injector import Injector
from scheduler_plugin.injector.admission.reviews import MalformedReviewError
from scheduler_plugin.web.hot_paths import BodyError, HotPath, HotPaths, HotRequest, HotResponse
from scheduler_plugin.web.models import Problem

MUTATE: Final = "/mutate"
LONGEST_REVIEW: Final = 4 * 1024 * 1024
"""Maximum size of a review in bytes. It contains the new pod once: at most 1.5 MiB in etcd, but its JSON may be longer.
"""


def webhook_app(injector: Injector) -> HotPaths:
    """The webhook for the API server. It responds with 400 or 413 if a review is malformed or too large."""

    async def mutate(request: HotRequest) -> HotResponse:
        try:
            response = await injector.answer(request.body())
        except MalformedReviewError as error:
            # The webhook fails open (``Ignore``), so the API server creates the pod and logs this.
            injector.report("malformed")
            return _problem(texts.NOT_A_REVIEW.format(error=error), 400)
        except BodyError as error:
            injector.report("too_large" if error.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE else "malformed")
            return _problem(str(error), error.status)
        # Anyone may send reviews, so a response does not mean that the client is authenticated.
        return HotResponse(response, authenticates=False)

    return HotPaths({MUTATE: HotPath(mutate, LONGEST_REVIEW)}, _nothing)


def _problem(text: str, status: int) -> HotResponse:
    return HotResponse(msgspec.json.encode(Problem(text)), status)


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse(f"POST {MUTATE}\n", 404)(scope, receive, send)
