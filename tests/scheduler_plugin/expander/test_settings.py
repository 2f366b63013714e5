"""ExpanderSettings are taken whole or refused with the path of the bad field."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from protocol.runtime.followed_file import SettingsError
from protocol.runtime.tls_files import TlsParts
from protocol.units import Seconds
from scheduler_plugin.expander.failures import FailureRules
from scheduler_plugin.expander.settings import (
    ExpanderSettings,
    TlsSettings,
    host_and_port,
    parse_settings,
)


def test_nothing_said_means_the_defaults_on_loopback() -> None:
    assert parse_settings("") == ExpanderSettings()
    assert parse_settings("").failures == FailureRules()
    assert parse_settings("").listen == "127.0.0.1:10296"


def test_everything_may_be_said() -> None:
    settings = parse_settings(
        """
        listen: "0.0.0.0:9000"
        metricsListen: "[::1]:9001"
        tls: {certificate: /tls/tls.crt, key: /tls/tls.key, clientCa: /tls/ca.crt}
        clusterNodes: 7
        failures: {grace: 1, remember: 2, demote: 3, longest: 4}
        """
    )
    assert (settings.listen, settings.metrics_listen, settings.cluster_nodes) == ("0.0.0.0:9000", "[::1]:9001", 7)
    assert settings.failures == FailureRules(Seconds(1), Seconds(2), Seconds(3), Seconds(4))
    assert settings.tls is not None
    assert settings.tls.files() == TlsParts(Path("/tls/tls.crt"), Path("/tls/tls.key"), Path("/tls/ca.crt"))
    assert TlsSettings("c", "k").files() == TlsParts(Path("c"), Path("k"), None)


def test_the_documented_settings_are_valid() -> None:
    document = (Path(__file__).parents[3] / "docs" / "expander.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", document, re.DOTALL)
    settings = parse_settings(example)
    assert (settings.listen, settings.failures) == ("0.0.0.0:10296", FailureRules())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("listen: [", "invalid YAML: line 2, column 1: "),
        ("- a", "document: expected object, got array"),
        ("lisen: x", "document: object contains unknown field lisen"),
        ("failures: {grace: 0}", "failures.grace: expected float > 0.0"),
        ("clusterNodes: 0", "clusterNodes: expected int >= 1"),
        ("tls: {key: k}", "tls.certificate: expected a value, the field is missing"),
        ("listen: 0.0.0.0", "listen: expected HOST:PORT, got '0.0.0.0'"),
        ("listen: ':1'", "listen: expected HOST:PORT, got ':1'"),
        ("metricsListen: 'x:70000'", "metricsListen: expected HOST:PORT, got 'x:70000'"),
        ("listen: 0.0.0.0:1", "tls: expected a certificate and key, as listen is not loopback (or insecure: true)"),
        ("listen: example:1", "tls: expected a certificate and key, as listen is not loopback (or insecure: true)"),
    ],
)
def test_a_refusal_names_the_field(text: str, problem: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_settings(text)
    assert str(refused.value).startswith(problem)


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "[::1]:1", "localhost:1"])
def test_loopback_needs_no_certificate(listen: str) -> None:
    assert parse_settings(f'listen: "{listen}"').tls is None


def test_whoever_means_it_may_listen_without_a_certificate() -> None:
    assert parse_settings("{listen: '0.0.0.0:1', insecure: true}").insecure
    assert host_and_port("listen", "[::]:80") == ("::", 80)
