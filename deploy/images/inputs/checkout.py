"""The checkout as an input of images: packages, lock file, commit."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from deploy.images.formats.tree import File
from deploy.images.formats.wheel import SITE
from deploy.images.rules.lock import Lock, read_lock
from vm_image.host import BuildError

HERE: Final = Path(__file__).parents[3]
_VERSION: Final = re.compile(r'^VERSION: Final = "([^"]+)"$', re.MULTILINE)


@dataclass(frozen=True)
class Checkout:
    """The checkout at ``root``. Raises ``BuildError`` if ``root`` is not a checkout but, say, an installed package."""

    root: Path = HERE

    def __post_init__(self) -> None:
        if not (self.root / "pyproject.toml").is_file():
            raise BuildError(f"building images needs a checkout of the project (git clone); {self.root} is not one")

    @cached_property
    def lock(self) -> Lock:
        """The locked distributions. Raises ``LockError``."""
        return read_lock(self._read("requirements.txt"))

    @property
    def name(self) -> str:
        """The project's name."""
        return str(self._project["project"]["name"])

    @property
    def version(self) -> str:
        """The project's version. Raises ``BuildError``."""
        match = _VERSION.search(self._read("protocol/__init__.py"))
        if match is None:
            raise BuildError("protocol/__init__.py has no version")
        return match[1]

    @property
    def requirements(self) -> list[str]:
        """The project's requirements; requirements of extras have a marker, as in wheel metadata."""
        project = self._project["project"]
        extras = project["optional-dependencies"]
        marked = (f'{text} ; extra == "{extra}"' for extra, texts in extras.items() for text in texts)
        return [*project["dependencies"], *marked]

    @cached_property
    def revision(self) -> str:
        """The commit, with ``+changed`` if there are modified or untracked files; empty without git."""
        changed = self._git("status", "--porcelain", "--untracked-files=all")
        commit = self._git("rev-parse", "HEAD")
        return f"{commit}+changed" if commit and changed else commit

    @cached_property
    def created(self) -> str:
        """The images' creation time: ``SOURCE_DATE_EPOCH``, else the commit's time."""
        seconds = os.environ.get("SOURCE_DATE_EPOCH") or self._git("log", "-1", "--format=%ct") or "0"
        return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def package_files(self, package: str) -> list[File]:
        """The files of a Python package or module (dotted name), and the ``__init__.py`` of its parents.

        Raises ``BuildError`` if it does not exist.
        """
        folder = self.root.joinpath(*package.split("."))
        module = folder.with_suffix(".py")
        if not module.is_file() and not (folder / "__init__.py").is_file():
            raise BuildError(f"no package {package} in {self.root}")
        own = [module] if module.is_file() else self._below(folder)
        parents = (parent / "__init__.py" for parent in folder.parents if parent.is_relative_to(self.root))
        paths = [*(path for path in parents if path.parent != self.root), *own]
        return [
            File(
                f"{SITE}/{path.relative_to(self.root)}",
                path.read_bytes(),
                # The other permissions depend on this user's umask.
                0o755 if os.access(path, os.X_OK) else 0o644,
            )
            for path in paths
        ]

    def _below(self, folder: Path) -> Iterator[Path]:
        patterns = ("*.py", *self._project["tool"]["setuptools"]["package-data"]["*"])
        for path in sorted(folder.rglob("*")):
            if path.is_file() and any(fnmatchcase(path.name, pattern) for pattern in patterns):
                yield path

    @cached_property
    def _project(self) -> dict[str, Any]:
        return tomllib.loads(self._read("pyproject.toml"))

    def _read(self, name: str) -> str:
        return (self.root / name).read_text()

    def _git(self, *words: str) -> str:
        done = subprocess.run(["git", "-C", str(self.root), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""
