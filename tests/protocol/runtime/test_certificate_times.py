"""The ends of certificates are those that a library reads, and anything else is refused as such."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from protocol.runtime.tls_files import UnreadableCertificateError, Validity, validities

KEY = ec.generate_private_key(ec.SECP256R1())
NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a name of some length " * 2)])


def certificate(end: datetime, *, extended: bool = True) -> bytes:
    builder = x509.CertificateBuilder().subject_name(NAME).issuer_name(NAME).public_key(KEY.public_key())
    builder = builder.serial_number(7).not_valid_before(BEGIN).not_valid_after(end)
    if extended:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("x" * 200)]), critical=False)
    return builder.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


BEGIN = datetime(2020, 1, 1, tzinfo=UTC)
NEAR, FAR = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC), datetime(2077, 1, 2, 3, 4, 5, tzinfo=UTC)


def until(end: datetime) -> Validity:
    return Validity(BEGIN.timestamp(), end.timestamp())


def test_chain_expiry_is_read_in_order() -> None:
    chain = b"some words\n" + certificate(FAR) + b"\n" + certificate(NEAR, extended=False)
    assert validities(chain) == [until(FAR), until(NEAR)]
    assert validities(b"nothing") == []


def test_v1_certificate_has_no_version() -> None:
    der = x509.load_pem_x509_certificate(certificate(NEAR)).public_bytes(serialization.Encoding.DER)
    at = der.index(bytes.fromhex("a003020102"))
    assert validities(pem(der[:at] + der[at + 5 :])) == [until(NEAR)]


def pem(der: bytes) -> bytes:
    lines = base64.encodebytes(der)
    return b"-----BEGIN CERTIFICATE-----\n" + lines + b"-----END CERTIFICATE-----\n"


@pytest.mark.parametrize("der", [b"\x30", b"\x31\x00", b"\x30\x02\x30\x00", b"\x30\x84\xff\xff\xff\xff", b""])
def test_what_is_no_certificate_is_refused(der: bytes) -> None:
    with pytest.raises(UnreadableCertificateError, match="expected certificates in PEM"):
        assert validities(pem(der) if der else pem(b"\x00")) == []
