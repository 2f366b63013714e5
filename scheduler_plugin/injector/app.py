"""Assembles ``autoscale-injector``. Nothing is created at import."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from protocol.kubernetes.api import ApiCall, ApiError, KubernetesApi
from protocol.kubernetes.resources import VERSION_PATH
from protocol.rotation import check_interval
from protocol.runtime.certificates.keeper import BUNDLE, CERTIFICATE, KEY, CertificateKeeper, MissingSecretError
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.lease import Leadership, NotLeadingError
from protocol.runtime.serving.probes import readiness
from protocol.runtime.tls_files import server_tls
from protocol.units import Instant, Seconds
from scheduler_plugin.injector import texts
from scheduler_plugin.injector.admission.injection import no_native_sidecars
from scheduler_plugin.injector.admission.injector import Injector
from scheduler_plugin.injector.certificates import BundlePublisher, GatheredBundle, fetch_certificate
from scheduler_plugin.injector.predecessors import Predecessors
from scheduler_plugin.injector.settings import InjectorSettings
from scheduler_plugin.injector.telemetry import InjectorTelemetry

OWN: Final = "injector"
TIMEOUT: Final = Seconds(3.0)
RETRY: Final = Seconds(2.0)
"""Pause after a failed round, and while the webhook has no certificate."""


class InjectorProgram:
    """One ``autoscale-injector``: its parts and background tasks. ``folder`` has the webhook's certificate.

    If ``follows_pods``, it watches postgres pods.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the parts of a process
        self,
        api: KubernetesApi,
        clock: Clock,
        settings: InjectorSettings,
        identity: str,
        folder: Path,
        follows_pods: bool = False,
    ) -> None:
        self.api, self.clock, self.settings, self.folder = api, clock, settings, folder
        self.follows_pods = follows_pods
        self.telemetry = telemetry = InjectorTelemetry()
        self.leadership = Leadership(api, clock, settings.terms(), identity)
        self.leadership.on_change = self.led
        self.predecessors = Predecessors(clock, telemetry)
        self.injector = Injector(
            api,
            clock,
            self.predecessors,
            settings.template(),
            lambda outcome: telemetry.reviews.labels(outcome).inc(),
        )
        namespace, wanted = settings.namespace, settings.wanted()
        self.keeper = CertificateKeeper(
            api,
            self.leadership,
            clock,
            namespace,
            settings.secrets,
            wanted,
            settings.certificates.lifetimes(),
            lambda outcome: telemetry.renewals.labels(outcome).inc(),
        )
        secrets = [settings.secrets, *(certificate.secret for certificate in wanted)]
        self.gathered = GatheredBundle(api, clock, namespace, secrets)
        self.publisher = BundlePublisher(api, self.leadership, settings.config_map, settings.webhook)
        # A single file can be replaced atomically; with two, a reader could get one old and one new.
        files = folder / "own.pem", folder / "own.pem"
        if settings.certificates.provider == "files":
            files = folder / CERTIFICATE, folder / KEY
        self.certificate_files, self.tls = files[0], server_tls(OWN, *files)
        self.serves = asyncio.Event()
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Run until cancelled, then release the Lease if this process holds it."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.leadership.run())
                tasks.create_task(self._run_certificates())
                tasks.create_task(self._learn_version())
                if self.follows_pods:
                    tasks.create_task(self.predecessors.run(self.api))
        finally:
            # Otherwise another replica would have to wait until it expires.
            await self.leadership.release()

    def use(self, settings: InjectorSettings) -> None:
        """Apply new settings to the agents of pods that are created from now on."""
        self.injector.template = settings.template()

    def led(self, leads: bool) -> None:
        """React to a Lease that was acquired or lost."""
        self.telemetry.leads(leads)
        # A new leader checks all certificates immediately.
        self._wake.set()

    def readiness(self) -> tuple[bool, str]:
        """Return whether pods can get an agent, and the reason if not."""
        if not self.serves.is_set():
            return False, texts.NO_CERTIFICATE
        if self.injector.problem:
            return False, self.injector.problem
        return readiness([], self.leadership.leads)

    async def _run_certificates(self) -> None:
        pause = Seconds(check_interval(self.settings.certificates.lifetimes().certificate))
        while True:
            # Before the round, so that a change during the round triggers another one.
            self._wake.clear()
            trouble = await self._round()
            self.telemetry.turned(trouble)
            # Other replicas poll until the leader has filled the Secret.
            wait = pause if self.serves.is_set() and not trouble else min(RETRY, pause)
            await self.clock.wait(self._wake, Instant(self.clock.now() + wait))

    async def _round(self) -> str:
        try:
            trouble = await self._certificates()
            if not self.certificate_files.exists():
                return trouble or texts.NO_CERTIFICATE
            # This raises if certificate and key do not match.
            self.tls.value()
        except (ApiError, NotLeadingError, MissingSecretError, OSError) as error:  # TlsFilesError is an OSError
            return str(error) or type(error).__name__
        self.serves.set()
        self.telemetry.ready.set(int(self.readiness()[0]))
        return trouble

    async def _certificates(self) -> str:
        makes, trouble = self.settings.certificates.provider == "self", ""
        if self.leadership.leads and makes:
            # Store before publishing: a CA must not be trusted while its key could still be lost.
            bundle, trouble = await self.keeper.renew_due()
            trouble = await self.publisher.publish(bundle) or trouble
        elif self.leadership.leads:
            # Another program, such as cert-manager, issues the certificates; only publish the CAs.
            mounted = (self.folder / BUNDLE).read_bytes()
            bundle = await self.gathered.gather(mounted, await self.publisher.published())
            trouble = await self.publisher.publish(bundle) if bundle else texts.NO_AUTHORITY
        # Every replica serves the webhook.
        if makes:
            secret = self.settings.secret(OWN)
            await fetch_certificate(self.api, self.settings.namespace, secret, self.certificate_files)
        return trouble

    async def _learn_version(self) -> None:
        """Poll until this Kubernetes has native sidecars, because it may be upgraded. Clusters are not downgraded."""
        while self.injector.problem:
            try:
                self.injector.problem = no_native_sidecars(await self.api.call(ApiCall("GET", VERSION_PATH, TIMEOUT)))
            except ApiError as error:
                self.injector.problem = texts.VERSION_UNREADABLE.format(error=error)
            self.telemetry.cannot_inject(self.injector.problem)
            self.telemetry.ready.set(int(self.readiness()[0]))
            await self.clock.sleep(RETRY)
