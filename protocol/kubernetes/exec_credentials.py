"""Credential plug-ins: their settings in a kubeconfig, their input, and their output (``ExecCredential``)."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from protocol.field_errors import field_message
from protocol.kubernetes.objects import Json

NEVER: Final = "Never"
ALWAYS: Final = "Always"


class ExecCredentialError(ValueError):
    """The plug-in cannot be run, or its output contains no credential."""


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """A program that prints an ``ExecCredential`` of ``api_version``.

    ``cluster`` is the cluster as passed to it, without the CA; None unless ``provideClusterInfo``.
    """

    command: str
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    api_version: str
    install_hint: str
    interactive: str = "IfAvailable"
    cluster: Mapping[str, object] | None = field(default=None, hash=False)

    def may_ask(self, *, is_terminal: bool) -> bool:
        """Return True if the plug-in may use standard input. Raises ``ExecCredentialError`` if it needs a terminal."""
        if self.interactive == ALWAYS and not is_terminal:
            raise ExecCredentialError(
                "it is interactive (interactiveMode: Always), and standard input is not a terminal"
            )
        return is_terminal and self.interactive != NEVER

    def request(self, *, is_interactive: bool, authority: str = "") -> str:
        """The JSON for ``$KUBERNETES_EXEC_INFO``; ``authority`` is the PEM text of the cluster's CA.

        >>> ExecPlugin("login", (), (), "client.authentication.k8s.io/v1", "").request(is_interactive=False)
        '{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","spec":{"interactive":false}}'
        """
        spec: Json = {"interactive": is_interactive}
        if self.cluster is not None:
            # Base64 of PEM, as in a kubeconfig.
            data = base64.b64encode(authority.encode()).decode()
            spec["cluster"] = {**self.cluster, **({"certificate-authority-data": data} if data else {})}
        request = {"kind": "ExecCredential", "apiVersion": self.api_version, "spec": spec}
        return msgspec.json.encode(request).decode()


class ExecCredential(msgspec.Struct, frozen=True):
    """The credential that a plug-in printed. ``expires`` is RFC 3339, None if it does not expire."""

    token: str | None = None
    certificate: str | None = msgspec.field(default=None, name="clientCertificateData")
    key: str | None = msgspec.field(default=None, name="clientKeyData")
    expires: str | None = msgspec.field(default=None, name="expirationTimestamp")


class _Printed(msgspec.Struct, frozen=True):
    status: ExecCredential


_PRINTED: Final = msgspec.json.Decoder(_Printed)


def read_exec_credential(printed: bytes) -> ExecCredential:
    """Decode an ``ExecCredential`` of ``client.authentication.k8s.io``. Raises ``ExecCredentialError``.

    >>> read_exec_credential(b'{"kind": "ExecCredential", "status": {"token": "t"}}').token
    't'
    """
    try:
        status = _PRINTED.decode(printed).status
    except (ValueError, RecursionError) as error:
        raise ExecCredentialError(f"output of the credential plug-in: {field_message(error)}") from None
    # A certificate without its key does not authenticate.
    if not status.token and not (status.certificate and status.key):
        raise ExecCredentialError("output of the credential plug-in: neither a token nor a certificate with its key")
    return status
