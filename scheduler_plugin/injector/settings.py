"""The injector's settings, a YAML file. Settings of agents apply immediately; others need a restart.

An invalid file is refused as a whole; the error names the field.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from protocol.durations import parse_duration
from protocol.field_errors import field_message
from protocol.runtime.certificates.issuing import Purpose
from protocol.runtime.certificates.keeper import CertificateSpec, Lifetimes
from protocol.runtime.followed_file import SettingsError
from protocol.runtime.kubernetes.lease import LeaseTerms
from protocol.yaml_text import read_yaml
from scheduler_plugin.injector.admission.injection import AgentTemplate, InjectedAgentSettings, Name
from scheduler_plugin.lease_settings import LeaseSettings, RenewSeconds, WholeSeconds

OWN_SERVICE: Final = "autoscaling-injector"
SERVERS: Final = {
    "scheduler": ("autoscaling-scheduler", "autoscaling-scheduler-extender"),
    "injector": (OWN_SERVICE,),
    "expander": ("autoscaling-expander",),
}
"""The Services of each of our servers, by its name in Secrets."""

KUBE_SCHEDULER: Final = "kube-scheduler"
"""It calls the extender with a client certificate."""


class CertificateSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """With the provider ``self`` the injector issues the certificates. With ``files`` another program, such as
    cert-manager, issues them, and certificates and CAs are mounted.
    """

    provider: Literal["self", "files"] = "self"
    authority_life: str = "3285d"
    life: str = "90d"

    def lifetimes(self) -> Lifetimes:
        """The lifetimes as durations. Raises ``SettingsError``."""
        try:
            lifetimes = Lifetimes(parse_duration(self.authority_life), parse_duration(self.life))
        except ValueError as error:
            raise SettingsError(f"certificates: {error}") from None
        # A CA signs until the end of the second third of its lifetime, and certificates must not outlive it.
        if not 10 <= lifetimes.certificate <= lifetimes.authority / 3:
            raise SettingsError("certificates.life: expected 10s to a third of certificates.authorityLife")
        return lifetimes


class InjectorLease(LeaseSettings, frozen=True):
    """The Lease of the replica that issues certificates."""

    name: Name = "autoscaling-injector"
    duration_seconds: WholeSeconds = 15
    renew_seconds: RenewSeconds = 4.0


class InjectorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Settings of the program.

    ``namespace`` is the namespace of the installation. ``secrets`` is the name of the Secret of the CAs, and the
    prefix of the names of all other Secrets.
    """

    agent: InjectedAgentSettings
    namespace: Name = "kube-system"
    cluster_domain: Name = "cluster.local"
    secrets: Name = "autoscaling-certificates"
    config_map: Name = "autoscaling-ca"
    webhook: Name = "autoscaling-injector"
    certificates: CertificateSettings = CertificateSettings()
    lease: InjectorLease = InjectorLease()

    def template(self) -> AgentTemplate:
        """The settings of all agents."""
        return AgentTemplate(self.agent, self.config_map)

    def terms(self) -> LeaseTerms:
        """The Lease's terms. Raises ``SettingsError``."""
        return self.lease.terms_in(self.namespace)

    def wanted(self) -> list[CertificateSpec]:
        """All certificates that may be issued. Only those whose Secret exists are."""
        servers = [
            CertificateSpec(self.secret(name), self._server(name, services)) for name, services in SERVERS.items()
        ]
        return [*servers, CertificateSpec(self.secret(KUBE_SCHEDULER), Purpose(f"autoscaling-{KUBE_SCHEDULER}"))]

    def secret(self, name: str) -> str:
        """Name of a certificate's Secret."""
        return f"{self.secrets}-{name}"

    def _server(self, name: str, services: tuple[str, ...]) -> Purpose:
        # All DNS names of the Service within the cluster.
        suffixes = ("", f".{self.namespace}", f".{self.namespace}.svc", f".{self.namespace}.svc.{self.cluster_domain}")
        dns = [f"{service}{suffix}" for service in services for suffix in suffixes]
        # Loopback names, for probes and port forwarding.
        return Purpose(f"autoscaling-{name}", (*dns, "localhost"), ("127.0.0.1", "::1"))


def parse_settings(text: str) -> InjectorSettings:
    """Parse the YAML ``text``. Raises ``SettingsError``."""
    try:
        settings = msgspec.convert(read_yaml(text) or {}, InjectorSettings)
    except (ValueError, RecursionError) as error:
        raise SettingsError(field_message(error)) from None
    # Both check durations.
    settings.certificates.lifetimes()
    settings.terms()
    return settings
