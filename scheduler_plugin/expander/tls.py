"""The expander's certificate, read again when its files change (the autoscaler insists on TLS)."""

from __future__ import annotations

from pathlib import Path

import grpc

from protocol.runtime.tls_files import FollowedTls, TlsParts, server_context

Followed = FollowedTls[grpc.ServerCertificateConfiguration]


def followed(parts: TlsParts) -> Followed:
    """The files as gRPC takes them, followed as they change."""
    return FollowedTls("expander", parts, _configuration)


def credentials(found: Followed) -> grpc.ServerCredentials:
    """Server credentials that gRPC asks for at each handshake. Raises ``TlsFilesError``."""
    # If an authority is configured, clients need a certificate that it has signed.
    demands = found.parts.authority is not None
    return grpc.dynamic_ssl_server_credentials(found.value(), found.value, require_client_authentication=demands)


def _configuration(parts: TlsParts) -> grpc.ServerCertificateConfiguration:
    """TLS configuration. Raises ``OSError`` and ``ssl.SSLError`` if the files do not belong together."""
    # gRPC does not check that key and certificate belong together; Python's ssl does.
    server_context(parts)
    certificate, key = ((path or Path()).read_bytes() for path in (parts.certificate, parts.key))
    authority = None if parts.authority is None else parts.authority.read_bytes()
    return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=authority)
