"""Certificates for loopback, made by the openssl command in a few hundredths of a second each."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make(folder: Path, name: str) -> tuple[Path, Path]:
    """A self-signed certificate for localhost and its key: ``NAME.crt`` and ``NAME.key`` in ``folder``."""
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-days",
                "2",
            ),
            *("-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key
