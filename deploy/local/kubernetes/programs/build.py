"""Builds the programs of a module set into a cache."""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from deploy.images.rules.lock import LockError
from deploy.local.kubernetes.programs.toolchain import NoGoError, Toolchain
from deploy.local.kubernetes.programs.versions import ModuleSet
from vm_image.host import BuildError
from vm_image.store import Report, Store, cache_root

MODULES: Final = Path(__file__).parents[1] / "modules"
_RECIPE: Final = "1"
"""Change this when the build changes, to invalidate the cache."""

_LAST_LINES: Final = 15


class BuildFailedError(Exception):
    """A module set could not be built; the message has the last lines of Go's output."""


@dataclass(frozen=True, slots=True)
class Builder:
    """Builds module sets with ``toolchain`` into ``store``."""

    toolchain: Toolchain
    store: Store

    @classmethod
    def default(cls, toolchain: Toolchain) -> Builder:
        """A builder that uses the project's cache."""
        return cls(toolchain, Store(cache_root() / "kubernetes"))

    def key(self, modules: ModuleSet) -> str:
        """The cache key of the set's programs: its name and a digest of all inputs of the build."""
        digest = hashlib.sha256(f"{_RECIPE} {self.toolchain.version} {platform.machine()}\n".encode())
        for path in sorted((MODULES / modules.name).iterdir()):
            # With the length, so that the concatenation is unambiguous.
            digest.update(f"{path.name} {len(path.read_bytes())}\n".encode() + path.read_bytes())
        properties = (modules.packages, sorted(modules.renamed.items()), modules.stamps, *modules.files)
        digest.update(repr(properties).encode())
        return f"{modules.name}-{digest.hexdigest()[:16]}"

    def cached(self, modules: ModuleSet) -> Path | None:
        """The folder of the set's programs; None if they have not been built."""
        return self.store.cached(self.key(modules))

    def ensure(self, modules: ModuleSet, report: Report) -> Path:
        """The folder of the set's programs; builds them if necessary. Raises ``BuildFailedError``."""
        return self.store.get(self.key(modules), lambda work: self._build(modules, work, report), report)

    def _build(self, modules: ModuleSet, work: Path, report: Report) -> None:
        folder = MODULES / modules.name
        report(f"{modules.name}: listing packages")
        total = len(self._go(folder, "list", "-deps", *modules.packages).split())
        # -mod=readonly: do not change go.mod and go.sum. -trimpath and -buildvcs=false: no local paths or commits in
        # the programs.
        flags = ["-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags"]
        linked = modules.link_flags((folder / "go.mod").read_text())
        progress = BuildProgress(modules.name, total, report)
        for packages, program in modules.builds:
            command = [str(self.toolchain.go), "build", "-v", *flags, linked, "-o", f"{work}/{program}", *packages]
            run_go_build(command, folder, self.toolchain.environment(), progress)
        # Programs that are renamed by package were built with their final names.
        for built, name in modules.renamed.items():
            if built not in modules.packages:
                (work / built).rename(work / name)
        if modules.files:
            # The module's folder in Go's module cache.
            source = Path(self._go(folder, "list", "-m", "-f", "{{.Dir}}", modules.module).strip())
            for file in modules.files:
                shutil.copyfile(source / file, work / Path(file).name)

    def _go(self, folder: Path, *arguments: str) -> str:
        completed = subprocess.run(
            [str(self.toolchain.go), *arguments],
            cwd=folder,
            env=self.toolchain.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if completed.returncode:
            raise BuildFailedError(f"`go {arguments[0]}` failed in {folder}: {_end(completed.stderr.splitlines())}")
        return completed.stdout


def print_build(build: Callable[[Report], str]) -> int:
    """Run ``build``; print its progress, then its result. Returns the exit code."""
    try:
        result = build(partial(print, flush=True))
    except (BuildError, LockError, BuildFailedError, NoGoError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(result, flush=True)
    return 0


class BuildProgress:
    """Reports the progress of a build of at most ``total`` packages (fewer if some are in Go's cache)."""

    def __init__(self, name: str, total: int, report: Report) -> None:
        self._name = name
        self._total = total
        self._report = report
        self._step = max(1, total // 10)
        self._built = 0

    def built(self) -> None:
        """Count one more package."""
        self._built += 1
        if self._built % self._step == 0:
            self._report(f"{self._name}: {self._built} packages of {self._total} at most")


def run_go_build(command: Sequence[str], folder: Path, environment: Mapping[str, str], progress: BuildProgress) -> None:
    """Run ``go build -v``, which prints each package that it builds. Raises ``BuildFailedError``."""
    lines: list[str] = []
    with subprocess.Popen(
        command,
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        for line in process.stderr or ():
            # -v prints only import paths; errors begin with `# package` or contain spaces.
            if " " not in line.strip() and not line.startswith("#"):
                progress.built()
            else:
                lines.append(line.rstrip())
    if process.returncode:
        raise BuildFailedError(f"`go build` failed in {folder}: {_end(lines)}")


def _end(lines: Sequence[str]) -> str:
    return "\n".join(lines[-_LAST_LINES:])
