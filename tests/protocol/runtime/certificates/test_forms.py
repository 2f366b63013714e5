"""Certificates of our own making: OpenSSL's strictest checks take them, and they say what each caller needs."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from protocol.runtime.certificates.issuing import (
    AUTHORITY,
    NO_AUTHORITY,
    CertificateForm,
    CertifiedKey,
    alternative_names,
    certified_authority,
    common_name,
    issuer_key,
    load_certificate,
    new_key,
    signing_request,
    usage,
)

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
END = BEGIN + timedelta(days=1)


def form(name: str, *extensions: tuple[x509.ExtensionType, bool]) -> CertificateForm:
    return CertificateForm(common_name(name), BEGIN, END, extensions)


@pytest.fixture
def authority() -> CertifiedKey:
    return certified_authority("ours", BEGIN, END)


def test_certificate_has_the_extensions_of_its_form(authority: CertifiedKey) -> None:
    extensions = (
        NO_AUTHORITY,
        usage(encrypts=True),
        issuer_key(authority),
        *alternative_names(["db.test"], ["10.0.0.1", "fd00::1"]),
    )
    leaf = form("x" * 70, *extensions).certified(authority)
    leaf.certificate.verify_directly_issued_by(authority.certificate)
    assert [(each.value, each.critical) for each in leaf.certificate.extensions] == list(extensions)
    assert leaf.certificate.subject.rfc4514_string() == f"CN={'x' * 64}"
    assert (leaf.certificate.not_valid_before_utc, leaf.certificate.not_valid_after_utc) == (BEGIN, END)
    assert leaf.key.public_key() == leaf.certificate.public_key()
    assert "PRIVATE" not in repr(leaf)


def test_authority_names_its_key_and_signs_no_authorities(authority: CertifiedKey) -> None:
    *extensions, identifier = authority.certificate.extensions
    assert [(each.value, each.critical) for each in extensions] == list(AUTHORITY)
    key_of_leaf, _ = issuer_key(authority)
    assert isinstance(key_of_leaf, x509.AuthorityKeyIdentifier)
    assert isinstance(identifier.value, x509.SubjectKeyIdentifier)
    assert key_of_leaf.key_identifier == identifier.value.digest
    other = form("other", *AUTHORITY).self_signed(new_key())
    with pytest.raises(InvalidSignature):
        form("x").certified(other).certificate.verify_directly_issued_by(
            CertificateForm(common_name("other"), BEGIN, END, AUTHORITY).self_signed(new_key()).certificate
        )


def test_client_has_no_names() -> None:
    assert alternative_names([], []) == []


def test_request_is_signed_by_its_key() -> None:
    key = new_key()
    request = x509.load_pem_x509_csr(signing_request("pod-1", key))
    assert request.is_signature_valid
    assert (request.subject.rfc4514_string(), request.public_key()) == ("CN=pod-1", key.public_key())


def test_pair_from_memory_is_shown(authority: CertifiedKey) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificate(context, authority.certificate_pem, authority.key_pem)
    with pytest.raises(ssl.SSLError):
        load_certificate(context, authority.certificate_pem, certified_authority("other", BEGIN, END).key_pem)
