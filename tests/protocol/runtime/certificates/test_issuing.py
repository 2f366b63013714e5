"""Issued certificates pass OpenSSL's checks for their purpose; invalid stored ones are not used, and no key is
revealed.
"""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import pytest

from protocol.rotation import Lifetime
from protocol.runtime.certificates.issuing import (
    Pair,
    Purpose,
    UnusablePairError,
    issue,
    new_authority,
    read_pair,
)
from protocol.runtime.certificates.keeper import authorities_as, authorities_in, content, encoded
from protocol.units import Seconds
from tests.scheduler_plugin.certificates import pair

NOW = 1_800_000_000.0
DAY = Seconds(86_400.0)
SERVER = Purpose("server", ("server.kube-system.svc",), ("127.0.0.1", "::1"))
CLIENT = Purpose("client")


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """In memory. Raises ``ssl.SSLError``."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


def context(folder: Path, found: Pair, trusted: bytes, *, serves: bool) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if serves else ssl.PROTOCOL_TLS_CLIENT)
    file = folder / "pair.pem"
    file.write_bytes(found.certificate + found.key)
    made.load_cert_chain(file)
    made.load_verify_locations(cadata=trusted.decode())
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    return made


def test_both_ends_prove_who_they_are(tmp_path: Path) -> None:
    now = time.time()
    old, new = new_authority(DAY, now - 60), new_authority(DAY, now)
    trusted = new.pair.certificate + old.pair.certificate
    server = context(tmp_path, issue(old, SERVER, DAY, now).pair, trusted, serves=True)
    client = context(tmp_path, issue(new, CLIENT, DAY, now).pair, trusted, serves=False)
    for name in ("server.kube-system.svc", "127.0.0.1"):
        handshake(server, client, name)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(server, client, "other.kube-system.svc")
    wrong = context(tmp_path, issue(new, SERVER, DAY, now).pair, trusted, serves=False)
    with pytest.raises(ssl.SSLError):
        handshake(server, wrong, "127.0.0.1")


def test_certificate_ends_with_authority_and_has_purpose() -> None:
    authority = new_authority(DAY, NOW)
    assert authority.lifetime == Lifetime(NOW, NOW + DAY)
    late = issue(authority, SERVER, DAY, NOW + 1000)
    assert late.lifetime == Lifetime(NOW + 1000, NOW + DAY)
    assert (late.serves(SERVER), late.serves(CLIENT), late.is_signed_by(authority)) == (True, False, True)
    assert not late.is_signed_by(new_authority(DAY, NOW))
    assert issue(authority, CLIENT, DAY, NOW).serves(CLIENT)


def test_secret_round_trip_newest_first() -> None:
    made = [new_authority(DAY, NOW + at) for at in (0, 7)]
    secret = {"data": {**encoded(authorities_as(made)), "junk.crt": "!", "x.crt": "eA==", "other": ""}}
    found = authorities_in(content(secret))
    assert [each.pair for each in found] == [each.pair for each in reversed(made)]


@pytest.mark.parametrize(
    "kept", [Pair(b"", b""), Pair(pair("a")[0], b"x"), Pair(pair("a")[0], pair("b")[1]), Pair(b"x", pair("a")[1])]
)
def test_mismatched_pair_is_unused_key_hidden(kept: Pair) -> None:
    with pytest.raises(UnusablePairError) as refused:
        read_pair(kept)
    assert "PRIVATE" not in f"{refused.value} {kept!r}"
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    "purpose",
    [
        Purpose("c" * 65),
        Purpose("s" * 65, (f"{'n' * 63}.{'d' * 63}.svc.cluster.local",)),
        Purpose("server", ("server",), ("0:0:0:0:0:0:0:1",)),
    ],
    ids=["long-client", "long-names", "address-in-full"],
)
def test_reread_certificate_serves_purpose(purpose: Purpose) -> None:
    """A certificate that did not serve its purpose once stored would be issued again at each turn."""
    issued = issue(new_authority(DAY, NOW), purpose, DAY, NOW)
    stored = read_pair(issued.pair)
    assert (stored.serves(purpose), stored.serves(CLIENT)) == (True, False)
