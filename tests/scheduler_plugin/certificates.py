"""Self-signed certificates for tests of TLS."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from protocol.runtime.certificates.issuing import CertificateForm, CertifiedKey, alternative_names, common_name, new_key

_SIGNS = (x509.BasicConstraints(ca=True, path_length=None), True)


def pair(name: str, host: str = "", authority: str = "") -> tuple[bytes, bytes]:
    """A certificate for ``host`` (127.0.0.1) and its key; the same for the same name.

    It is signed by that of ``authority``, and without one it is its own.
    """
    made = _pair(name, host, authority)
    return made.certificate_pem, made.key_pem


def signed_by(name: str, authority: str) -> bytes:
    """The certificate ``name`` with the same key, signed by ``authority`` instead of self-signed."""
    own = _pair(name, "", "")
    old = own.certificate
    form = CertificateForm(old.subject, old.not_valid_before_utc, old.not_valid_after_utc, (_SIGNS,))
    return form.signed(own.key.public_key(), _pair(authority, "", "")).public_bytes(Encoding.PEM)


@cache
def _pair(name: str, host: str, authority: str) -> CertifiedKey:
    names = alternative_names([host]) if host else alternative_names([], ["127.0.0.1"])
    now = datetime.now(UTC)
    form = CertificateForm(common_name(name), now - timedelta(hours=1), now + timedelta(days=1), (_SIGNS, *names))
    return form.certified(_pair(authority, "", "")) if authority else form.self_signed(new_key())


def files(folder: Path, name: str, authority: str = "") -> tuple[Path, Path]:
    """The same as files in ``folder``."""
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    for path, content in zip((certificate, key), pair(name, authority=authority), strict=True):
        path.write_bytes(content)
    return certificate, key
