"""Files with secrets: replaced atomically, mode 0600."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_private(file: Path, content: str) -> None:
    """Write ``content`` to ``file`` atomically, with mode 0600."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = file.with_suffix(".new")
    # The mode is set at creation: a later chmod would leave the secret readable in between.
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as out:
        out.write(content)
    fresh.replace(file)


def secret_file(path: Path) -> str:
    """The secret stored at ``path``; a random one is created, with mode 0600, if the file does not exist."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        # O_EXCL: if two processes create it at once, the second fails instead of replacing a secret already in use.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    return path.read_text().strip()
