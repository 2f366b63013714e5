"""The authority whose clients runner pods let in: the controller's own, kept in Secrets of its namespace.

Pods of VMs run for months, longer than another issuer promises to keep an authority; and runners are closed even
if nobody makes certificates for the other programs.
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
    Lives,
    MissingSecretError,
    WantedCertificate,
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
"""The Secret of the authorities with their keys; no pod mounts it."""
OWN: Final = f"{AUTHORITIES}-controller"
OF_AGENTS: Final = f"{AUTHORITIES}-agent"
"""The certificate of agents of nodes, which their pods mount."""

_DAY: Final = 86_400.0
# Of an authority and of a certificate. Pods of VMs run for months with the authorities of their start.
LIVES: Final = Lives(Seconds(9 * 365 * _DAY), Seconds(90 * _DAY))
_PAUSE: Final = Seconds(60.0)
_RETRY: Final = Seconds(2.0)


class RunnerAuthority:
    """The leader's certificates for runner pods, in Secrets of ``namespace`` that the manifests create empty."""

    def __init__(self, api: KubernetesApi, leadership: Leadership, clock: Clock, namespace: str) -> None:
        wanted = [WantedCertificate(OWN, Purpose(CONTROLLER)), WantedCertificate(OF_AGENTS, Purpose(AGENT))]
        self._keeper = CertificateKeeper(api, leadership, clock, namespace, AUTHORITIES, wanted, LIVES, lambda _: None)
        self._api = api
        self._clock = clock
        self._namespace = namespace
        self._cached: tuple[bytes, ClientIdentity] | None = None
        self._trouble = ""
        self.ready = asyncio.Event()

    def identity(self) -> ClientIdentity:
        """The certificates to show now; ``ready`` is set before. Raises ``OSError``."""
        if self._cached is None:
            # OSError, because to callers it is a connection that cannot be made.
            raise OSError(texts.NO_CERTIFICATE)
        return self._cached[1]

    @property
    def authorities(self) -> str:
        """The authorities, in PEM, whose clients new pods let in."""
        return self.identity().authorities

    async def pod_of(self, token: str) -> str:
        """The uid of the pod that a runner's token is bound to; empty if it is not accepted. Raises ``OSError``."""
        try:
            # Only the API server knows whether the pod of a token still exists.
            review = await TokenReviews(self._api).review(token, RUNNER_AUDIENCE)
        except ApiError as error:
            raise OSError(texts.REVIEW_FAILED.format(error=error)) from error
        identity = identity_in(review, RUNNER_AUDIENCE)
        return (identity.pod_uid or "") if identity is not None else ""

    async def run(self) -> None:
        """Keeps certificates while this process leads, until cancelled."""
        while True:
            trouble = await self._turn()
            # Each reason is logged once, not with every retry.
            if trouble and trouble != self._trouble:
                LOG.error(texts.CERTIFICATES_NOT_KEPT, extra={"reason": trouble})
            self._trouble = trouble
            await self._clock.sleep(_RETRY if trouble else _PAUSE)

    async def _turn(self) -> str:
        """Runs one round. Returns the error, empty if there is none."""
        try:
            bundle, trouble = await self._keeper.turn()
            own = certificate_in(content(await read_secret(self._api, self._namespace, OWN) or {}))
        except (ApiError, NotLeadingError, MissingSecretError) as error:
            return str(error) or type(error).__name__
        if own is None:
            return trouble or texts.MANIFESTS_MISSING.format(secret=f"{self._namespace}/{OWN}")
        # A new TLS context is built only when something changed: it costs more than the comparison.
        mark = bundle + own.pair.certificate
        if self._cached is None or self._cached[0] != mark:
            context = client_context(own.pair.certificate, own.pair.key)
            self._cached = mark, ClientIdentity(context, bundle.decode())
            self.ready.set()
        return trouble
