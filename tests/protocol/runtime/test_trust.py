"""Clients verify servers as kubectl does: Go's libraries decide which certificates clusters have."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
import yaml

from protocol.runtime.credentials import from_kubeconfig
from protocol.runtime.tls_files import TlsParts, client_context
from protocol.runtime.trust import trusting
from tests.fake_clock import FakeClock
from tests.scheduler_plugin.certificates import files, pair, signed_by


@pytest.fixture
def strict_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python whose contexts are strict by default, as 3.13 and later are."""
    make, strict = ssl.create_default_context, ssl.VERIFY_X509_STRICT

    def create(*given: Any, **named: Any) -> ssl.SSLContext:
        context = make(*given, **named)
        context.verify_flags |= strict
        return context

    monkeypatch.setattr(ssl, "create_default_context", create)


def shake_hands(client: ssl.SSLContext, folder: Path, name: str, authority: str = "") -> None:
    """A handshake in memory with a server that shows the certificate ``name``. Raises ``ssl.SSLError``."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*files(folder, name, authority))
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there, server_hostname="127.0.0.1"), server.wrap_bio(there, back, server_side=True)]
    for _ in range(3):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


@pytest.mark.usefixtures("strict_python")
def test_certificate_without_key_identifiers_is_trusted(tmp_path: Path) -> None:
    """The authority of an older EKS cluster has none."""
    authority, _ = files(tmp_path, "ca")
    shake_hands(trusting(pair("ca")[0].decode()), tmp_path, "api", "ca")
    shake_hands(trusting(file=authority), tmp_path, "api", "ca")
    shake_hands(client_context(TlsParts(authority=authority)), tmp_path, "api", "ca")


@pytest.mark.usefixtures("strict_python")
@pytest.mark.parametrize("named", [{}, {"tls-server-name": "127.0.0.1"}])
def test_kubeconfig_is_no_stricter_than_kubectl(named: dict[str, str], tmp_path: Path) -> None:
    authority, _ = files(tmp_path, "ca")
    cluster = {"server": "https://127.0.0.1", "certificate-authority": str(authority), **named}
    config = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "clusters": [{"name": "x", "cluster": cluster}],
        "users": [{"name": "x", "user": {"token": "t"}}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    tls = from_kubeconfig(tmp_path / "config", FakeClock()).tls
    assert isinstance(tls, ssl.SSLContext)
    shake_hands(tls, tmp_path, "api", "ca")


def test_intermediate_authority_suffices(tmp_path: Path) -> None:
    """A bundle need not reach up to the root: Go trusts what is in it."""
    shake_hands(trusting(signed_by("intermediate", "root").decode()), tmp_path, "leaf", "intermediate")


def test_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(trusting(pair("other")[0].decode()), tmp_path, "api")
