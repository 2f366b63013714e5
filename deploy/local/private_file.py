"""Files that hold secrets: replaced as a whole, readable by their owner alone."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_private(file: Path, content: str) -> None:
    """Replaces ``file`` atomically by one that only its owner can read."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Written aside and renamed, which is atomic: a reader sees the old content or the new, never half of it.
    fresh = file.with_suffix(".new")
    # The mode is given at creation, so that no other user can open the file before it is restricted.
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as out:
        out.write(content)
    fresh.replace(file)


def secret_file(path: Path) -> str:
    """The secret in the file at ``path``, readable by its owner alone; made there if it is missing."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        # O_EXCL: of two processes that both find it missing, the second fails instead of replacing a secret already
        # in use.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    return path.read_text().strip()
