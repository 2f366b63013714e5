"""Reasons of failed API requests, in words for terminals."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Final

import httpx2 as httpx

from protocol.kubernetes.api import ApiError, ApiRefusedError
from protocol.kubernetes.pages import UnreadableAnswerError
from protocol.kubernetes.refusals import RefusalKind
from protocol.runtime.credentials import CredentialsError

REJECTED: Final = "the API server rejected these credentials (401); they may have expired"
NOT_KUBERNETES: Final = "the server at this address is not a Kubernetes API server"
_NOT_SERVED: Final = "the API server has no such resource (404): the CRDs are missing; autoscale check names them"
_UNTRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"


def api_failure(error: ApiError) -> str:
    """The reason why a command's request failed, in one line."""
    if not isinstance(error, ApiRefusedError):
        return failure_reason(error)
    refusal = error.refusal
    if refusal.kind is RefusalKind.UNAUTHORIZED:
        return REJECTED
    # For a path that it does not serve, the API server responds with plain text instead of a reason.
    if refusal.kind is RefusalKind.NOT_FOUND and not refusal.reason:
        return _NOT_SERVED
    # Kubernetes does not redirect; proxies do, to a page for signing in.
    return f"{NOT_KUBERNETES} ({refusal.status})" if 300 <= refusal.status < 400 else str(error)


def failure_reason(error: Exception) -> str:
    """The reason of a request without a usable response, as a sentence."""
    chain = _causes(error)
    if any(isinstance(cause, ssl.SSLCertVerificationError) or _UNTRUSTED in str(cause) for cause in chain):
        return f"the kubeconfig does not trust the server's certificate ({_last(chain)})"
    if any(isinstance(cause, (TimeoutError, httpx.TimeoutException)) for cause in chain):
        return "no response in time"
    for cause in chain:
        if isinstance(cause, httpx.ConnectError):
            url = cause.request.url
            return f"cannot connect to {url.scheme}://{url.netloc.decode()} ({_last(chain)})"
        if isinstance(cause, UnreadableAnswerError):
            return NOT_KUBERNETES
        if isinstance(cause, CredentialsError):
            return str(cause)
    return str(error)


def _causes(error: BaseException | None) -> list[BaseException]:
    chain = list[BaseException]()
    # A chain of contexts may be cyclic.
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain


def _last(chain: Sequence[BaseException]) -> str:
    # The innermost exception quotes the operating system.
    messages = [str(cause).strip() for cause in chain if str(cause).strip()]
    return messages[-1] if messages else type(chain[-1]).__name__
