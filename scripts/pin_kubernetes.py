"""``python -m scripts.pin_kubernetes v1.36.3``: writes ``go.mod`` and ``go.sum`` of a release of Kubernetes.

They are the only place where its version stands. Its minor version must be one of those supported
(``deploy/local/kubernetes/programs/versions.py``).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy.local.kubernetes.programs.build import MODULES
from deploy.local.kubernetes.programs.toolchain import NoGoError, Toolchain, find_go
from deploy.local.kubernetes.programs.versions import KUBERNETES, go_mod_of_kubernetes, kubernetes_set, staging_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the two files; returns the exit code."""
    (version,) = sys.argv[1:] if arguments is None else arguments
    # The patch version is required: go.mod pins an exact module version.
    match = re.fullmatch(r"v(\d+\.\d+)\.\d+", version)
    try:
        if match is None:
            raise ValueError(f"a release is such as v1.36.3, not {version!r}")
        _pin(version, MODULES / kubernetes_set(match[1]).name, find_go())
    except (KeyError, ValueError, NoGoError, subprocess.CalledProcessError) as error:
        print(f"pin_kubernetes: {error}", file=sys.stderr)
        return 1
    return 0


def _pin(version: str, folder: Path, toolchain: Toolchain) -> None:
    # A download outside any module reads no go.mod, so the folder need not exist yet.
    release = json.loads(_go(toolchain, Path("/"), "mod", "download", "-json", f"{KUBERNETES}@{version}"))
    go, staging = staging_of(Path(release["GoMod"]).read_text())
    folder.mkdir(parents=True, exist_ok=True)
    # `go mod tidy` writes a new go.sum, without hashes of the old release.
    (folder / "go.sum").unlink(missing_ok=True)
    (folder / "go.mod").write_text(go_mod_of_kubernetes(version, go, staging))
    _go(toolchain, folder, "mod", "tidy")
    print(f"{folder}: {version} with {len(staging)} modules of its own repository")


def _go(toolchain: Toolchain, folder: Path, *arguments: str) -> str:
    command = [str(toolchain.go), *arguments]
    done = subprocess.run(
        command,
        cwd=folder,
        env=toolchain.environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        # stderr is inherited: Go reports its progress and its errors there.
    )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
