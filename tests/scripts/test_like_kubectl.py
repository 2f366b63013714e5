"""The same kubeconfigs, flags and variables lead kubectl and our commands to the same requests."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from protocol.kubernetes.api import ApiUnknownError
from scripts.autoscale.clusters import ClusterFlags, find_cluster
from tests.scheduler_plugin.certificates import files

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")

PROBE = "/api/v1/namespaces/probe"
_SHOWN = ("authorization", "impersonate-")


class Recorder(ThreadingHTTPServer):
    """An API server with an untrusted certificate, or a proxy without TLS; it records requests."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Keep)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.requests: list[tuple[str, list[tuple[str, str]]]] = []
        self.place = f"127.0.0.1:{self.server_address[1]}"


class _Keep(BaseHTTPRequestHandler):
    server: Recorder

    def _keep(self) -> None:
        shown = [(name.lower(), value) for name, value in self.headers.items() if name.lower().startswith(_SHOWN)]
        self.server.requests.append((self.requestline.rsplit(" ", 1)[0], sorted(shown)))
        self.send_response(403 if self.command == "CONNECT" else 200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_GET = do_CONNECT = _keep  # noqa: N815 - the names that the base class calls

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def served(server: Recorder) -> Iterator[Recorder]:
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorder]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*files(tmp_path_factory.mktemp("api"), "api"))
    with served(Recorder(tls)) as server:
        yield server


@pytest.fixture(scope="module")
def proxy() -> Iterator[Recorder]:
    with served(Recorder()) as server:
        yield server


def taken(*servers: Recorder) -> tuple[str, list[tuple[str, str]]]:
    """The first request for the probe since the last time, directly or by a tunnel."""
    asked = [each for server in servers for each in server.requests]
    for server in servers:
        server.requests = []
    return next(each for each in asked if PROBE in each[0] or each[0].startswith("CONNECT "))


def config(
    server: str, user: Mapping[str, Any] | None = None, proxy_url: str | None = None, **cluster: Any
) -> dict[str, Any]:
    if proxy_url is not None:
        cluster["proxy-url"] = proxy_url
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, "insecure-skip-tls-verify": True, **cluster}}],
        "users": [{"name": "u", "user": dict(user or {})}],
    }


PLUGIN = """#!/bin/sh
echo "$KUBERNETES_EXEC_INFO" >> "$(dirname "$0")/asked"
echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "of-plugin"}}'
"""
EXEC = {"apiVersion": "client.authentication.k8s.io/v1", "command": "bin/plugin", "interactiveMode": "IfAvailable"}

Case = tuple[Sequence[Mapping[str, Any]], ClusterFlags, Mapping[str, str]]


def cases(place: str, proxy: str) -> dict[str, Case]:
    here, away, plain, none = f"https://{place}", "http://api.invalid", f"http://{proxy}", ClusterFlags()
    first = {**config(here, {"token": "first"}), "current-context": ""}
    second = {**config(away, {"token": "second"}), "users": [{"name": "u", "user": {"token": "second"}}]}
    extra = {"as": "eve", "as-groups": ["b", "a"], "as-uid": "7", "as-user-extra": {"example.org/x%": ["1", "2"]}}
    return {
        "a token": ([config(here, {"token": "t"})], none, {}),
        "a token file": ([config(here, {"tokenFile": "token"})], none, {}),
        "a token beside its file": ([config(here, {"token": "t", "tokenFile": "token"})], none, {}),
        "a token beside a missing file": ([config(here, {"token": "t", "tokenFile": "gone"})], none, {}),
        "a password": ([config(here, {"username": "u", "password": "p:ä"})], none, {}),
        "several files": ([first, second], none, {}),
        "a plug-in beside the kubeconfig": ([config(here, {"exec": EXEC})], none, {}),
        "a plug-in and a token": ([config(here, {"exec": EXEC, "token": "t"})], none, {}),
        "impersonation": ([config(here, {"token": "t", **extra})], none, {}),
        "--as": ([config(here, {"token": "t"})], ClusterFlags(user="eve", groups=("b", "a")), {}),
        "--as over as": ([config(here, {"token": "t", **extra})], ClusterFlags(user="bob"), {}),
        "a server without a scheme": ([config(proxy, {"token": "t"})], none, {}),
        "proxy-url": ([config(away, {"token": "t"}, proxy_url=plain)], none, {}),
        "proxy-url before the variable": (
            [config(away, proxy_url=plain)],
            none,
            {"HTTP_PROXY": "http://127.0.0.1:1"},
        ),
        "HTTP_PROXY": ([config(away)], none, {"HTTP_PROXY": plain}),
        "http_proxy without a scheme": ([config(away)], none, {"http_proxy": proxy}),
        "HTTPS_PROXY": ([config("https://api.invalid")], none, {"HTTPS_PROXY": plain}),
        "no proxy on loopback": ([config(here, {"token": "t"})], none, {"HTTPS_PROXY": "http://127.0.0.1:1"}),
        "a server without TLS": ([config(plain, {"token": "t", "exec": EXEC, **extra})], none, {}),
        "ALL_PROXY": ([config(here, {"token": "t"})], none, {"ALL_PROXY": "socks5://127.0.0.1:1"}),
    }


def kubectl(*flags: str) -> None:
    command = ["kubectl", *flags, "get", "--raw", PROBE]
    subprocess.run(command, capture_output=True, timeout=30, check=False, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("name", cases("", ""))
async def test_kubectl_sends_the_same(
    name: str, api: Recorder, proxy: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents, flags, variables = cases(api.place, proxy.place)[name]
    monkeypatch.setenv("AUTOSCALE_HOME", str(tmp_path / "clusters"))
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, written(tmp_path, contents))))
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    whom = [*(["--as", flags.user] if flags.user else []), *(f"--as-group={group}" for group in flags.groups)]
    kubectl(*whom)
    expected = taken(api, proxy)
    async with find_cluster(flags).client() as client:
        with suppress(ApiUnknownError):
            await client.raw_get(PROBE)
    assert taken(api, proxy) == expected


def written(folder: Path, contents: Sequence[Mapping[str, Any]]) -> Iterator[Path]:
    """Kubeconfigs in separate folders, each with a token and a plug-in, and one that does not exist."""
    yield folder / "missing"
    for number, content in enumerate(contents):
        place = folder / str(number)
        (place / "bin").mkdir(parents=True)
        (place / "token").write_text("of-file\n")
        (place / "bin" / "plugin").write_text(PLUGIN)
        (place / "bin" / "plugin").chmod(0o755)
        (place / "config").write_text(json.dumps(content))
        yield place / "config"


async def test_plugin_is_told_what_kubectl_tells_it(
    api: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``provideClusterInfo`` and the extension that cloud providers set."""
    exec_ = {**EXEC, "provideClusterInfo": True, "env": [{"name": "REGION", "value": "eu"}]}
    settings = [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "z"}}]
    content = config(f"https://{api.place}", {"exec": exec_}, extensions=settings)
    _, path = written(tmp_path, [content])
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.setenv("AUTOSCALE_HOME", str(tmp_path / "clusters"))
    kubectl()
    find_cluster(ClusterFlags()).credentials()
    *_, kubectls, ours = map(json.loads, (path.parent / "bin" / "asked").read_text().split())
    assert ours == kubectls
