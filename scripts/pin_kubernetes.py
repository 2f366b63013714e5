"""``python -m scripts.pin_kubernetes v1.36.3``: pins a release of Kubernetes in ``go.mod`` and ``go.sum``.

Its minor version must be supported (``deploy/local/kubernetes/programs/versions.py``).
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
    """Write the two files; return the exit code."""
    (version,) = sys.argv[1:] if arguments is None else arguments
    # The patch version is required: go.mod pins an exact module version.
    match = re.fullmatch(r"v(\d+\.\d+)\.\d+", version)
    try:
        if match is None:
            raise ValueError(f"a release must be like v1.36.3, not {version!r}")
        _pin(version, MODULES / kubernetes_set(match[1]).name, find_go())
    except (KeyError, ValueError, NoGoError, subprocess.CalledProcessError) as error:
        print(f"pin_kubernetes: {error}", file=sys.stderr)
        return 1
    return 0


def _pin(version: str, folder: Path, toolchain: Toolchain) -> None:
    # In /, outside any module: the folder need not exist yet.
    release = json.loads(_go(toolchain, Path("/"), "mod", "download", "-json", f"{KUBERNETES}@{version}"))
    go, staging = staging_of(Path(release["GoMod"]).read_text())
    folder.mkdir(parents=True, exist_ok=True)
    # Without hashes of the old release.
    (folder / "go.sum").unlink(missing_ok=True)
    (folder / "go.mod").write_text(go_mod_of_kubernetes(version, go, staging))
    _go(toolchain, folder, "mod", "tidy")
    print(f"{folder}: {version} with {len(staging)} staging modules")


def _go(toolchain: Toolchain, folder: Path, *arguments: str) -> str:
    command = [str(toolchain.go), *arguments]
    done = subprocess.run(
        command,
        cwd=folder,
        env=toolchain.environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        # stderr is inherited: Go prints progress and errors there.
    )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
