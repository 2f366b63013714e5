"""Credentials for the Kubernetes API: kubeconfigs in all their forms, or the pod's service account."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.kube.client import client_from_kubeconfig
from protocol.kubernetes.api import ApiCall, ApiUnknownError
from protocol.kubernetes.exec_credentials import ExecCredentialError, read_exec_credential
from protocol.kubernetes.kubeconfig import KubeconfigError, KubeconfigFile, Login, read_login
from protocol.kubernetes.timestamps import timestamp
from protocol.runtime.credentials import (
    Credentials,
    CredentialsError,
    FileToken,
    for_command,
    from_kubeconfig,
    from_pod,
    login_of,
)
from protocol.runtime.kubernetes.direct_api import DirectApi
from protocol.runtime.kubernetes.pool import ConnectionPool
from protocol.runtime.tls_files import FollowingContext
from protocol.units import Seconds
from tests.fake_clock import BEGAN, FakeClock
from tests.scheduler_plugin.certificates import files, pair


def b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def written(folder: Path, cluster: dict[str, Any], user: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A kubeconfig with this cluster and user."""
    context = {"cluster": "c"} if user is None else {"cluster": "c", "user": "u"}
    content = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": context}, {"name": "y", "context": {"cluster": "other"}}],
        "clusters": [
            {"name": "c", "cluster": {"server": "https://api:6443/", **cluster}},
            {"name": "other", "cluster": {"server": "http://other"}},
        ],
        "users": [] if user is None else [{"name": "u", "user": user}],
        **changes,
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(content))
    return path


def found(folder: Path, cluster: dict[str, Any], user: dict[str, Any] | None = None, **changes: Any) -> Credentials:
    return from_kubeconfig(written(folder, cluster, user, **changes), FakeClock())


def person(path: Path) -> Credentials:
    return for_command(login_of([path]), FakeClock(), environment={})


def test_a_token_and_an_authority_given_as_data(tmp_path: Path) -> None:
    it = found(tmp_path, {"certificate-authority-data": b64(pair("ca")[0])}, {"token": "secret"})
    assert (it.server, it.token()) == ("https://api:6443", "secret")
    assert isinstance(it.tls, ssl.SSLContext)
    assert (it.tls.verify_mode, len(it.tls.get_ca_certs())) == (ssl.CERT_REQUIRED, 1)


def test_files_are_found_beside_the_kubeconfig(tmp_path: Path) -> None:
    certificate, key = files(tmp_path, "client")
    (tmp_path / "token").write_text("from-file\n")
    user = {"client-certificate": certificate.name, "client-key": key.name, "tokenFile": "token"}
    assert found(tmp_path, {"certificate-authority": certificate.name}, user).token() == "from-file"


def test_relative_kubeconfig_finds_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service is started with ``--kubeconfig conf/kubeconfig``; the paths in it start from ``conf``."""
    (tmp_path / "conf").mkdir()
    certificate, _ = files(tmp_path / "conf", "client")
    (tmp_path / "conf/token").write_text("from-file")
    written(tmp_path / "conf", {"certificate-authority": certificate.name}, {"tokenFile": "token"})
    monkeypatch.chdir(tmp_path)
    assert from_kubeconfig(Path("conf/kubeconfig"), FakeClock()).token() == "from-file"


def test_client_certificate_data_needs_no_token(tmp_path: Path) -> None:
    certificate, key = pair("client")
    user = {"client-certificate-data": b64(certificate), "client-key-data": b64(key)}
    assert found(tmp_path, {}, user).token() is None


def test_verification_is_skipped_only_where_it_says_so(tmp_path: Path) -> None:
    it = found(tmp_path, {"insecure-skip-tls-verify": True})
    assert isinstance(it.tls, ssl.SSLContext)
    assert it.tls.verify_mode is ssl.CERT_NONE
    assert found(tmp_path, {"server": "http://127.0.0.1:6443"}).tls is True


def test_another_context_is_taken_by_name(tmp_path: Path) -> None:
    assert from_kubeconfig(written(tmp_path, {}), FakeClock(), context="y").server == "http://other"


@pytest.mark.parametrize(
    ("cluster", "user", "changes", "said"),
    [
        ({}, {}, {"current-context": "z"}, "no context named 'z'"),
        ({}, {}, {"current-context": ""}, "no current-context is set: specify a context"),
        ({}, {}, {"clusters": []}, "no cluster named 'c'"),
        ({}, {}, {"users": None}, "no user named 'u'"),
        ({}, {}, {"contexts": 3}, "contexts: expected array | null, got int"),
        ({"server": "ftp://api"}, {}, {}, "cluster c: server: expected http://… or https://…, got 'ftp://api'"),
        ({"proxy-url": "http://proxy"}, {}, {}, "kubeconfig: proxy-url: services do not use proxies"),
        ({"proxy-url": "ftp://proxy"}, {}, {}, "cluster c: proxy-url: expected a proxy as http://HOST:PORT"),
        ({"certificate-authority-data": "?"}, {}, {}, "certificate-authority-data: expected base64 of a PEM text"),
        ({"certificate-authority-data": b64(b"x")}, {}, {}, "certificate-authority: "),
        ({"certificate-authority": "absent"}, {}, {}, "absent: No such file or directory"),
        ({"certificate-authority-data": b64("Autorität".encode())}, {}, {}, "certificate-authority: "),
        (
            {},
            {"auth-provider": {"name": "gcp"}},
            {},
            "user u: auth-provider is not supported; use a credential plug-in (exec)",
        ),
        ({}, {"username": "root"}, {}, "username: services need a token or a certificate"),
        ({}, {"as": "root"}, {}, "as: services do not impersonate"),
        ({}, {"as-groups": ["ops"]}, {}, "user u: as-groups, as-uid and as-user-extra require a user in as"),
        ({}, {"client-certificate-data": b64(b"x"), "client-key-data": b64(b"y")}, {}, "client-certificate and client"),
        (
            {},
            {"exec": {"command": "login", "apiVersion": "v1"}},
            {},
            "kubeconfig: exec: services do not run credential plug-ins",
        ),
        ({}, {"exec": {"command": "login"}}, {}, "apiVersion: expected a value, the field is missing"),
    ],
)
def test_what_cannot_be_used_is_named(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(CredentialsError) as refused:
        found(tmp_path, cluster, user, **changes)
    assert said in str(refused.value)


@pytest.mark.parametrize("name", ["", "api.internal"])
def test_partial_ca_file_never_trusts_all(tmp_path: Path, name: str) -> None:
    path = tmp_path / "ca.crt"
    path.write_bytes(pair("ca")[0])
    it = found(tmp_path, {"certificate-authority": "ca.crt"} | ({"tls-server-name": name} if name else {}))
    assert isinstance(it.tls, FollowingContext)
    first = it.tls.followed.value()
    for content in (b"", b" \n", "Autorität".encode()):
        path.write_bytes(content)
        assert it.tls.followed.value() is first
        with pytest.raises(CredentialsError, match=r"ca\.crt: the file is empty|certificate-authority: "):
            from_kubeconfig(tmp_path / "kubeconfig", FakeClock())
    assert it.tls.followed.refusals == 3


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="kubeconfig: No such file or directory"):
        from_kubeconfig(tmp_path / "kubeconfig", FakeClock())
    (tmp_path / "kubeconfig").write_text("a: [")
    with pytest.raises(CredentialsError, match="kubeconfig: invalid YAML: "):
        from_kubeconfig(tmp_path / "kubeconfig", FakeClock())
    (tmp_path / "kubeconfig").write_bytes(b"\xff")
    with pytest.raises(CredentialsError, match="kubeconfig: "):
        from_kubeconfig(tmp_path / "kubeconfig", FakeClock())


def plugin(tmp_path: Path, *answers: dict[str, object]) -> dict[str, object]:
    """A credential plug-in that gives one answer after the other, and fails when there are none left."""
    for number, answer in enumerate(answers):
        (tmp_path / f"answer-{number}").write_text(json.dumps({"status": answer}))
    program = tmp_path / "plugin"
    program.write_text(
        "#!/bin/sh\nn=$(cat $STATE/count 2>/dev/null || echo 0)\necho $((n + 1)) > $STATE/count\n"
        'test "$1" = login && cat $STATE/answer-$n\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    state = [{"name": "STATE", "value": str(tmp_path)}]
    return {"apiVersion": "client.authentication.k8s.io/v1", "command": str(program), "args": ["login"], "env": state}


def test_exec_plugin_reruns_before_expiry(tmp_path: Path) -> None:
    clock = FakeClock(start=0.0)
    until = timestamp(BEGAN + 600)
    config = written(
        tmp_path,
        {"server": "http://api"},
        {"exec": plugin(tmp_path, {"token": "one", "expirationTimestamp": until}, {"token": "two"})},
    )
    it = for_command(login_of([config]), clock)
    assert it.token() == "one"
    clock._now = 569.0
    assert it.token() == "one"
    clock._now = 571.0
    assert (it.token(), it.token()) == ("two", "two")


def test_a_plug_in_may_give_a_certificate(tmp_path: Path) -> None:
    certificate, key = (part.decode() for part in pair("client"))
    answer: dict[str, object] = {"clientCertificateData": certificate, "clientKeyData": key}
    it = person(written(tmp_path, {}, {"exec": plugin(tmp_path, answer)}))
    assert it.token() is None


def test_failed_plugin_shows_install_hint(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="plugin' failed: "):
        person(written(tmp_path, {}, {"exec": plugin(tmp_path)}))
    missing = {"apiVersion": "v1", "command": "/absent", "installHint": "install it"}
    with pytest.raises(CredentialsError, match=r"'/absent' failed: .* \(install it\)"):
        person(written(tmp_path, {}, {"exec": missing}))


@pytest.mark.parametrize("printed", [b"", b"[]", b'{"status":{}}', b'{"status":{"clientKeyData":"k"}}'])
def test_empty_exec_credential_is_refused(printed: bytes) -> None:
    with pytest.raises(ExecCredentialError, match="output of the credential plug-in"):
        read_exec_credential(printed)


def login_in(text: str) -> Login:
    return read_login([KubeconfigFile(text)])


def test_a_token_goes_before_a_plug_in() -> None:
    login = login_in(
        "{current-context: x, contexts: [{name: x, context: {cluster: c, user: u, namespace: n}}],"
        "clusters: [{name: c, cluster: {server: 'https://a', tls-server-name: b}}],"
        "users: [{name: u, user: {tokenFile: t, exec: {command: p, apiVersion: v}}}]}"
    )
    assert (login.token_path, login.plugin, login.server_name, login.namespace) == ("t", None, "b", "n")


@pytest.mark.parametrize(
    "beside",
    [
        "contexts: [null, {name: x, context: {cluster: c}}], clusters: [{name: c, cluster: {server: 'https://a'}}]",
        "contexts: [{name: x, context: {cluster: c}}], clusters: [null, {name: c, cluster: {server: 'https://a'}}]",
        "contexts: [{name: x, context: {cluster: c, user: null}}, {name: y, context: null}],"
        "clusters: [{name: c, cluster: {server: 'https://a', insecure-skip-tls-verify: null}}, {name: d}]",
        "contexts: [{name: x, context: {cluster: c, user: u}}, {name: null, context: {cluster: 3}}],"
        "clusters: [{name: c, cluster: {server: 'https://a'}}, {name: d, cluster: {server: [3]}}],"
        "users: [null, {name: u, user: null}, {name: v, user: {exec: garbage}}]",
    ],
    ids=["a context", "a cluster", "what they hold", "a user, and garbage"],
)
def test_other_entries_may_be_garbage(beside: str) -> None:
    assert login_in(f"{{current-context: x, {beside}}}").server == "https://a"


def test_bad_chosen_entry_is_named() -> None:
    chosen = "current-context: x, contexts: [{name: x, context: {cluster: c}}]"
    with pytest.raises(KubeconfigError, match=r"^cluster c: .*server"):
        login_in(f"{{{chosen}, clusters: [{{name: c, cluster: null}}]}}")
    with pytest.raises(KubeconfigError, match=r"^context x: .*cluster"):
        login_in("{current-context: x, contexts: [{name: x}]}")
    with pytest.raises(KubeconfigError, match="no current-context is set"):
        login_in("{current-context: null}")


# The name in the server's certificate ------------------------------------------------------------------------------


@asynccontextmanager
async def api_of(folder: Path, host: str) -> AsyncIterator[tuple[int, list[str]]]:
    """A server with a certificate for ``host``, on a port of 127.0.0.1, and the names that it was asked for."""
    context, asked = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), []
    for path, content in zip((folder / "crt", folder / "key"), pair("api", host), strict=True):
        path.write_bytes(content)
    context.load_cert_chain(folder / "crt", folder / "key")
    context.sni_callback = lambda _, name, __: asked.append(name)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1], asked


async def test_clients_use_tls_server_name(tmp_path: Path) -> None:
    authority = b64(pair("api", "api.internal")[0])
    async with api_of(tmp_path, "api.internal") as (port, asked):
        cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority-data": authority}
        path = written(tmp_path, cluster | {"tls-server-name": "api.internal"})
        async with client_from_kubeconfig(path) as client:
            assert await client.raw_get("/") == b"{}"
        credentials = from_kubeconfig(path, FakeClock())
        async with ConnectionPool(credentials, 1) as pool:
            assert await DirectApi(pool, credentials.token, "test").call(ApiCall("GET", "/", Seconds(5.0))) == {}
        assert asked == ["api.internal", "api.internal"]
        async with client_from_kubeconfig(written(tmp_path, cluster | {"tls-server-name": "other"})) as client:
            with pytest.raises(ApiUnknownError, match="certificate is not valid for 'other'"):
                await client.raw_get("/")
        async with client_from_kubeconfig(written(tmp_path, cluster)) as client:
            with pytest.raises(ApiUnknownError, match=r"certificate is not valid for '127\.0\.0\.1'"):
                await client.raw_get("/")


def test_server_name_without_ca_uses_system_trust(tmp_path: Path) -> None:
    it = found(tmp_path, {"tls-server-name": "api.internal"})
    assert isinstance(it.tls, ssl.SSLContext)
    assert (it.tls.verify_mode, it.tls.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_certificates_may_be_written_on_many_lines() -> None:
    lines = base64.encodebytes(b"certificate " * 20).decode()
    login = login_in(
        yaml.safe_dump(
            {
                "current-context": "x",
                "contexts": [{"name": "x", "context": {"cluster": "c"}}],
                "clusters": [{"name": "c", "cluster": {"server": "https://a", "certificate-authority-data": lines}}],
            }
        )
    )
    assert login.authority.text == "certificate " * 20


def test_in_a_pod_the_service_account_speaks(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(pair("ca")[0])
    (tmp_path / "token").write_text("projected")
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
    it = from_pod(pod, FakeClock(), tmp_path)
    assert (it.server, it.token()) == ("https://10.0.0.1:6443", "projected")
    assert from_pod({"KUBERNETES_SERVICE_HOST": "fd00::1"}, FakeClock(), tmp_path).server == "https://[fd00::1]:443"


def test_outside_cluster_needs_kubeconfig() -> None:
    with pytest.raises(CredentialsError, match="specify a kubeconfig"):
        from_pod({}, FakeClock())


def test_token_file_is_reread_every_minute(tmp_path: Path) -> None:
    path, clock = tmp_path / "token", FakeClock(start=0.0)
    token = FileToken(path, clock)
    with pytest.raises(CredentialsError, match="token: No such file or directory"):
        token()
    either = FileToken(path, clock, "of the kubeconfig")
    assert either() == "of the kubeconfig"
    path.write_text(" \n")
    with pytest.raises(CredentialsError, match="token: the file is empty"):
        token()
    assert either() == "of the kubeconfig"
    path.write_text("old")
    assert either() == "old", "it was just being written"
    clock._now = 60.0
    seen = [token()]
    path.write_text("new")
    for moment in (119.0, 120.0):
        clock._now = moment
        seen.append(token())
    path.unlink()
    clock._now = 500.0
    seen.append(token())
    assert seen == ["old", "old", "new", "new"]
