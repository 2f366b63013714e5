"""How the scheduler finds its API: kubeconfig files in all their forms, or the pod's service account."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path
from typing import Any

import pytest
import yaml

from protocol.units import Instant
from scheduler_plugin.cluster import credentials
from scheduler_plugin.cluster.credentials import Credentials, CredentialsError, FileToken, from_kubeconfig, from_pod
from tests.scheduler_plugin.certificates import files, pair


class Time:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> Instant:
        return Instant(self.at)


def b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def kubeconfig(
    folder: Path, cluster: dict[str, Any], user: dict[str, Any] | None = None, **changes: Any
) -> Credentials:
    """What is read from a kubeconfig with this cluster and user."""
    context = {"cluster": "c"} if user is None else {"cluster": "c", "user": "u"}
    content = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": context}],
        "clusters": [{"name": "c", "cluster": {"server": "https://api:6443/", **cluster}}],
        "users": [] if user is None else [{"name": "u", "user": user}],
        **changes,
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(content))
    return from_kubeconfig(path, Time())


def test_a_token_and_an_authority_given_as_data(tmp_path: Path) -> None:
    found = kubeconfig(tmp_path, {"certificate-authority-data": b64(pair("ca")[0])}, {"token": "secret"})
    assert (found.server, found.token()) == ("https://api:6443", "secret")
    assert isinstance(found.tls, ssl.SSLContext)
    assert (found.tls.verify_mode, len(found.tls.get_ca_certs())) == (ssl.CERT_REQUIRED, 1)


def test_files_are_found_beside_the_kubeconfig(tmp_path: Path) -> None:
    certificate, key = files(tmp_path, "client")
    (tmp_path / "token").write_text("from-file\n")
    user = {"client-certificate": certificate.name, "client-key": key.name, "tokenFile": "token"}
    found = kubeconfig(tmp_path, {"certificate-authority": certificate.name}, user)
    assert found.token() == "from-file"


def test_a_client_certificate_given_as_data_needs_no_token(tmp_path: Path) -> None:
    certificate, key = pair("client")
    user = {"client-certificate-data": b64(certificate), "client-key-data": b64(key)}
    assert kubeconfig(tmp_path, {}, user).token() is None


def test_verification_is_skipped_only_where_it_says_so(tmp_path: Path) -> None:
    found = kubeconfig(tmp_path, {"insecure-skip-tls-verify": True})
    assert isinstance(found.tls, ssl.SSLContext)
    assert found.tls.verify_mode is ssl.CERT_NONE
    assert kubeconfig(tmp_path, {"server": "http://127.0.0.1:6443"}).tls is True


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"current-context": "y"}, "there is no context named 'y'"),
        ({"clusters": []}, "there is no cluster named 'c'"),
        ({"users": []}, "there is no user named 'u'"),
        ({"contexts": 3}, "contexts: expected array, got int"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(CredentialsError, match=said):
        kubeconfig(tmp_path, {}, {"token": "t"}, **changes)


def test_plug_ins_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="user u: exec and auth-provider plug-ins are not supported"):
        kubeconfig(tmp_path, {}, {"exec": {"command": "login"}})


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="kubeconfig: No such file or directory"):
        from_kubeconfig(tmp_path / "kubeconfig", Time())
    with pytest.raises(CredentialsError, match="absent: No such file or directory"):
        kubeconfig(tmp_path, {"certificate-authority": "absent"})
    (tmp_path / "kubeconfig").write_text("a: [")
    with pytest.raises(CredentialsError, match="kubeconfig: "):
        from_kubeconfig(tmp_path / "kubeconfig", Time())


def test_in_a_pod_the_service_account_speaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "SERVICE_ACCOUNT", tmp_path)
    (tmp_path / "ca.crt").write_bytes(pair("ca")[0])
    (tmp_path / "token").write_text("projected")
    found = from_pod({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}, Time())
    assert (found.server, found.token()) == ("https://10.0.0.1:6443", "projected")
    assert from_pod({"KUBERNETES_SERVICE_HOST": "fd00::1"}, Time()).server == "https://[fd00::1]:443"


def test_outside_of_a_cluster_a_kubeconfig_is_asked_for() -> None:
    with pytest.raises(CredentialsError, match="say --kubeconfig FILE"):
        from_pod({}, Time())


def test_a_token_file_is_read_again_after_a_minute_and_survives_its_absence(tmp_path: Path) -> None:
    path, time = tmp_path / "token", Time()
    token = FileToken(path, time)
    with pytest.raises(CredentialsError, match="token: No such file or directory"):
        token()
    path.write_text("old")
    seen = [token()]
    path.write_text("new")
    for moment in (59.0, 60.0):
        time.at = moment
        seen.append(token())
    path.unlink()
    time.at = 500.0
    seen.append(token())
    assert seen == ["old", "old", "new", "new"]
