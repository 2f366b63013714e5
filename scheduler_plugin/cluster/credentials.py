"""Where the Kubernetes API is and who we are to it: from a kubeconfig file, or from the pod we run in.

Rules that hold here:

- Tokens in files are read again once a minute: projected tokens change on disk.
- What this reader does not support (plug-ins that run programs) is refused by name, never ignored.
"""

from __future__ import annotations

import base64
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import yaml

from protocol.field_errors import field_message
from protocol.units import Instant, Seconds

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_AGE: Final = Seconds(60.0)


class CredentialsError(ValueError):
    """The API cannot be reached with what is configured; the message says which file and field."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A server's URL, how to trust it, and the token to show (None: the client certificate in ``tls`` speaks)."""

    server: str
    tls: ssl.SSLContext | bool
    token: Callable[[], str | None]


class _Named(msgspec.Struct, frozen=True):
    name: str


N = TypeVar("N", bound=_Named)


class _Cluster(msgspec.Struct, frozen=True, rename="kebab"):
    server: str
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool = False


class _User(msgspec.Struct, frozen=True):
    token: str | None = None
    token_file: str | None = msgspec.field(default=None, name="tokenFile")
    certificate: str | None = msgspec.field(default=None, name="client-certificate")
    certificate_data: str | None = msgspec.field(default=None, name="client-certificate-data")
    key: str | None = msgspec.field(default=None, name="client-key")
    key_data: str | None = msgspec.field(default=None, name="client-key-data")
    exec: dict[str, object] | None = None
    auth_provider: dict[str, object] | None = msgspec.field(default=None, name="auth-provider")


class _Context(msgspec.Struct, frozen=True):
    cluster: str
    user: str = ""


class _ClusterEntry(_Named, frozen=True):
    cluster: _Cluster


class _UserEntry(_Named, frozen=True):
    user: _User


class _ContextEntry(_Named, frozen=True):
    context: _Context


class _Kubeconfig(msgspec.Struct, frozen=True):
    clusters: list[_ClusterEntry]
    contexts: list[_ContextEntry]
    current: str = msgspec.field(name="current-context")
    users: list[_UserEntry] | None = None


def from_pod(environment: Mapping[str, str], now: Callable[[], Instant]) -> Credentials:
    """The service account of the pod we run in. Raises ``CredentialsError`` outside of a cluster."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise CredentialsError("not in a cluster (KUBERNETES_SERVICE_HOST is not set): say --kubeconfig FILE")
    address = f"[{host}]" if ":" in host else host
    token = FileToken(SERVICE_ACCOUNT / "token", now)
    return Credentials(f"https://{address}:{port}", _trust(SERVICE_ACCOUNT / "ca.crt"), token)


def from_kubeconfig(path: Path, now: Callable[[], Instant]) -> Credentials:
    """The current context of a kubeconfig file. Raises ``CredentialsError``."""
    try:
        found = msgspec.convert(yaml.safe_load(path.read_text()), _Kubeconfig)
    except OSError as error:
        raise CredentialsError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise CredentialsError(f"{path}: {field_message(error)}") from None
    context = _named(path, "context", found.contexts, found.current).context
    cluster = _named(path, "cluster", found.clusters, context.cluster).cluster
    user = _named(path, "user", found.users or [], context.user).user if context.user else _User()
    if user.exec or user.auth_provider:
        raise CredentialsError(f"{path}: user {context.user}: exec and auth-provider plug-ins are not supported")
    folder = path.parent
    token: Callable[[], str | None] = lambda: user.token  # noqa: E731 - one expression of many that give a token
    if user.token is None and user.token_file is not None:
        token = FileToken(folder / user.token_file, now)
    return Credentials(cluster.server.rstrip("/"), _tls(folder, cluster, user), token)


class FileToken:
    """A token in a file, read again once it is ``TOKEN_AGE`` old. Raises ``CredentialsError`` if it never was there."""

    def __init__(self, path: Path, now: Callable[[], Instant]) -> None:
        self._path = path
        self._now = now
        self._token: str | None = None
        self._read_at = Instant(float("-inf"))

    def __call__(self) -> str:
        """The token; the last one where the file cannot be read just now."""
        if self._token is None or self._now() - self._read_at >= TOKEN_AGE:
            try:
                self._token = self._path.read_text().strip()
                self._read_at = self._now()
            except OSError as error:
                if self._token is None:
                    raise CredentialsError(f"{self._path}: {error.strerror}") from None
        return self._token


def _named(path: Path, kind: str, entries: list[N], name: str) -> N:
    for entry in entries:
        if entry.name == name:
            return entry
    raise CredentialsError(f"{path}: there is no {kind} named {name!r}")


def _tls(folder: Path, cluster: _Cluster, user: _User) -> ssl.SSLContext | bool:
    if cluster.server.startswith("http://"):
        return True
    context = ssl.create_default_context()
    if cluster.insecure_skip_tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif cluster.certificate_authority_data:
        context = ssl.create_default_context(cadata=base64.b64decode(cluster.certificate_authority_data).decode())
    elif cluster.certificate_authority:
        context = _trust(folder / cluster.certificate_authority)
    _show_certificate(context, folder, user)
    return context


def _trust(authority: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(authority))
    except OSError as error:
        raise CredentialsError(f"{authority}: {error.strerror}") from None


def _show_certificate(context: ssl.SSLContext, folder: Path, user: _User) -> None:
    if user.certificate and user.key:
        context.load_cert_chain(folder / user.certificate, folder / user.key)
    elif user.certificate_data and user.key_data:
        pair = base64.b64decode(user.certificate_data) + b"\n" + base64.b64decode(user.key_data)
        with tempfile.NamedTemporaryFile(suffix=".pem") as file:  # mode 0600; OpenSSL reads from files only
            file.write(pair)
            file.flush()
            context.load_cert_chain(file.name)
