"""The controller's own CA for clients of runner pods, stored in Secrets of its namespace.

It is separate from the other programs' CA, because VM pods run for months, longer than other issuers keep a CA, and
because runner pods must be protected even if the other programs have no certificates.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from deploy.neonvm.access.callers import AGENT, CONTROLLER
from deploy.neonvm.access.connections import ClientIdentity
from deploy.neonvm.access.keys import client_context
from deploy.neonvm.texts import controller as texts
from protocol.kubernetes.access_reviews import identity_in
from protocol.kubernetes.api import ApiError, KubernetesApi
from protocol.names import RUNNER_AUDIENCE
from protocol.runtime.certificates.issuing import Purpose
from protocol.runtime.certificates.keeper import (
    CertificateKeeper,
    CertificateSpec,
    Lifetimes,
    MissingSecretError,
    certificate_in,
    content,
    read_secret,
)
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.lease import Leadership, NotLeadingError
from protocol.runtime.kubernetes.token_reviews import TokenReviews
from protocol.units import Seconds

LOG: Final = logging.getLogger("neonvm.authority")

AUTHORITIES: Final = "neonvm-runners"
"""The Secret with the CAs and their keys; no pod mounts it."""
OWN: Final = f"{AUTHORITIES}-controller"
OF_AGENTS: Final = f"{AUTHORITIES}-agent"
"""The Secret with the certificate of the per-node agents, which their pods mount."""

_DAY: Final = 86_400.0
# Lifetimes of a CA and of a certificate. Pods of VMs run for months with the CAs that they were created with.
LIVES: Final = Lifetimes(Seconds(9 * 365 * _DAY), Seconds(90 * _DAY))
_PAUSE: Final = Seconds(60.0)
_RETRY: Final = Seconds(2.0)


class RunnerAuthority:
    """Maintains the CA and client certificates in Secrets of ``namespace``, which the manifests create empty."""

    def __init__(self, api: KubernetesApi, leadership: Leadership, clock: Clock, namespace: str) -> None:
        wanted = [CertificateSpec(OWN, Purpose(CONTROLLER)), CertificateSpec(OF_AGENTS, Purpose(AGENT))]
        self._keeper = CertificateKeeper(api, leadership, clock, namespace, AUTHORITIES, wanted, LIVES, lambda _: None)
        self._api = api
        self._clock = clock
        self._namespace = namespace
        self._cached: tuple[bytes, ClientIdentity] | None = None
        self._last_error = ""
        self.ready = asyncio.Event()

    def identity(self) -> ClientIdentity:
        """The controller's current identity. Raises ``OSError`` until ``ready`` is set."""
        if self._cached is None:
            # OSError, because callers handle it like a failed connection.
            raise OSError(texts.NO_CERTIFICATE)
        return self._cached[1]

    @property
    def authorities(self) -> str:
        """The CAs (PEM) of the clients that new pods accept."""
        return self.identity().authorities

    async def pod_of(self, token: str) -> str:
        """The uid of the pod to which a runner's token is bound; empty if the token is rejected. Raises ``OSError``."""
        try:
            # Only the API server can check that the pod still exists.
            review = await TokenReviews(self._api).review(token, RUNNER_AUDIENCE)
        except ApiError as error:
            raise OSError(texts.REVIEW_FAILED.format(error=error)) from error
        identity = identity_in(review, RUNNER_AUDIENCE)
        return (identity.pod_uid or "") if identity is not None else ""

    async def run(self) -> None:
        """Maintain the certificates until cancelled."""
        while True:
            error = await self._renew()
            # Log each reason once, not with every retry.
            if error and error != self._last_error:
                LOG.error(texts.CERTIFICATES_NOT_KEPT, extra={"reason": error})
            self._last_error = error
            await self._clock.sleep(_RETRY if error else _PAUSE)

    async def _renew(self) -> str:
        """Renew certificates if they are due, and update the identity. Return the error, empty if none."""
        try:
            bundle, fault = await self._keeper.renew_due()
            own = certificate_in(content(await read_secret(self._api, self._namespace, OWN) or {}))
        except (ApiError, NotLeadingError, MissingSecretError) as error:
            return str(error) or type(error).__name__
        if own is None:
            return fault or texts.MANIFESTS_MISSING.format(secret=f"{self._namespace}/{OWN}")
        # Build a TLS context only if something has changed, because it is expensive.
        key = bundle + own.pair.certificate
        if self._cached is None or self._cached[0] != key:
            context = client_context(own.pair.certificate, own.pair.key)
            self._cached = key, ClientIdentity(context, bundle.decode())
            self.ready.set()
        return fault
