"""Looks at the certificates of TLS ports and the answers of webhooks, through forwarded ports."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final

import httpx2 as httpx
import msgspec

from protocol.kubernetes.objects import Json, child, text
from protocol.runtime.trust import trusting
from scripts.autoscale.check.facts import Served, Webhook
from scripts.autoscale.check.looks import Look, SiteObservations, Unseen

_PATIENCE: Final = 5.0
_HOST: Final = "127.0.0.1"
_UID: Final = "autoscale-check"

REVIEW: Final[Json] = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {
        "uid": _UID,
        "operation": "CREATE",
        "dryRun": True,
        "namespace": "default",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
        "requestResource": {"group": "", "version": "v1", "resource": "pods"},
        "userInfo": {"username": "autoscale-check"},
        "options": {},
        "object": {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "autoscale-check", "namespace": "default"},
            "spec": {"containers": [{"name": "none", "image": "none"}]},
        },
    },
}
"""A review of a pod that runs no VM, which our webhook admits unchanged."""


def _trusting_all() -> ssl.SSLContext:
    # The certificate itself is wanted, even an expired or untrusted one.
    context = trusting()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def shown(port: int, bundles: Mapping[str, tuple[bytes, str]]) -> Look[Served]:
    """Certificate at the forwarded ``port``. ``bundles`` has, by webhook, the authorities (PEM) that should vouch for
    it and the host name to ask for.
    """
    try:
        # No host name: the certificate is looked at and not verified.
        certificate = await _handshake(port, _trusting_all(), "")
        whys = {name: await _distrust(port, bundle, host) for name, (bundle, host) in bundles.items()}
    except OSError as error:  # ssl's errors and TimeoutError are OSErrors
        return Unseen(f"no TLS there: {_told(error)}")
    return SiteObservations(Served(certificate, {name: why for name, why in whys.items() if why}))


async def _distrust(port: int, bundle: bytes, host: str) -> str:
    """The reason why the authority does not vouch for the certificate; empty if it does.

    Raises ``OSError`` if the connection breaks: that does not concern the authority.
    """
    try:
        context = trusting(bundle.decode())
        await _handshake(port, context, host)
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    # The peer closed the connection: that says nothing about the authority.
    except ssl.SSLEOFError:
        raise
    # A bundle that is not PEM, or a handshake that fails for a reason other than trust.
    except (ssl.SSLError, ValueError) as error:
        return _told(error)
    return ""


async def _handshake(port: int, context: ssl.SSLContext, host: str) -> bytes:
    """The certificate that is shown, PEM."""
    async with asyncio.timeout(_PATIENCE):
        _, writer = await asyncio.open_connection(_HOST, port, ssl=context, server_hostname=host or None)
    try:
        tls_object = writer.get_extra_info("ssl_object")
        # Binary form: without verification, getpeercert() returns an empty dict.
        return ssl.DER_cert_to_PEM_cert(tls_object.getpeercert(True)).encode()
    finally:
        writer.close()


def _told(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason) if reason else str(error) or type(error).__name__


async def reviewed(port: int, name: str, path: str) -> Webhook:
    """Review a made-up pod at the webhook on the forwarded ``port``."""
    url = f"https://{_HOST}:{port}{path or '/'}"
    try:
        # Requests to a forwarded port must not go to a proxy that the environment names.
        async with httpx.AsyncClient(verify=_trusting_all(), trust_env=False, timeout=_PATIENCE) as client:
            response = await client.post(url, json=REVIEW)
        answer = child(msgspec.json.decode(response.raise_for_status().content, type=Json), "response")
    except (httpx.HTTPError, ValueError, RecursionError) as error:
        return Webhook(name, str(error) or type(error).__name__)
    # A webhook has to repeat the review's uid, or the API server drops its answer.
    return Webhook(name, "" if text(answer, "uid") == _UID else "its answer is not one to the review that was sent")
