"""Builds the programs of a module set, and keeps them."""

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
"""To be changed with the way of building, so that programs built in the old way are not used."""

_LAST_LINES: Final = 15


class BuildFailedError(Exception):
    """A set could not be built; the message has the end of Go's output."""


@dataclass(frozen=True, slots=True)
class Builder:
    """Builds with one Go into one store."""

    toolchain: Toolchain
    store: Store

    @classmethod
    def usual(cls, toolchain: Toolchain) -> Builder:
        """Builds into the project's cache."""
        return cls(toolchain, Store(cache_root() / "kubernetes"))

    def key(self, modules: ModuleSet) -> str:
        """The name of the folder of the set's programs: the set's name and a digest of all that it is built of."""
        # Everything that the programs depend on: a change of any part gives another folder.
        digest = hashlib.sha256(f"{_RECIPE} {self.toolchain.version} {platform.machine()}\n".encode())
        for path in sorted((MODULES / modules.name).iterdir()):
            # The length delimits the content, so that two files cannot hash like one.
            digest.update(f"{path.name} {len(path.read_bytes())}\n".encode() + path.read_bytes())
        facts = (modules.packages, sorted(modules.renamed.items()), modules.stamps, *modules.files)
        digest.update(repr(facts).encode())
        return f"{modules.name}-{digest.hexdigest()[:16]}"

    def kept(self, modules: ModuleSet) -> Path | None:
        """The folder of the set's programs, if they have been built."""
        return self.store.kept(self.key(modules))

    def ensure(self, modules: ModuleSet, report: Report) -> Path:
        """The folder of the set's programs, built if they are missing. Raises ``BuildFailedError``."""
        # The store keeps finished folders only: an interrupted build leaves it as it was.
        return self.store.get(self.key(modules), lambda work: self._build(modules, work, report), report)

    def _build(self, modules: ModuleSet, work: Path, report: Report) -> None:
        folder = MODULES / modules.name
        report(f"{modules.name}: reading its modules")
        total = len(self._go(folder, "list", "-deps", *modules.packages).split())
        # Versions and checksums are those of go.mod and go.sum; -mod=readonly keeps Go from changing them. The other
        # two flags keep paths and commits of this machine out of the programs.
        flags = ["-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags"]
        linked = modules.link_flags((folder / "go.mod").read_text())
        counted = Counted(modules.name, total, report)
        for packages, program in modules.builds:
            command = [str(self.toolchain.go), "build", "-v", *flags, linked, "-o", f"{work}/{program}", *packages]
            run_counted(command, folder, self.toolchain.environment(), counted)
        # Programs that `renamed` lists by package were built under their final names; only those that it lists by Go's
        # name are left.
        for built, name in modules.renamed.items():
            if built not in modules.packages:
                (work / built).rename(work / name)
        if modules.files:
            # The module's sources are in Go's module cache, whose path only Go knows.
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


def printed(build: Callable[[Report], str]) -> int:
    """Runs a build in a process of its own: prints its progress, and last its outcome; returns the exit code."""
    try:
        # Flushed, because the reader shows each line as it comes.
        outcome = build(partial(print, flush=True))
    except (BuildError, LockError, BuildFailedError, NoGoError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(outcome, flush=True)
    return 0


class Counted:
    """Progress of a build of at most ``total`` packages; those in Go's cache are not built again."""

    def __init__(self, name: str, total: int, report: Report) -> None:
        self._name = name
        self._total = total
        self._report = report
        self._step = max(1, total // 10)
        self._built = 0

    def built(self) -> None:
        """One more package is built."""
        self._built += 1
        if self._built % self._step == 0:
            self._report(f"{self._name}: {self._built} packages of {self._total} at most")


def run_counted(command: Sequence[str], folder: Path, environment: Mapping[str, str], counted: Counted) -> None:
    """Runs ``go build -v``, which names a package on a line of its own when it begins to build it.

    Raises ``BuildFailedError``.
    """
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
        # Only stderr is piped and read to its end, so the pipe cannot fill up and block Go.
        for line in process.stderr or ():
            if _is_package(line):
                counted.built()
            else:
                lines.append(line.rstrip())
    if process.returncode:
        raise BuildFailedError(f"`go build` failed in {folder}: {_end(lines)}")


def _is_package(line: str) -> bool:
    # Errors begin with `# package` or contain spaces; -v prints nothing but the import path.
    return " " not in line.strip() and not line.startswith("#")


def _end(lines: Sequence[str]) -> str:
    return "\n".join(lines[-_LAST_LINES:])
