"""The expander's settings, a YAML file. An invalid file is refused as a whole; the error names the field."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from protocol.field_errors import field_message
from protocol.kubernetes.proxies import is_loopback
from protocol.ranking.config import RankingConfig
from protocol.runtime.followed_file import SettingsError
from protocol.runtime.tls_files import TlsParts
from protocol.yaml_text import read_yaml
from scheduler_plugin.expander.failures import FailureRules


class TlsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Paths of PEM files; see ``TlsParts``."""

    certificate: str
    key: str
    client_ca: str | None = None

    def files(self) -> TlsParts:
        """These settings as paths."""
        return TlsParts(Path(self.certificate), Path(self.key), Path(self.client_ca) if self.client_ca else None)


class ExpanderSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Settings of the expander. ``cluster_nodes`` is used instead of the number of nodes in the cluster."""

    listen: str = "127.0.0.1:10296"
    metrics_listen: str = "0.0.0.0:10295"
    tls: TlsSettings | None = None
    insecure: bool = False
    cluster_nodes: Annotated[int, msgspec.Meta(ge=1)] | None = None
    failures: FailureRules = FailureRules()
    ranking: RankingConfig = RankingConfig()


def parse_settings(text: str) -> ExpanderSettings:
    """Parse the YAML ``text``; empty means the defaults. Raises ``SettingsError``."""
    try:
        settings = msgspec.convert(read_yaml(text) or {}, ExpanderSettings)
        for path, address in (("listen", settings.listen), ("metricsListen", settings.metrics_listen)):
            host, _ = host_and_port(path, address)
            # Connections without TLS over the network must be allowed explicitly.
            if path == "listen" and not settings.tls and not settings.insecure and not is_loopback(host):
                raise ValueError("tls: expected a certificate and key, as listen is not loopback (or insecure: true)")
    except (ValueError, RecursionError) as error:
        raise SettingsError(field_message(error)) from None
    return settings


def host_and_port(path: str, address: str) -> tuple[str, int]:
    """Split ``HOST:PORT``, or ``[HOST]:PORT`` for IPv6. Raises ``ValueError``, which names ``path``."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"{path}: expected HOST:PORT, got {address!r}")
    # Remove the brackets of IPv6.
    return host.removeprefix("[").removesuffix("]"), int(port)
