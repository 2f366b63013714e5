"""One context of kubeconfigs: the server, its CA, and our credentials. Parses text, opens no files.

Only the selected context, cluster and user are validated; other entries may contain anything.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final, Generic, Literal, TypeVar

import msgspec

from protocol.field_errors import field_message
from protocol.kubernetes.exec_credentials import ExecPlugin
from protocol.kubernetes.impersonation import Impersonation
from protocol.kubernetes.proxies import ProxyError, checked_proxy
from protocol.yaml_text import read_yaml

LONGEST: Final = 16 * 1024 * 1024
"""Maximum length of a file in characters: it may contain hundreds of clusters with their certificates."""


class KubeconfigError(ValueError):
    """The kubeconfig is invalid; the message says which file, which part, and why."""


@dataclass(frozen=True, slots=True)
class KubeconfigFile:
    """The text of one file. Paths in it are relative to ``folder``; ``name`` is its name in messages."""

    text: str
    folder: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Pem:
    """A certificate or key: its text, or the path of its file. Both are empty if there is none."""

    text: str = ""
    path: str = ""

    def __bool__(self) -> bool:
        return bool(self.text or self.path)


@dataclass(frozen=True, slots=True)
class Login:
    """One context of a kubeconfig.

    ``server_name`` is the name in the server's certificate, if it differs from the URL's. ``basic`` is USER:PASSWORD.
    The token in the file ``token_path`` takes precedence over ``token``. ``proxy`` is a URL.
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
    proxy: str = ""
    basic: str = ""
    impersonation: Impersonation = field(default_factory=Impersonation)


def read_login(files: Sequence[KubeconfigFile], context: str = "") -> Login:
    """The named context, or the current one, of merged files. Raises ``KubeconfigError``.

    >>> contexts = "contexts: [{name: a, context: {cluster: c}}]"
    >>> clusters = "clusters: [{name: c, cluster: {server: 'https://c', certificate-authority: ca.crt}}]"
    >>> read_login([KubeconfigFile(contexts), KubeconfigFile(clusters, "/pki")], "a").authority.path
    '/pki/ca.crt'
    """
    parsed = [_parsed(file) for file in files]
    name = context or _current(parsed)
    if not name:
        raise KubeconfigError(f"{_prefix(files)}no current-context is set: specify a context")
    chosen = _chosen("context", files, parsed, name, _Context)
    # Like kubectl, use the whole entry from the first file that contains it.
    cluster = _chosen("cluster", files, parsed, chosen.content.cluster, _Cluster)
    # A context may have no user: then requests are anonymous.
    anonymous = _Chosen(_User(), "user", "", chosen.file)
    user = _chosen("user", files, parsed, chosen.content.user, _User) if chosen.content.user else anonymous
    return _login(chosen.content.namespace or "", cluster, user)


def current_context(files: Sequence[KubeconfigFile]) -> str:
    """The name of the current context of merged files; empty if they name none. Raises ``KubeconfigError``.

    >>> current_context([KubeconfigFile("{}"), KubeconfigFile("current-context: a")])
    'a'
    """
    return _current([_parsed(file) for file in files])


def context_names(files: Sequence[KubeconfigFile]) -> list[str]:
    """The names of all contexts, sorted. Raises ``KubeconfigError``.

    >>> context_names([KubeconfigFile("contexts: [{name: b}, {name: a}]"), KubeconfigFile("contexts: [{name: a}]")])
    ['a', 'b']
    """
    entries = (entry for file in files for entry in _parsed(file).contexts or ())
    return sorted({entry.name for entry in entries if entry is not None and entry.name})


class _Extension(msgspec.Struct, frozen=True):
    name: str | None = None
    extension: object = None


class _Cluster(msgspec.Struct, frozen=True):
    server: str
    authority: str | None = msgspec.field(default=None, name="certificate-authority")
    authority_data: str | None = msgspec.field(default=None, name="certificate-authority-data")
    insecure: bool | None = msgspec.field(default=None, name="insecure-skip-tls-verify")
    server_name: str | None = msgspec.field(default=None, name="tls-server-name")
    proxy: str | None = msgspec.field(default=None, name="proxy-url")
    extensions: list[_Extension] | None = None


class _Variable(msgspec.Struct, frozen=True):
    name: str
    value: str


class _Exec(msgspec.Struct, frozen=True):
    command: str
    api_version: str = msgspec.field(name="apiVersion")
    args: list[str] | None = None
    env: list[_Variable] | None = None
    hint: str | None = msgspec.field(default=None, name="installHint")
    interactive: Literal["Never", "IfAvailable", "Always"] | None = msgspec.field(default=None, name="interactiveMode")
    cluster: bool | None = msgspec.field(default=None, name="provideClusterInfo")


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
    password: str | None = None
    impersonate: str | None = msgspec.field(default=None, name="as")
    groups: list[str] | None = msgspec.field(default=None, name="as-groups")
    uid: str | None = msgspec.field(default=None, name="as-uid")
    extra: dict[str, list[str]] | None = msgspec.field(default=None, name="as-user-extra")


class _Context(msgspec.Struct, frozen=True):
    cluster: str
    user: str | None = None
    namespace: str | None = None


class _Named(msgspec.Struct, frozen=True):
    """One entry; its content is decoded only if it is selected."""

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
_CLUSTER_SETTINGS: Final = "client.authentication.k8s.io/exec"
"""The name of a cluster's extension with settings for credential plug-ins."""


@dataclass(frozen=True, slots=True)
class _Chosen(Generic[T]):
    """The selected entry of one kind, and its file."""

    content: T
    kind: str
    name: str
    file: KubeconfigFile

    @property
    def title(self) -> str:
        return f"{_prefix([self.file])}{self.kind} {self.name}"

    def path(self, path: str | None) -> str:
        """A path in this entry, resolved from its file's folder."""
        return str(PurePosixPath(self.file.folder) / path) if path else ""

    def pem(self, name: str, data: str | None, path: str | None) -> Pem:
        if not data:
            return Pem(path=self.path(path))
        try:
            # YAML may contain long base64 in several lines.
            return Pem(text=base64.b64decode("".join(data.split()), validate=True).decode())
        except ValueError:
            raise KubeconfigError(f"{self.title}: {name}: expected base64 of a PEM text") from None


def _parsed(file: KubeconfigFile) -> _Kubeconfig:
    try:
        content = read_yaml(file.text, LONGEST)
        return _Kubeconfig() if content is None else msgspec.convert(content, _Kubeconfig)
    except (ValueError, RecursionError) as error:
        raise KubeconfigError(f"{_prefix([file])}{field_message(error)}") from None


def _current(parsed: Sequence[_Kubeconfig]) -> str:
    return next((content.current for content in parsed if content.current), "")


def _prefix(files: Sequence[KubeconfigFile]) -> str:
    names = ", ".join(file.name for file in files if file.name)
    return f"{names}: " if names else ""


def _chosen(
    kind: str, files: Sequence[KubeconfigFile], parsed: Sequence[_Kubeconfig], name: str, form: type[T]
) -> _Chosen[T]:
    """The first entry with that name in any file; a null entry counts as empty."""
    for file, content in zip(files, parsed, strict=True):
        for entry in getattr(content, f"{kind}s") or ():
            if entry is None or entry.name != name:
                continue
            settings = getattr(entry, kind)
            try:
                return _Chosen(msgspec.convert({} if settings is None else settings, form), kind, name, file)
            except (ValueError, RecursionError) as error:
                raise KubeconfigError(f"{_prefix([file])}{kind} {name}: {field_message(error)}") from None
    raise KubeconfigError(f"{_prefix(files)}no {kind} named {name!r}")


def _login(namespace: str, cluster: _Chosen[_Cluster], user: _Chosen[_User]) -> Login:
    server, identity = cluster.content, user.content
    # Ignoring it would cause anonymous requests, whose refusals are hard to explain.
    if identity.auth_provider:
        remedy = "use a credential plug-in (exec), such as kubelogin or gke-gcloud-auth-plugin"
        raise KubeconfigError(f"{user.title}: auth-provider is not supported; {remedy}")
    try:
        proxy = checked_proxy(server.proxy, "proxy-url") if server.proxy else ""
    except ProxyError as error:
        raise KubeconfigError(f"{cluster.title}: {error}") from None
    certificate = user.pem("client-certificate-data", identity.certificate_data, identity.certificate)
    # As in kubectl, a plug-in runs only if the user has no other credential.
    has_credential = bool(identity.token or identity.token_file or identity.username or certificate)
    return Login(
        server=_server(cluster),
        authority=cluster.pem("certificate-authority-data", server.authority_data, server.authority),
        insecure=bool(server.insecure),
        server_name=server.server_name or "",
        token=identity.token or "",
        token_path=user.path(identity.token_file),
        certificate=certificate,
        key=user.pem("client-key-data", identity.key_data, identity.key),
        plugin=None if has_credential or identity.exec is None else _plugin(identity.exec, user, server),
        namespace=namespace,
        proxy=proxy,
        basic=f"{identity.username}:{identity.password or ''}"
        if identity.username and not (identity.token or identity.token_file)
        else "",
        impersonation=_impersonation(user),
    )


def _server(cluster: _Chosen[_Cluster]) -> str:
    """The server's URL; without a scheme it is HOST:PORT without TLS, like in kubectl."""
    server = cluster.content.server.strip().rstrip("/")
    if "://" not in server:
        server = f"http://{server}"
    if not server.startswith(_SCHEMES) or server in _SCHEMES:
        written = cluster.content.server[:80]  # may be any text
        raise KubeconfigError(f"{cluster.title}: server: expected http://… or https://…, got {written!r}")
    return server


def _impersonation(user: _Chosen[_User]) -> Impersonation:
    identity = user.content
    extra = tuple((key, tuple(values)) for key, values in (identity.extra or {}).items())
    impersonation = Impersonation(identity.impersonate or "", tuple(identity.groups or ()), identity.uid or "", extra)
    # The API server rejects groups without a user, but with an internal error that names no file.
    if impersonation and not impersonation.user:
        raise KubeconfigError(f"{user.title}: as-groups, as-uid and as-user-extra require a user in as")
    return impersonation


def _plugin(settings: _Exec, user: _Chosen[_User], cluster: _Cluster) -> ExecPlugin:
    return ExecPlugin(
        # A name without a slash is looked up in $PATH.
        user.path(settings.command) if "/" in settings.command else settings.command,
        tuple(settings.args or ()),
        tuple((variable.name, variable.value) for variable in settings.env or ()),
        settings.api_version,
        settings.hint or "",
        settings.interactive or "IfAvailable",
        dict(_plugin_cluster(cluster)) if settings.cluster else None,
    )


def _plugin_cluster(cluster: _Cluster) -> Iterator[tuple[str, object]]:
    """The fields of the ``Cluster`` passed to a plug-in, without the authority."""
    yield "server", cluster.server
    fields = {
        "tls-server-name": cluster.server_name,
        "insecure-skip-tls-verify": cluster.insecure,
        "proxy-url": cluster.proxy,
    }
    yield from ((name, value) for name, value in fields.items() if value)
    settings = (extension.extension for extension in cluster.extensions or () if extension.name == _CLUSTER_SETTINGS)
    yield from (("config", extension) for extension in settings)
