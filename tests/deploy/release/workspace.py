"""A checkout that builds a real release, except that its images are fakes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Final

from deploy.images.inputs.checkout import HERE
from tests.deploy.release.test_release import image

_AUTOSCALE: Final = """
echo "$@" >> {log}
if [ "$2" = build ]; then
  while [ "$1" != --output ]; do shift; done
  cp {images}/*.tar "$2"
else
  {python} -c '
import json, sys
for name, digest in json.load(open("build/release/release.json"))["images"].items():
    print(f"{{sys.argv[1]}}/{{name}}:{{sys.argv[2]}}@{{digest}}")' "$3" "$5"
fi
"""
"""In place of the command: it notes what it is asked, builds made-up images, and pushes them nowhere."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """Its folder. ``programs`` is on the PATH before all others."""

    root: Path

    @property
    def programs(self) -> Path:
        """Folder with fake programs."""
        return self.root / "programs"

    @property
    def asked(self) -> list[str]:
        """The arguments of each call of `autoscale`."""
        log = self.root / "asked"
        return log.read_text().splitlines() if log.exists() else []

    def program(self, path: str, text: str) -> None:
        """A program of bash."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"#!/usr/bin/env bash\nset -euo pipefail\n{text}\n")
        place.chmod(0o755)

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a command in it."""
        path = f"{self.programs}:{os.environ['PATH']}"
        env = {"PATH": path, "HOME": str(self.root / "home"), "GIT_CEILING_DIRECTORIES": str(self.root), **environment}
        return subprocess.run(command, cwd=self.root, env=env, capture_output=True, text=True, check=False)


def workspace(root: Path) -> Workspace:
    """A new one, with an image for two platforms."""
    made = Workspace(root)
    for machine in ("amd64", "arm64"):
        image(root / "made-up", machine=machine)
    (root / "home").mkdir(parents=True)
    (root / "scripts").mkdir()
    (root / "scripts" / "release.sh").symlink_to(HERE / "scripts" / "release.sh")
    parts = {"log": root / "asked", "images": root / "made-up", "python": sys.executable, "here": HERE}
    quoted = {name: quote(str(part)) for name, part in parts.items()}
    made.program(".venv/bin/autoscale", _AUTOSCALE.format(**quoted))
    made.program(".venv/bin/python", 'PYTHONPATH={here} exec {python} "$@"'.format(**quoted))
    return made
