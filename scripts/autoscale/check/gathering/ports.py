"""Queries the TLS ports of our programs and webhooks through ``kubectl port-forward``."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import httpx2 as httpx
import msgspec

from deploy.kube.kubectl import CannotForwardError, ForwardingError, Kubectl
from protocol.kubernetes.conditions import is_condition_true
from protocol.kubernetes.objects import Json, child, integer, name_of, text
from protocol.runtime.certificates.keeper import decoded
from protocol.runtime.trust import trusting
from scripts.autoscale.check.facts import CheckFacts, Observation, Observed, Served, Unavailable, UnavailableError
from scripts.autoscale.check.installed_programs import PROGRAMS, Program, leading_pod
from scripts.autoscale.check.judges.certificate_ages import our_webhooks

_TIMEOUT: Final = 5.0
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
"""A test review of a pod that runs no VM, which our webhook admits unchanged."""


def _trusting_all() -> ssl.SSLContext:
    # To fetch any certificate, even an expired or untrusted one.
    context = trusting()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def served_certificate(port: int, bundles: Mapping[str, tuple[bytes, str]]) -> Observation[Served]:
    """Fetches the certificate at the forwarded ``port``, and verifies it with each of ``bundles``.

    These map webhooks to the CA certificates (PEM) that should verify it, and the host name.
    """
    try:
        # Without a host name, because this handshake does not verify the certificate.
        certificate = await _handshake(port, _trusting_all(), "")
        reasons = {name: await _distrust(port, bundle, host) for name, (bundle, host) in bundles.items()}
    except OSError as error:  # ssl's errors and TimeoutError are OSErrors
        return Unavailable(f"TLS handshake failed: {_reason(error)}")
    return Observed(Served(certificate, {name: reason for name, reason in reasons.items() if reason}))


async def _distrust(port: int, bundle: bytes, host: str) -> str:
    """Reason why the CA certificates do not verify the port's certificate; empty if they do.

    Raises ``OSError`` if the connection breaks, which says nothing about the CA.
    """
    try:
        context = trusting(bundle.decode())
        await _handshake(port, context, host)
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except ssl.SSLEOFError:  # the peer closed the connection
        raise
    # A bundle that is not PEM, or a handshake that fails for a reason other than trust.
    except (ssl.SSLError, ValueError) as error:
        return _reason(error)
    return ""


async def _handshake(port: int, context: ssl.SSLContext, host: str) -> bytes:
    """The served certificate (PEM)."""
    async with asyncio.timeout(_TIMEOUT):
        _, writer = await asyncio.open_connection(_HOST, port, ssl=context, server_hostname=host or None)
    try:
        tls_object = writer.get_extra_info("ssl_object")
        # Binary form: without verification, getpeercert() returns an empty dict.
        return ssl.DER_cert_to_PEM_cert(tls_object.getpeercert(True)).encode()
    finally:
        writer.close()


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason) if reason else str(error) or type(error).__name__


async def review_error(port: int, path: str) -> str:
    """Sends a test review to the webhook on the forwarded ``port``; returns why it failed, empty if it did not."""
    url = f"https://{_HOST}:{port}{path or '/'}"
    try:
        # Requests to a forwarded port must not use a proxy from the environment.
        async with httpx.AsyncClient(verify=_trusting_all(), trust_env=False, timeout=_TIMEOUT) as client:
            response = await client.post(url, json=REVIEW)
        answer = child(msgspec.json.decode(response.raise_for_status().content, type=Json), "response")
    except (httpx.HTTPError, ValueError, RecursionError) as error:
        return str(error) or type(error).__name__
    # The API server rejects a response without the review's uid.
    return "" if text(answer, "uid") == _UID else "the response has the wrong uid"


_HTTPS: Final = 443


@dataclass(frozen=True, slots=True)
class _Hook:
    """One of our webhooks: its Service, port and path, and the CA certificates that verify it."""

    name: str
    namespace: str
    service: str
    port: int
    path: str
    bundle: bytes


async def tls_ports(
    kubectl: Kubectl, facts: CheckFacts
) -> tuple[dict[str, Observation[Served]], dict[str, Observation[str]]]:
    """Fetches the certificate of each TLS port, and sends each webhook a test review."""
    served = dict[str, Observation[Served]]()
    chosen = [
        (program, pod) for program in PROGRAMS if program.tls and (pod := leading_pod(facts, program.name)) is not None
    ]
    hooks = _hooks(facts)
    of_pods = [_of_pod(kubectl, program, pod, hooks) for program, pod in chosen]
    of_hooks = [_of_hook(kubectl, hook) for hook in hooks]
    for certificates in await asyncio.gather(*of_pods):
        served |= certificates
    return served, dict(zip((hook.name for hook in hooks), await asyncio.gather(*of_hooks), strict=True))


def _hooks(facts: CheckFacts) -> list[_Hook]:
    try:
        webhooks = our_webhooks(facts)
    except UnavailableError:
        # The webhooks' own check reports the reason.
        return []
    return [_hook(webhook) for _, webhook in webhooks if child(webhook, "clientConfig", "service")]


def _hook(webhook: Json) -> _Hook:
    config = child(webhook, "clientConfig")
    service = child(config, "service")
    # The check of trust reports an empty bundle.
    bundle = decoded(text(config, "caBundle"))
    # The default in the API.
    port = integer(service, "port") or _HTTPS
    where = (text(service, "namespace"), text(service, "name"))
    return _Hook(text(webhook, "name"), *where, port, text(service, "path"), bundle)


async def _of_pod(
    kubectl: Kubectl, program: Program, pod: Json, hooks: Sequence[_Hook]
) -> dict[str, Observation[Served]]:
    name = name_of(pod)
    titles = {port: f"{program.name}:{port}" for port in program.tls}
    bundles = {
        # The API server verifies a webhook's certificate for this host name.
        hook.name: (hook.bundle, f"{hook.service}.{hook.namespace}.svc")
        for hook in hooks
        if hook.service == program.name
    }
    try:
        async with kubectl.forward(name.namespace, f"pod/{name.name}", program.tls) as ports:
            return {titles[port]: await served_certificate(local, bundles) for port, local in ports.items()}
    except CannotForwardError as error:
        # A timeout is a failure; without kubectl or the permission to forward, the check is skipped.
        return dict.fromkeys(titles.values(), Unavailable(str(error), has_failed=error.is_slow))
    except ForwardingError as error:
        return dict.fromkeys(titles.values(), Unavailable(str(error), has_failed=is_condition_true(pod, "Ready")))


async def _of_hook(kubectl: Kubectl, hook: _Hook) -> Observation[str]:
    try:
        async with kubectl.forward(hook.namespace, f"service/{hook.service}", [hook.port]) as ports:
            return Observed(await review_error(ports[hook.port], hook.path))
    except CannotForwardError as error:
        return Unavailable(str(error), has_failed=error.is_slow)
    # The API server would not reach this webhook either.
    except ForwardingError as error:
        return Observed(str(error))
