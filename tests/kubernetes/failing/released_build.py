"""The packages of the newest release, from the history: of the commit that gave it its heading in CHANGELOG.md."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

from tests.kubernetes.real_kubernetes import cannot_run

PACKAGES: Final = ("agent", "protocol", "scheduler_plugin", "deploy")


def unpack_newest_release(checkout: Path, folder: Path) -> None:
    """Unpacks them into ``folder``. A checkout without history is as a machine on which the test cannot run."""
    heading = re.search(r"^## \[\d.*?\]", (checkout / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heading is not None
    is_whole = _git(checkout, "rev-parse", "--is-shallow-repository").stdout.strip() == b"false"
    found = _git(checkout, "log", "-1", "--format=%H", f"-S{heading[0]}", "--", "CHANGELOG.md")
    revision = found.stdout.decode().strip()
    if not is_whole or not revision:
        cannot_run(f"this checkout has no history, which would have the release {heading[0]}: git fetch --unshallow")
    packed = _git(checkout, "archive", revision, *PACKAGES)
    assert packed.returncode == 0, packed.stderr.decode()
    subprocess.run(["tar", "--extract", f"--directory={folder}"], input=packed.stdout, check=True)


def _git(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(checkout), *arguments], capture_output=True, check=False)
