"""Kubeconfigs as kubectl reads them: several files, whose paths, who one is, and by which proxy."""

from __future__ import annotations

import base64
import json

import pytest

from protocol.kubernetes.exec_credentials import ExecCredentialError
from protocol.kubernetes.impersonation import Impersonation
from protocol.kubernetes.kubeconfig import (
    KubeconfigError,
    KubeconfigFile,
    Login,
    context_names,
    current_context,
    read_login,
)
from protocol.kubernetes.proxies import ProxyError, proxy_for

V1 = "client.authentication.k8s.io/v1"


def parsed(cluster: str = "{server: 'https://a'}", user: str = "{}") -> Login:
    text = (
        "{current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}],"
        f"clusters: [{{name: c, cluster: {cluster}}}], users: [{{name: u, user: {user}}}]}}"
    )
    return read_login([KubeconfigFile(text)])


FIRST = KubeconfigFile(
    "{current-context: x, contexts: [{name: x, context: {cluster: c, user: u, namespace: shop}}],"
    "clusters: [{name: c, cluster: {server: 'https://first', certificate-authority: pki/ca.crt}}]}",
    "/etc/first",
    "/etc/first/config",
)
SECOND = KubeconfigFile(
    "{current-context: y, contexts: [{name: y, context: {cluster: c}}],"
    "clusters: [{name: c, cluster: {server: 'https://second', insecure-skip-tls-verify: true}}],"
    "users: [{name: u, user: {tokenFile: token, client-key: /abs/key, exec: {command: ./p, apiVersion: v}}}]}",
    "/home/second",
    "/home/second/config",
)
EMPTY = KubeconfigFile("", "/none", "/none/config")


def test_first_of_several_files_wins_whole_entries() -> None:
    """No entry is mixed from two files: ``insecure-skip-tls-verify`` of the second is not the first's."""
    login = read_login([EMPTY, FIRST, SECOND])
    assert (login.server, login.insecure, login.namespace) == ("https://first", False, "shop")
    assert read_login([SECOND, FIRST]).server == "https://second"
    assert read_login([SECOND, FIRST], "x").namespace == "shop"
    assert (current_context([EMPTY, SECOND, FIRST]), context_names([FIRST, EMPTY, SECOND])) == ("y", ["x", "y"])


def test_paths_start_from_the_file_that_names_them() -> None:
    login = read_login([FIRST, SECOND])
    assert (login.authority.path, login.token_path) == ("/etc/first/pki/ca.crt", "/home/second/token")
    assert login.key.path == "/abs/key"


@pytest.mark.parametrize(
    ("command", "run"), [("bin/p", "/k/bin/p"), ("./p", "/k/p"), ("/usr/p", "/usr/p"), ("aws", "aws")]
)
def test_plugin_command_with_slash_starts_from_the_kubeconfig(command: str, run: str) -> None:
    file = KubeconfigFile(
        "{current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}],"
        "clusters: [{name: c, cluster: {server: 'https://a'}}],"
        f"users: [{{name: u, user: {{exec: {{command: {command}, apiVersion: {V1}}}}}}}]}}",
        "/k",
    )
    plugin = read_login([file]).plugin
    assert plugin is not None
    assert plugin.command == run


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([FIRST], "/etc/first/config: no user named 'u'"),
        ([EMPTY, FIRST], "/none/config, /etc/first/config: no user named 'u'"),
        ([EMPTY], "/none/config: no current-context is set: specify a context"),
        ([FIRST, KubeconfigFile("[", "", "odd")], "odd: invalid YAML: "),
        ([KubeconfigFile("users: 3", "", "odd"), FIRST], "odd: users: expected array"),
    ],
)
def test_errors_name_the_file(files: list[KubeconfigFile], said: str) -> None:
    with pytest.raises(KubeconfigError) as refused:
        read_login(files)
    assert str(refused.value).startswith(said)


def test_token_file_goes_with_its_token() -> None:
    login = parsed(user="{token: t, tokenFile: /f, exec: {command: p, apiVersion: v}, username: root}")
    assert (login.token, login.token_path, login.plugin, login.basic) == ("t", "/f", None, "")


@pytest.mark.parametrize("shown", ["token: t", "tokenFile: f", "username: root", "client-certificate: c"])
def test_plugin_is_run_only_without_other_proof(shown: str) -> None:
    assert parsed(user=f"{{{shown}, exec: {{command: p, apiVersion: v}}}}").plugin is None


def test_username_and_password_are_basic_auth() -> None:
    assert [parsed(user=f"{{username: root{more}}}").basic for more in ("", ", password: s")] == ["root:", "root:s"]


@pytest.mark.parametrize(
    ("cluster", "url"),
    [
        ("{server: 'localhost:8080'}", "http://localhost:8080"),
        ("{server: 'api:6443', insecure-skip-tls-verify: true}", "http://api:6443"),
        ("{server: 'https://rancher/k8s/clusters/c-1/'}", "https://rancher/k8s/clusters/c-1"),
    ],
)
def test_server_may_lack_its_scheme(cluster: str, url: str) -> None:
    assert parsed(cluster).server == url


def test_impersonation_is_read_and_completed_by_flags() -> None:
    login = parsed(user="{as: eve, as-groups: [ops, dev], as-uid: '7', as-user-extra: {'a/b%': [x, y]}}")
    assert list(login.impersonation.headers()) == [
        ("Impersonate-User", "eve"),
        ("Impersonate-Group", "ops"),
        ("Impersonate-Group", "dev"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Extra-a%2Fb%25", "x"),
        ("Impersonate-Extra-a%2Fb%25", "y"),
    ]
    assert Impersonation("bob").over(login.impersonation).groups == ("ops", "dev")
    assert (bool(Impersonation()), list(Impersonation().headers())) == (False, [])


def test_plugin_gets_cluster_on_request() -> None:
    cluster = (
        "{server: 'https://a', tls-server-name: n, insecure-skip-tls-verify: false, proxy-url: 'http://p:1',"
        "certificate-authority: ca.crt, extensions: [{name: other}, {name: client.authentication.k8s.io/exec,"
        "extension: {audience: z}}]}"
    )
    plugin = parsed(cluster, f"{{exec: {{command: p, apiVersion: {V1}, provideClusterInfo: true}}}}").plugin
    assert plugin is not None
    asked = json.loads(plugin.request(is_interactive=True, authority="PEM"))
    assert asked["spec"] == {
        "interactive": True,
        "cluster": {
            "server": "https://a",
            "tls-server-name": "n",
            "proxy-url": "http://p:1",
            "config": {"audience": "z"},
            "certificate-authority-data": base64.b64encode(b"PEM").decode(),
        },
    }
    assert "certificate-authority-data" not in plugin.request(is_interactive=False)
    plain = parsed(user=f"{{exec: {{command: p, apiVersion: {V1}}}}}").plugin
    assert plain is not None
    assert "cluster" not in plain.request(is_interactive=False)


@pytest.mark.parametrize(
    ("mode", "on_terminal", "elsewhere"),
    [("Never", False, False), ("IfAvailable", True, False), ("Always", True, None)],
)
def test_interactive_mode_says_who_may_ask(mode: str, on_terminal: bool, elsewhere: bool | None) -> None:
    plugin = parsed(user=f"{{exec: {{command: p, apiVersion: {V1}, interactiveMode: {mode}}}}}").plugin
    assert plugin is not None
    assert plugin.may_ask(is_terminal=True) is on_terminal
    if elsewhere is None:
        with pytest.raises(ExecCredentialError, match="standard input is not a terminal"):
            plugin.may_ask(is_terminal=False)
    else:
        assert plugin.may_ask(is_terminal=False) is elsewhere


def test_auth_provider_is_refused_with_a_way_out() -> None:
    with pytest.raises(KubeconfigError, match=r"^user u: auth-provider is not supported; use a credential plug-in"):
        parsed(user="{auth-provider: {name: oidc}}")


# Proxies -----------------------------------------------------------------------------------------------------------

API = "https://api.example.org:6443"


@pytest.mark.parametrize(
    ("url", "environment", "proxy"),
    [
        (API, {}, ""),
        (API, {"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
        (API, {"https_proxy": "p:1"}, "http://p:1"),
        (API, {"HTTPS_PROXY": "http://big:1", "https_proxy": "http://small:1"}, "http://big:1"),
        (API, {"HTTP_PROXY": "http://p:1"}, ""),
        ("http://api", {"HTTP_PROXY": "http://p:1"}, "http://p:1"),
        (API, {"ALL_PROXY": "socks5://p:1", "all_proxy": "socks5://p:1"}, ""),
        ("https://127.0.0.1:6443", {"HTTPS_PROXY": "http://p:1"}, ""),
        ("https://127.9.9.9", {"HTTPS_PROXY": "http://p:1"}, ""),
        ("https://[::1]:6443", {"HTTPS_PROXY": "http://p:1"}, ""),
        ("https://localhost", {"HTTPS_PROXY": "socks5://p:1"}, ""),
    ],
)
def test_proxy_is_kubectls(url: str, environment: dict[str, str], proxy: str) -> None:
    assert proxy_for(url, environment) == proxy


@pytest.mark.parametrize(
    ("excluded", "is_used"),
    [
        ("*", False),
        ("example.org", False),
        (".example.org", False),
        ("*.example.org", False),
        ("API.EXAMPLE.ORG", False),
        ("api.example.org:6443", False),
        ("api.example.org:443", True),
        ("other, api.example.org ", False),
        ("ample.org", True),
        ("", True),
        (":6443", True),
        ("10.0.0.0/8", True),
    ],
)
def test_no_proxy_names_hosts_domains_and_ports(excluded: str, is_used: bool) -> None:
    assert bool(proxy_for(API, {"HTTPS_PROXY": "p:1", "no_proxy": excluded})) is is_used


@pytest.mark.parametrize(
    ("excluded", "is_used"),
    [("10.0.0.0/8", False), ("10.1.2.3", False), ("10.1.2.3:443", False), ("10.1.2.3:80", True), ("fd00::/8", True)],
)
def test_no_proxy_names_networks(excluded: str, is_used: bool) -> None:
    assert bool(proxy_for("https://10.1.2.3", {"HTTPS_PROXY": "p:1", "NO_PROXY": excluded})) is is_used


@pytest.mark.parametrize(
    ("proxy", "said"),
    [
        ("socks5://p:1080", "HTTPS_PROXY: SOCKS proxies are not supported; use an HTTP proxy"),
        ("ftp://p", "HTTPS_PROXY: expected a proxy as http://HOST:PORT"),
        ("http://", "HTTPS_PROXY: expected a proxy as http://HOST:PORT"),
        ("http://p:port", "HTTPS_PROXY: expected a proxy as http://HOST:PORT"),
    ],
)
def test_unusable_proxy_is_named(proxy: str, said: str) -> None:
    with pytest.raises(ProxyError) as refused:
        proxy_for(API, {"HTTPS_PROXY": proxy})
    assert str(refused.value).startswith(said)
