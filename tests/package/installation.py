"""The wheel, built from this checkout, and environments that have it with the distributions of one extra.

Nothing is fetched: setuptools is locked with the developers' packages, and an environment links to their distributions.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from deploy.images.rules.lock import Pin
from tests.package.import_graph import OURS, ROOT

_BUILD: Final = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
_TOP_FILES: Final = ("pyproject.toml", "README.md", "LICENSE")


def build_wheel(folder: Path) -> tuple[Path, Path]:
    """Copy the packages and build the wheel from the copy. The build leaves files in its source folder."""
    copy = folder / "sources"
    for package in OURS:
        shutil.copytree(ROOT / package, copy / package, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in _TOP_FILES:
        shutil.copy2(ROOT / name, copy / name)
    subprocess.run([sys.executable, "-c", _BUILD, folder], cwd=copy, capture_output=True, check=True)
    (wheel,) = folder.glob("*.whl")
    return copy, wheel


@dataclass(frozen=True, slots=True)
class Installation:
    """An environment in ``folder`` with the wheel, and a working directory that has modules of the same names."""

    folder: Path

    @property
    def elsewhere(self) -> Path:
        """The working directory of everything that runs."""
        return self.folder / "elsewhere"

    @classmethod
    def create(cls, folder: Path, wheel: Path, pins: Iterable[Pin]) -> Installation:
        """Make the environment; ``pins`` are the other distributions to install."""
        made = cls(folder)
        venv.create(folder, symlinks=True)
        site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
        for entry in {entry for pin in pins for entry in _entries(pin.name)}:
            (site / entry.name).symlink_to(entry)
        pip = [
            sys.executable,
            "-m",
            "pip",
            f"--python={folder / 'bin' / 'python'}",
            "install",
            "--no-index",
            "--no-deps",
        ]
        more = ["--no-compile", "--disable-pip-version-check", "--quiet", str(wheel)]
        subprocess.run([*pip, *more], capture_output=True, check=True)
        for name in OURS:
            (made.elsewhere / name).mkdir(parents=True)
            (made.elsewhere / name / "__init__.py").write_text("raise SystemExit('of the working directory')")
        return made

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment to its end, with an empty home folder."""
        command = [str(self.folder / "bin" / program), *arguments]
        environment = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.folder / "home"),
            "COLUMNS": "100",
        }
        return subprocess.run(
            command, env=environment, cwd=self.elsewhere, capture_output=True, text=True, check=False, timeout=120
        )


def _entries(distribution: str) -> set[Path]:
    """The files and folders of a distribution in ``site-packages``."""
    found = metadata.distribution(distribution)
    tops = {file.parts[0] for file in found.files or () if file.parts[0] not in {"..", "__pycache__"}}
    return {Path(str(found.locate_file(top))) for top in tops}
