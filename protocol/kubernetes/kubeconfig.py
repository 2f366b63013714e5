"""What a kubeconfig says about one context: the server, whom to trust, and who we are. Reads text, opens no files.

Rules that hold here:

- Exactly one way to prove who we are is taken, in kubectl's order: token, token file, client certificate, plug-in.
- Only the chosen context, cluster and user are read: what other entries hold is no concern of ours.
- What is not supported (``auth-provider``, passwords, proxies) is refused by name, never ignored.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from protocol.field_errors import field_message
from protocol.yaml_text import read_yaml


class KubeconfigError(ValueError):
    """The kubeconfig cannot be used; the message says which part and why."""


@dataclass(frozen=True, slots=True)
class Pem:
    """A certificate or key: its text, or the path of its file (relative to the kubeconfig). Both empty: none."""

    text: str = ""
    path: str = ""

    def __bool__(self) -> bool:
        return bool(self.text or self.path)


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """A program that prints an ``ExecCredential`` of ``api_version``."""

    command: str
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    api_version: str
    install_hint: str


@dataclass(frozen=True, slots=True)
class Login:
    """One context of a kubeconfig. ``token_path`` is relative to the kubeconfig; ``server_name`` is the one that the

    server's certificate is for, where it is not the URL's.
    """

    server: str
    authority: Pem = Pem()
    insecure: bool = False
    server_name: str = ""
    token: str = ""
    token_path: str = ""
    certificate: Pem = Pem()
    key: Pem = Pem()
    plugin: ExecPlugin | None = None
    namespace: str = ""


def parse_kubeconfig(text: str, context: str = "") -> Login:
    """The context of that name, or the current one. Raises ``KubeconfigError``.

    >>> login = parse_kubeconfig(\"\"\"
    ... current-context: here
    ... contexts: [{name: here, context: {cluster: c, user: u}}]
    ... clusters: [{name: c, cluster: {server: "https://10.0.0.1:6443/"}}]
    ... users: [{name: u, user: {token: secret}}]
    ... \"\"\")
    >>> login.server, login.token
    ('https://10.0.0.1:6443', 'secret')
    """
    try:
        found = msgspec.convert(read_yaml(text), _Kubeconfig)
    except (ValueError, RecursionError) as error:
        raise KubeconfigError(field_message(error)) from None
    name = context or found.current
    if not name:
        raise KubeconfigError("there is no current-context: name one")
    chosen = _chosen("context", found.contexts, name, _Context)
    cluster = _chosen("cluster", found.clusters, chosen.cluster, _Cluster)
    user = _chosen("user", found.users, chosen.user, _User) if chosen.user else _User()
    _refuse(cluster, user, chosen.user or "")
    return Login(
        server=_server(cluster, chosen.cluster),
        authority=_pem("certificate-authority-data", cluster.authority_data, cluster.authority),
        insecure=bool(cluster.insecure),
        server_name=cluster.server_name or "",
        token=user.token or "",
        token_path="" if user.token else user.token_file or "",
        certificate=_pem("client-certificate-data", user.certificate_data, user.certificate),
        key=_pem("client-key-data", user.key_data, user.key),
        plugin=_plugin(user),
        namespace=chosen.namespace or "",
    )


class _Cluster(msgspec.Struct, frozen=True):
    server: str
    authority: str | None = msgspec.field(default=None, name="certificate-authority")
    authority_data: str | None = msgspec.field(default=None, name="certificate-authority-data")
    insecure: bool | None = msgspec.field(default=None, name="insecure-skip-tls-verify")
    server_name: str | None = msgspec.field(default=None, name="tls-server-name")
    proxy: str | None = msgspec.field(default=None, name="proxy-url")


class _Variable(msgspec.Struct, frozen=True):
    name: str
    value: str


class _Exec(msgspec.Struct, frozen=True):
    command: str
    api_version: str = msgspec.field(name="apiVersion")
    args: list[str] | None = None
    env: list[_Variable] | None = None
    hint: str | None = msgspec.field(default=None, name="installHint")


class _User(msgspec.Struct, frozen=True):
    token: str | None = None
    token_file: str | None = msgspec.field(default=None, name="tokenFile")
    certificate: str | None = msgspec.field(default=None, name="client-certificate")
    certificate_data: str | None = msgspec.field(default=None, name="client-certificate-data")
    key: str | None = msgspec.field(default=None, name="client-key")
    key_data: str | None = msgspec.field(default=None, name="client-key-data")
    exec: _Exec | None = None
    auth_provider: dict[str, object] | None = msgspec.field(default=None, name="auth-provider")
    username: str | None = None
    impersonate: str | None = msgspec.field(default=None, name="as")


class _Context(msgspec.Struct, frozen=True):
    cluster: str
    user: str | None = None
    namespace: str | None = None


class _Named(msgspec.Struct, frozen=True):
    """One entry; what it holds is read only if it is chosen."""

    name: str | None = None
    cluster: object = None
    context: object = None
    user: object = None


class _Kubeconfig(msgspec.Struct, frozen=True):
    clusters: list[_Named | None] | None = None
    contexts: list[_Named | None] | None = None
    users: list[_Named | None] | None = None
    current: str | None = msgspec.field(default=None, name="current-context")


T = TypeVar("T")
_SCHEMES: Final = ("http://", "https://")


def _chosen(kind: str, entries: list[_Named | None] | None, name: str, form: type[T]) -> T:
    """What the entry of that name holds; nothing counts as an empty object."""
    entry = next((each for each in entries or () if each is not None and each.name == name), None)
    if entry is None:
        raise KubeconfigError(f"there is no {kind} named {name!r}")
    held = getattr(entry, kind)
    try:
        return msgspec.convert({} if held is None else held, form)
    except (ValueError, RecursionError) as error:
        raise KubeconfigError(f"{kind} {name}: {field_message(error)}") from None


def _refuse(cluster: _Cluster, user: _User, name: str) -> None:
    unsupported = {
        f"user {name}: auth-provider": user.auth_provider,
        f"user {name}: username": user.username,
        f"user {name}: as": user.impersonate,
        "cluster: proxy-url": cluster.proxy,
    }
    for what, given in unsupported.items():
        if given:
            raise KubeconfigError(f"{what} is not supported")


def _server(cluster: _Cluster, name: str) -> str:
    if not cluster.server.startswith(_SCHEMES):
        raise KubeconfigError(f"cluster {name}: server: expected http://… or https://…, got {cluster.server[:80]!r}")
    return cluster.server.rstrip("/")


def _pem(field: str, data: str | None, path: str | None) -> Pem:
    if not data:
        return Pem(path=path or "")
    try:
        return Pem(text=base64.b64decode("".join(data.split()), validate=True).decode())
    except (binascii.Error, ValueError):
        raise KubeconfigError(f"{field}: expected base64 of a PEM text") from None


def _plugin(user: _User) -> ExecPlugin | None:
    if user.exec is None or user.token or user.token_file:
        return None
    variables = tuple((each.name, each.value) for each in user.exec.env or ())
    return ExecPlugin(
        user.exec.command, tuple(user.exec.args or ()), variables, user.exec.api_version, user.exec.hint or ""
    )


@dataclass(frozen=True, slots=True)
class ExecCredential:
    """What a plug-in printed. ``expires`` is RFC 3339, empty where it does not expire."""

    token: str
    certificate: str
    key: str
    expires: str


class _ExecStatus(msgspec.Struct, frozen=True):
    token: str | None = None
    certificate: str | None = msgspec.field(default=None, name="clientCertificateData")
    key: str | None = msgspec.field(default=None, name="clientKeyData")
    expires: str | None = msgspec.field(default=None, name="expirationTimestamp")


class _ExecAnswer(msgspec.Struct, frozen=True):
    status: _ExecStatus


_EXEC_ANSWER: Final = msgspec.json.Decoder(_ExecAnswer)


def read_exec_credential(printed: bytes) -> ExecCredential:
    """An ``ExecCredential`` of ``client.authentication.k8s.io``. Raises ``KubeconfigError``.

    >>> read_exec_credential(b'{"kind": "ExecCredential", "status": {"token": "t"}}').token
    't'
    """
    try:
        found = _EXEC_ANSWER.decode(printed).status
    except (ValueError, RecursionError) as error:
        raise KubeconfigError(f"the credential plug-in's answer: {field_message(error)}") from None
    if not found.token and not (found.certificate and found.key):
        raise KubeconfigError("the credential plug-in's answer has neither a token nor a certificate with its key")
    return ExecCredential(found.token or "", found.certificate or "", found.key or "", found.expires or "")
