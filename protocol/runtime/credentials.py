"""Address of the Kubernetes API, and credentials: from kubeconfigs, or from the pod that this process runs in.

- CA and certificate files are checked for changes at each new connection.
- Credential plug-ins, proxies and impersonation are only for interactive commands (``for_command``). A service rejects
  them with an error: its client is minimal, and starts no programs.
"""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import tempfile
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from protocol.kubernetes.exec_credentials import ExecCredential, ExecCredentialError, ExecPlugin, read_exec_credential
from protocol.kubernetes.impersonation import Impersonation
from protocol.kubernetes.kubeconfig import KubeconfigError, KubeconfigFile, Login, Pem, read_login
from protocol.kubernetes.proxies import ProxyError, proxy_for
from protocol.kubernetes.timestamps import parse_timestamp
from protocol.runtime.clock import Clock
from protocol.runtime.tls_files import FollowedTls, TlsFilesError, TlsParts, following
from protocol.runtime.trust import trusting, verifying_like_kubectl
from protocol.units import Instant, Seconds

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_FILE: Final = "token"  # noqa: S105 - the name of a file
TOKEN_AGE: Final = Seconds(60.0)
PLUGIN_DEADLINE: Final = Seconds(60.0)

EARLY: Final = Seconds(30.0)
"""Request a new token from a plug-in this long before the current one expires."""


NOBODY_ELSE: Final = Impersonation()


class CredentialsError(ValueError):
    """The configured credentials are unusable; the message says which file and field."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A server's URL, its TLS context, and the token to send (None if there is none).

    ``tls`` may contain a client certificate. ``headers`` are sent with each request; ``proxy`` is the URL of a proxy,
    empty for a direct connection.
    """

    server: str
    tls: ssl.SSLContext | bool
    token: Callable[[], str | None]
    headers: Sequence[tuple[str, str]] = ()
    proxy: str = ""


def from_pod(environment: Mapping[str, str], clock: Clock, folder: Path = SERVICE_ACCOUNT) -> Credentials:
    """The service account of this process's pod. Raises ``CredentialsError`` outside of a cluster."""
    # Kubernetes sets both in every container.
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise CredentialsError("not in a cluster (KUBERNETES_SERVICE_HOST is not set): specify a kubeconfig")
    # A URL needs brackets around an IPv6 address.
    address = f"[{host}]" if ":" in host else host
    login = Login(f"https://{address}:{port}", authority=Pem(path="ca.crt"), token_path=TOKEN_FILE)
    return _credentials(login, folder, clock)


def from_kubeconfig(path: Path, clock: Clock, *, context: str = "") -> Credentials:
    """A context (empty: the current one) of a service's kubeconfig. Raises ``CredentialsError``."""
    login = login_of([path], context)
    unsupported = {
        "exec: services do not run credential plug-ins; use a token file or a certificate": login.plugin,
        "proxy-url: services do not use proxies": login.proxy,
        "as: services do not impersonate": login.impersonation,
        "username: services need a token or a certificate": login.basic,
    }
    # Reject them instead of ignoring them: the service would run as a different user than its kubeconfig says.
    for why, setting in unsupported.items():
        if setting:
            raise CredentialsError(f"{path}: {why}")
    return _credentials(login, Path(), clock)


def for_command(
    login: Login, clock: Clock, impersonation: Impersonation = NOBODY_ELSE, environment: Mapping[str, str] = os.environ
) -> Credentials:
    """The credentials of an interactive command; runs credential plug-ins. Raises ``CredentialsError``.

    Like kubectl, it uses the proxy in ``environment``. ``impersonation`` takes precedence over the kubeconfig.
    """
    user = impersonation.over(login.impersonation)
    # The API server rejects groups without a user, but with an internal error that names no flag.
    if user and not user.user:
        raise CredentialsError("--as-group requires --as")
    headers = list(user.headers())
    if login.basic:
        headers.append(("Authorization", f"Basic {b64encode(login.basic.encode()).decode()}"))
    try:
        proxy = login.proxy or proxy_for(login.server, environment)
    except ProxyError as error:
        raise CredentialsError(str(error)) from None
    return replace(_credentials(login, Path(), clock), headers=headers, proxy=proxy)


def read_kubeconfigs(paths: Sequence[Path]) -> list[KubeconfigFile]:
    """Read kubeconfig files. Raises ``CredentialsError``."""
    files = []
    for path in paths:
        try:
            files.append(KubeconfigFile(path.read_text("utf-8"), str(path.parent), str(path)))
        except (OSError, UnicodeDecodeError) as error:
            raise CredentialsError(f"{path}: {getattr(error, 'strerror', error)}") from None
    return files


def login_of(paths: Sequence[Path], context: str = "") -> Login:
    """A context (empty: the current one) of merged kubeconfigs. Raises ``CredentialsError``."""
    try:
        return read_login(read_kubeconfigs(paths), context)
    except KubeconfigError as error:
        raise CredentialsError(str(error)) from None


class FileToken:
    """A token in a file, reloaded every ``TOKEN_AGE``; like in kubectl, ``first`` until the file can be read.

    Raises ``CredentialsError`` if the file was never readable and there is no ``first``.
    """

    def __init__(self, path: Path, clock: Clock, first: str = "") -> None:
        self._path = path
        self._clock = clock
        self._token = first or None
        self._read_at = Instant(float("-inf"))

    def __call__(self) -> str:
        """The token; the last one if the file cannot be read now."""
        # Projected tokens are rotated on disk, and overlap for much longer than a minute.
        if self._token is None or self._clock.now() - self._read_at >= TOKEN_AGE:
            try:
                # An empty file is just being written: keep the last token until the next call.
                if read := self._path.read_text().strip():
                    self._token, self._read_at = read, self._clock.now()
            except (OSError, UnicodeDecodeError) as error:
                # The last token may still be valid when the file is back.
                if self._token is None:
                    raise CredentialsError(f"{self._path}: {getattr(error, 'strerror', error)}") from None
        if not self._token:
            raise CredentialsError(f"{self._path}: the file is empty")
        return self._token


class PluginToken:
    """The token printed by a plug-in, which runs again shortly before the token expires."""

    def __init__(self, ask: Callable[[], ExecCredential], first: ExecCredential, clock: Clock) -> None:
        self._ask = ask
        self._credential = first
        self._clock = clock

    def __call__(self) -> str | None:
        """The current token. Raises ``CredentialsError`` if a new one is due and the plug-in fails."""
        expires = parse_timestamp(self._credential.expires)
        # Use the wall clock, because the plug-in prints a date.
        if expires is not None and self._clock.wall() >= expires - EARLY:
            self._credential = self._ask()
        return self._credential.token or None


def run_plugin(plugin: ExecPlugin, authority: str = "") -> ExecCredential:
    """Run the plug-in like kubectl does. Raises ``CredentialsError``."""
    try:
        is_interactive = plugin.may_ask(is_terminal=sys.stdin is not None and sys.stdin.isatty())
        request = plugin.request(is_interactive=is_interactive, authority=authority)
        done = subprocess.run(
            [plugin.command, *plugin.arguments],
            stdin=None if is_interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=True,
            timeout=None if is_interactive else PLUGIN_DEADLINE,  # a person may be logging in
            env={**os.environ, **dict(plugin.environment), "KUBERNETES_EXEC_INFO": request},
        )
        return read_exec_credential(done.stdout)
    except (OSError, subprocess.SubprocessError, ExecCredentialError) as error:
        hint = f" ({plugin.install_hint})" if plugin.install_hint and isinstance(error, FileNotFoundError) else ""
        raise CredentialsError(f"the credential plug-in {plugin.command!r} failed: {error}{hint}") from None


def _credentials(login: Login, folder: Path, clock: Clock) -> Credentials:
    token: Callable[[], str | None] = lambda: login.token or None  # noqa: E731 - one of several callables
    if (plugin := login.plugin) is not None:
        authority = _read(login.authority, folder) if plugin.cluster is not None else ""
        credential = run_plugin(plugin, authority)
        token = PluginToken(lambda: run_plugin(plugin, authority), credential, clock)
        # A plug-in may print a certificate instead of, or in addition to, a token.
        if credential.certificate:
            login = replace(login, certificate=Pem(credential.certificate), key=Pem(credential.key or ""))
    # Like in kubectl, a token file takes precedence over the token in the kubeconfig.
    elif login.token_path:
        token = FileToken(folder / login.token_path, clock, login.token)
    return Credentials(login.server, _tls(login, folder), token)


def _tls(login: Login, folder: Path) -> ssl.SSLContext | bool:
    # Plain HTTP needs no context; clients take True as their default.
    if login.server.startswith("http://"):
        return True
    # Create it once here, so that invalid files are reported at startup.
    first, parts = _read_context(login, folder), TlsParts(*_paths(login, folder))
    if not parts.paths:
        return first

    def create(_: TlsParts) -> ssl.SSLContext:
        try:
            return _read_context(login, folder)
        except CredentialsError as error:
            raise TlsFilesError(str(error)) from None

    return following(FollowedTls("kubernetes-api", parts, create), ssl.PROTOCOL_TLS_CLIENT)


def _paths(login: Login, folder: Path) -> list[Path | None]:
    pems = (login.certificate, login.key, login.authority)
    return [folder / pem.path if pem and pem.path else None for pem in pems]


def _read_context(login: Login, folder: Path) -> ssl.SSLContext:
    authority = _read(login.authority, folder)
    try:
        context = _context(authority, login.server_name)
        if login.insecure:
            # The order matters: ``verify_mode`` cannot be NONE while the host name is checked.
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
    except (ssl.SSLError, TypeError, ValueError) as error:  # TypeError: it is not ASCII
        raise CredentialsError(f"certificate-authority: {getattr(error, 'reason', None) or error}") from None
    if login.certificate and login.key:
        _load_certificate(context, _read(login.certificate, folder), _read(login.key, folder))
    return context


class _NamedServer(ssl.SSLContext):
    """Requests and verifies the certificate of ``server_name`` instead of the URL's host (``tls-server-name``).

    asyncio clients create connections with ``wrap_bio``.
    """

    server_name: str

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *_: Any, **__: Any) -> ssl.SSLObject:
        return super().wrap_bio(incoming, outgoing, server_hostname=self.server_name)


def _context(authority: str, server_name: str) -> ssl.SSLContext:
    if not server_name:
        return trusting(authority)
    context = _NamedServer(ssl.PROTOCOL_TLS_CLIENT)
    verifying_like_kubectl(context)
    context.server_name = server_name
    if authority:
        # CAs in the kubeconfig replace the system's.
        context.load_verify_locations(cadata=authority)
    else:
        context.load_default_certs()
    return context


def _read(pem: Pem, folder: Path) -> str:
    if not pem.path:
        return pem.text
    path = folder / pem.path
    try:
        content = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CredentialsError(f"{path}: {getattr(error, 'strerror', error)}") from None
    if not content.strip():  # without a CA, the context would trust the system's
        raise CredentialsError(f"{path}: the file is empty")
    return content


def _load_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    # Python's ssl loads a key only from a file; this one has mode 0600.
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(f"{certificate}\n{key}")
        file.flush()
        try:
            context.load_cert_chain(file.name)
        except ssl.SSLError as error:
            raise CredentialsError(f"client-certificate and client-key: {error.reason or error}") from None
